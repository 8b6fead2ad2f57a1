//! The request of a completion.

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use utoipa::ToSchema;

use crate::field::Field;
use crate::llama_cpp::LoraScale;
use crate::openai::options::{self, StreamOptions};
use crate::union::TextOr;
use crate::wire::{FieldTables, WireRequest};

/// Texts to continue. The engine's sampling parameters are accepted beside these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// A text, its tokens, or a list of texts or of lists of tokens: a batch of up to 1024.
    /// With `n` or `best_of`, up to 4096 choices in total. Special tokens in a text are parsed.
    #[schema(value_type = Option<TextOr<PromptItem>>)]
    pub prompt: Option<TextOr<PromptItem>>,
    /// Raw input embeddings in place of `prompt`: the base64 of a safetensors file with one tensor of
    /// F32, F16 or BF16 and the shape `[positions, hidden size]`, or a list of them. The model needs
    /// room for them (`media_positions`).
    #[schema(value_type = Option<TextOr<String>>)]
    pub prompt_embeds: Option<TextOr<String>>,
    /// The text that follows: the model writes what is between `prompt` and it. Refused if the model
    /// has no fill-in-the-middle tokens. Special tokens are then plain text.
    pub suffix: Option<String>,
    /// The longest continuation in tokens; default 16, -1 for all that fit. 0 needs `echo` or
    /// `prompt_logprobs`. One that exceeds the room in the context is reduced to it, and the header
    /// `x-loquat-max-tokens` has the limit.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub max_tokens: Option<usize>,
    /// Begin the answer with the prompt, and its `logprobs` if requested.
    pub echo: Option<bool>,
    /// Number of choices for each prompt, from 1 to 128; default 1.
    pub n: Option<usize>,
    /// Generate this many choices and return the `n` likeliest. Not with `stream`.
    pub best_of: Option<usize>,
    /// Return log-probabilities with this many alternatives to each token, from 0 to 20.
    pub logprobs: Option<usize>,
    /// Return log-probabilities of the prompt's tokens with this many alternatives, from 0 to 20.
    pub prompt_logprobs: Option<usize>,
    /// Up to 64 strings that end the continuation; they are not part of it.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Tokens that end the continuation, besides the model's end-of-text tokens.
    pub stop_token_ids: Option<Vec<u32>>,
    /// False shows special tokens in the continuation; default true.
    pub skip_special_tokens: Option<bool>,
    /// Stream the choices as server-sent events.
    pub stream: Option<bool>,
    /// Needs `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Share cached prompts only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Lower runs first, from -100 to 100; default 0. A key needs the scope `manage` for negative ones.
    pub priority: Option<i32>,
    /// Continue past the model's end-of-text tokens.
    pub ignore_eos: Option<bool>,
    /// Most tokens to draft and verify in one step; 0 for none. Drafts change the speed, not the text.
    #[serde(rename = "speculative.n_max")]
    pub draft_max: Option<usize>,
    /// Exactly these adapters, by their numbers, as llama.cpp takes them.
    pub lora: Option<Vec<LoraScale>>,
}

/// An item of `prompt`.
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
        struct ItemVisitor;

        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = PromptItem;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<PromptItem, E> {
                Ok(PromptItem::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<PromptItem, E> {
                let token = u32::try_from(id).map(PromptItem::Token);
                token.map_err(|_| E::custom(format!("{id} is not a token id")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, ids: A) -> Result<PromptItem, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(ids)).map(PromptItem::Tokens)
            }
        }

        deserializer.deserialize_any(ItemVisitor)
    }
}

impl WireRequest for CompletionRequest {
    const IGNORED: FieldTables<&'static str> = &[options::IGNORED];
    const IGNORED_NESTED: FieldTables<&'static str> = &[options::IGNORED_NESTED];
    const REFUSED: FieldTables<Field> = &[
        options::REFUSED,
        &[(
            Field::Messages,
            "send a conversation to /v1/chat/completions",
        )],
    ];
    const SAMPLING: bool = true;
    const ANSWER_FORMAT: bool = true;
}
