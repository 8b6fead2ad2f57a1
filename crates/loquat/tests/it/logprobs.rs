//! Log-probabilities of answers.

use crate::model;

#[test]
fn tokens_have_logprobs_on_request() {
    let model = model();
    let ask = || model.complete("abc").max_tokens(4).temperature(0.0);
    let mut answer = ask().logprobs(2).stream().unwrap();
    answer.by_ref().for_each(|event| drop(event.unwrap()));
    assert!(!answer.tokens().is_empty());
    for token in answer.tokens() {
        let logprob = token.logprob.unwrap();
        assert_eq!(token.top.len(), 2);
        // Greedy decoding takes the likeliest token.
        assert_eq!(token.top[0], (token.id, logprob));
    }

    let mut plain = ask().stream().unwrap();
    plain.by_ref().for_each(|event| drop(event.unwrap()));
    assert!(plain.tokens().iter().all(|token| token.logprob.is_none()));
}
