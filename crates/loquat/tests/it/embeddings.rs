//! Embeddings of texts.

use loquat::Error;
use loquat_testkit::fake_session::FakeOptions;

use crate::{fake_model, model, runtime};

#[test]
fn vectors_have_unit_length_and_follow_their_texts() {
    let model = model();
    let vectors = model.embed(&["a cat", "a dog", "a cat"]).unwrap();
    assert_eq!(vectors.len(), 3);
    assert_eq!(vectors[0], vectors[2]);
    assert_ne!(vectors[0], vectors[1]);
    for vector in &vectors {
        let squares: f32 = vector.iter().map(|value| value * value).sum();
        assert!((squares - 1.0).abs() < 1e-4, "{squares}");
    }
    let asynchronous = runtime().block_on(model.embed_async(&["a cat"]));
    assert_eq!(asynchronous.unwrap(), vectors[..1]);
}

#[test]
fn backend_without_hidden_states_is_refused() {
    let model = fake_model(FakeOptions {
        hidden_size: None,
        ..FakeOptions::default()
    });
    let refused = model.embed(&["a cat"]);
    assert!(matches!(refused, Err(Error::NoEmbeddings { model }) if model == "fake"));
}
