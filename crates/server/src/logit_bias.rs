//! `logit_bias`: OpenAI's object from token ids to numbers, and llama.cpp's additions to it. A key may
//! be a text, whose tokens all get the bias; a list of pairs does for an object; `false` forbids a
//! token.

use loquat_text::{Special, Tokenizer};
use serde_json::Value;

use crate::error::ApiError;
use crate::sampling::{MAX_WORD_BYTES, invalid, wrong_type};

#[derive(Debug, Default, PartialEq)]
pub struct LogitBias {
    /// Added to the logits of the tokens.
    pub added: Vec<(u32, f32)>,
    /// Tokens that are never chosen.
    pub forbidden: Vec<u32>,
}

/// What a bias is for.
enum Target<'a> {
    Token(u32),
    Text(&'a str),
}

impl LogitBias {
    pub fn read(name: &str, value: &Value, tokenizer: &Tokenizer) -> Result<Self, ApiError> {
        let entries: Option<Vec<_>> = match value {
            Value::Object(entries) => {
                let entries = entries.iter();
                entries
                    .map(|(key, bias)| Some((key_target(key)?, bias)))
                    .collect()
            }
            Value::Array(pairs) => pairs.iter().map(pair).collect(),
            _ => None,
        };
        let expected = "an object or pairs from token ids or texts to numbers or false";
        let refused = || wrong_type(name, value, expected);
        let mut read = Self::default();
        let mut text_bytes = 0;
        for (target, bias) in entries.ok_or_else(refused)? {
            let tokens = match target {
                Target::Token(id) => vec![id],
                Target::Text(text) => {
                    text_bytes += text.len();
                    check_texts(name, text_bytes)?;
                    let tokens = tokenizer.encode(text, Special::PLAIN);
                    tokens.map_err(|error| ApiError::internal(&error))?
                }
            };
            match bias {
                Value::Bool(false) => read.forbidden.extend(tokens),
                bias => {
                    let bias = bias.as_f64().ok_or_else(refused)? as f32;
                    read.added.extend(tokens.into_iter().map(|id| (id, bias)));
                }
            }
        }
        Ok(read)
    }
}

/// A whole number is a token id, anything else a text.
fn key_target(key: &str) -> Option<Target<'_>> {
    match key.parse::<i64>() {
        Ok(id) => u32::try_from(id).ok().map(Target::Token),
        Err(_) => Some(Target::Text(key)),
    }
}

fn pair(pair: &Value) -> Option<(Target<'_>, &Value)> {
    let [target, bias] = pair.as_array()?.as_slice() else {
        return None;
    };
    let target = match target {
        Value::String(text) => Target::Text(text),
        id => Target::Token(u32::try_from(id.as_u64()?).ok()?),
    };
    Some((target, bias))
}

/// Bounds the time to tokenize the texts.
fn check_texts(name: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_WORD_BYTES {
        return Ok(());
    }
    let problem = format!("has more than {MAX_WORD_BYTES} bytes of texts");
    Err(invalid(name, &problem))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::tokenizer;

    fn read(value: Value) -> Result<LogitBias, ApiError> {
        LogitBias::read("logit_bias", &value, &tokenizer())
    }

    #[test]
    fn every_form_is_read() {
        let tokens = |text: &str| tokenizer().encode(text, Special::PLAIN).expect("tokens");
        let cases = [
            (json!({ "5": 1.5, "6": false }), vec![(5, 1.5)], vec![6]),
            (json!([[5, 1.5], [6, false]]), vec![(5, 1.5)], vec![6]),
            (
                json!({ "ab": -2 }),
                tokens("ab").iter().map(|id| (*id, -2.0)).collect(),
                vec![],
            ),
            (json!([["ab", false]]), vec![], tokens("ab")),
            // In a pair, digits are a text.
            (json!([["5", 1]]), vec![(tokens("5")[0], 1.0)], vec![]),
            (json!([]), vec![], vec![]),
        ];
        for (value, added, forbidden) in cases {
            let found = read(value.clone()).expect("valid");
            assert_eq!(found, LogitBias { added, forbidden }, "{value}");
        }
    }

    #[test]
    fn other_values_are_refused() {
        for value in [
            json!({ "-1": 1 }),
            json!({ "4294967296": 1 }),
            json!({ "5": true }),
            json!([[5]]),
            json!([[5, 1, 2]]),
            json!([[-1, 1]]),
            json!([[5, "x"]]),
            json!([5, 1]),
            json!({ "a".repeat(MAX_WORD_BYTES + 1): 1 }),
        ] {
            let error = read(value.clone()).expect_err("invalid");
            assert!(error.message.contains("`logit_bias`"), "{value}");
        }
    }
}
