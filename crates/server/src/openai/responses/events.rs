//! The events of a response's stream.

use serde::Serialize;

use super::item::{Item, Part, ReasoningPart};
use super::object::ResponseObject;
use crate::field::FieldPath;
use crate::openai::logprobs::TokenLogprob;
use crate::reply::SegmentKind;

/// One event of a stream.
#[derive(Debug, Serialize)]
pub struct NumberedEvent<'a> {
    /// Its name.
    pub r#type: &'static str,
    #[serde(flatten)]
    pub event: &'a Event<'a>,
    pub sequence_number: u64,
}

/// An event without its name and number.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Event<'a> {
    Response {
        response: &'a ResponseObject,
    },
    Item {
        output_index: usize,
        item: &'a Item,
    },
    Part {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        part: &'a ContentPart,
    },
    /// More of a text, of reasoning or of a call's arguments.
    Delta {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        delta: &'a str,
        /// Of a text only.
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a [TokenLogprob]>,
    },
    /// The whole text or reasoning.
    TextDone {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        text: &'a str,
        /// Of a text only.
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a [TokenLogprob]>,
    },
    ArgumentsDone {
        #[serde(flatten)]
        position: ItemPosition<'a>,
        name: &'a str,
        arguments: &'a str,
    },
    Error {
        code: Option<&'a str>,
        message: &'a str,
        param: Option<&'a FieldPath>,
    },
}

/// The item of the output that an event is about, and its part.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ItemPosition<'a> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
}

impl<'a> ItemPosition<'a> {
    /// Text and reasoning have one part; calls have none.
    pub fn new(item_id: &'a str, output_index: usize, kind: &SegmentKind) -> Self {
        let content_index = match kind {
            SegmentKind::Reasoning | SegmentKind::Text => Some(0),
            SegmentKind::ToolCall { .. } => None,
        };
        Self {
            item_id,
            output_index,
            content_index,
        }
    }
}

/// A part of an item.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ContentPart {
    Text(Part),
    Reasoning(ReasoningPart),
}
