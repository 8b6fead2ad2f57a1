//! Texts to tokens and back.

use crate::model;

#[test]
fn detokenize_inverts_tokenize() {
    let model = model();
    for text in ["", "hello", "naïve café 🥭"] {
        let tokens = model.tokenize(text).unwrap();
        assert_eq!(model.detokenize(&tokens), text);
    }
}
