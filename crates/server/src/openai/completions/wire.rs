//! A completion as it is asked for.

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use utoipa::ToSchema;

use crate::openai::answer::{ResponseFormat, StructuredOutputs};
use crate::openai::options::StreamOptions;
use crate::union::TextOr;
use crate::wire::Wire;

/// Texts to go on from. All sampling parameters of the engine may stand beside these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// Which model is to write. May be left out where only one is served.
    pub model: Option<String>,
    /// A text, its tokens, or a list of texts or of lists of tokens: a batch of up to 1024.
    /// With `n` or `best_of`, up to 4096 continuations of all together. Special tokens that a text
    /// spells out are read as such.
    #[schema(value_type = TextOr<PromptItem>)]
    pub prompt: TextOr<PromptItem>,
    /// The longest continuation in tokens; 16 when left out. 0 only together with `echo` or
    /// `prompt_logprobs`.
    pub max_tokens: Option<usize>,
    /// Begin the answer with the prompt; with `logprobs`, those of its tokens too.
    pub echo: Option<bool>,
    /// How many continuations of each prompt, from 1 to 128; 1 when left out.
    pub n: Option<usize>,
    /// Of how many to give those `n` that the model thinks likeliest. Not with `stream`.
    pub best_of: Option<usize>,
    /// Tell log-probabilities, of this many alternatives to each token, from 0 to 20.
    pub logprobs: Option<usize>,
    /// Tell log-probabilities of the prompt's tokens, of this many alternatives, from 0 to 20.
    pub prompt_logprobs: Option<usize>,
    /// Up to 64 strings that end the continuation, which ends before them.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Send the continuations as they come, as server-sent events.
    pub stream: Option<bool>,
    /// How to stream; only together with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// The form of the continuation. At most one of this, `guided_*` and `structured_outputs`.
    pub response_format: Option<ResponseFormat>,
    /// The continuation is JSON that this schema admits; the schema as an object or as text.
    pub guided_json: Option<Value>,
    /// The continuation matches this regular expression as a whole.
    pub guided_regex: Option<String>,
    /// The continuation is one of these.
    pub guided_choice: Option<Vec<String>>,
    /// The continuation is of this grammar, in Lark's or llama.cpp's notation.
    pub guided_grammar: Option<String>,
    /// The same wishes in another form.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Keeps what is computed for this request to requests with the same salt.
    pub cache_salt: Option<String>,
    /// Lower goes first, from -100 to 100; 0 when left out.
    pub priority: Option<i32>,
    /// Go on past the model's own end-of-text tokens.
    pub ignore_eos: Option<bool>,
}

/// What a list of prompts has.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(untagged)]
pub enum PromptItem {
    /// A prompt.
    Text(String),
    /// A token of the only prompt.
    Token(u32),
    /// A prompt.
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Item;

        impl<'de> Visitor<'de> for Item {
            type Value = PromptItem;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<PromptItem, E> {
                Ok(PromptItem::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<PromptItem, E> {
                let token = u32::try_from(id).map(PromptItem::Token);
                token.map_err(|_| E::custom(format!("{id} is no token id")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, ids: A) -> Result<PromptItem, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(ids)).map(PromptItem::Tokens)
            }
        }

        deserializer.deserialize_any(Item)
    }
}

impl Wire for CompletionRequest {
    const IGNORED: &'static [(&'static str, &'static str)] = &[
        ("user", "clients are told apart by their keys"),
        ("guided_decoding_backend", "there is one"),
    ];
    const WITHIN: &'static [(&'static str, &'static str)] = &[
        (
            "response_format.json_schema.description",
            "the model does not see it",
        ),
        (
            "stream_options.include_obfuscation",
            "pieces of a stream are not padded",
        ),
    ];
    const REFUSED: &'static [(&'static str, &'static str)] = &[(
        "suffix",
        "no model here fills in between a prompt and a suffix",
    )];
    const SAMPLING: bool = true;
}
