//! The events of a response's stream.

use serde::Serialize;

use super::item::{Item, Part, ReasoningPart};
use super::object::ResponseObject;
use crate::field::FieldPath;
use crate::openai::logprobs::TokenLogprob;

/// One event; its name is its `type`.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub enum Event<'a> {
    #[serde(rename = "response.created")]
    Created { response: &'a ResponseObject },
    #[serde(rename = "response.in_progress")]
    InProgress { response: &'a ResponseObject },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: &'a Item },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: &'a Item },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        content_index: usize,
        part: ContentPart,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        content_index: usize,
        part: ContentPart,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        content_index: usize,
        delta: &'a str,
        logprobs: &'a [TokenLogprob],
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        content_index: usize,
        text: &'a str,
        logprobs: &'a [TokenLogprob],
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        content_index: usize,
        delta: &'a str,
    },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        content_index: usize,
        text: &'a str,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        delta: &'a str,
    },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        name: &'a str,
        arguments: &'a str,
    },
    #[serde(rename = "response.completed")]
    Completed { response: &'a ResponseObject },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: &'a ResponseObject },
    #[serde(rename = "response.failed")]
    Failed { response: &'a ResponseObject },
    #[serde(rename = "error")]
    Error {
        code: Option<&'a str>,
        message: &'a str,
        param: Option<&'a FieldPath>,
    },
}

impl Event<'_> {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::PartDone { .. } => "response.content_part.done",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
            Self::Error { .. } => "error",
        }
    }
}

/// An event and its number in the stream.
#[derive(Debug, Serialize)]
pub struct NumberedEvent<'a> {
    #[serde(flatten)]
    pub event: &'a Event<'a>,
    pub sequence_number: u64,
}

/// The item of the output that an event is about.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ItemPosition<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
}

/// A part of an item.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ContentPart {
    Text(Part),
    Reasoning(ReasoningPart),
}
