//! Answers that match a schema, a regular expression or a choice.

use loquat::Error;
use serde_json::json;

use crate::model;

#[test]
fn truncated_constrained_answer_is_an_error() {
    let model = model();
    let truncated = model.complete("x").regex("[0-9]{50}").max_tokens(3).seed(1);
    match truncated.text() {
        Err(Error::Truncated(reply)) => assert!(!reply.text.is_empty()),
        other => panic!("{other:?}"),
    }
    // An unconstrained answer may end anywhere.
    let free = model.complete("abc").max_tokens(3).seed(1);
    assert!(free.text().is_ok());
}

#[test]
fn answers_satisfy_their_constraints() {
    let model = model();
    let schema = json!({ "type": "array", "items": { "enum": [1, 2] }, "maxItems": 3 });
    for seed in 0..8 {
        let ask = || model.chat("hi").seed(seed).temperature(1.0);
        let choice = ask().choice(["sad", "glad"]).text().unwrap();
        assert!(["sad", "glad"].contains(&choice.as_str()), "{choice}");
        let array = ask().schema(schema.clone()).text().unwrap();
        let array: Vec<u8> = serde_json::from_str(&array).unwrap();
        assert!(array.len() <= 3 && array.iter().all(|item| [1, 2].contains(item)));
        let digits = model
            .complete("x")
            .seed(seed)
            .regex("[0-9]{2}")
            .text()
            .unwrap();
        assert!(
            digits.len() == 2 && digits.parse::<u8>().is_ok(),
            "{digits}"
        );
    }
}
