//! Reference outputs of transformers for two real models, weights dequantized to fp32. See
//! `goldens-real/README.md`.

use serde::Deserialize;

use crate::goldens::fixtures;

#[derive(Debug, Deserialize)]
pub struct Reference {
    pub model: String,
    pub cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
pub struct Case {
    pub kind: Kind,
    /// The text itself, or the messages of a chat.
    pub source: serde_json::Value,
    /// The model's input: the text, or the rendered template.
    pub text: String,
    pub ids: Vec<u32>,
    /// Log-probabilities of `ids[1..]`, each given the previous ones.
    pub token_logprobs: Vec<f32>,
    pub mean_logprob: f64,
    /// The likeliest tokens after `ids`, best first.
    pub top_ids: Vec<u32>,
    pub top_logprobs: Vec<f32>,
    pub greedy_ids: Vec<u32>,
    pub greedy_text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Text,
    Chat,
}

/// `smollm2-135m` or `gemma3-270m`.
pub fn reference(name: &str) -> Reference {
    let path = fixtures().join("goldens-real").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
