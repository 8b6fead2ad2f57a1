//! Renders a reply as a response: its items, and the events of its stream.

use std::sync::Arc;

use bytes::Bytes;
use loquat_chat::{ChatContext, Finish};
use loquat_engine::{FinishReason, TokenInfo};
use loquat_text::Tokenizer;

use super::events::{ContentPart, Event, ItemPosition, NumberedEvent};
use super::item::{
    FunctionCallItem, Item, ItemRole, ItemStatus, MessageItem, OutputText, Part, ReasoningItem,
    ReasoningPart,
};
use super::object::{IncompleteDetails, ResponseObject, ResponseStatus, ResponseUsage};
use super::store::StoredResponse;
use crate::app::App;
use crate::error::ApiError;
use crate::openai::logprobs::{ChatLogprobs, TokenLogprob};
use crate::openai::{fresh_id, now};
use crate::reply::{
    ChoiceDelta, EventFrames, ReplySegments, ReplyWriter, Segment, SegmentEvent, SegmentKind,
};
use crate::union::TextOr;

pub struct ResponseWriter {
    segments: ReplySegments,
    response: ResponseObject,
    /// The id of the item that is being written.
    item_id: String,
    tokenizer: Tokenizer,
    /// Whether the request asks for log-probabilities.
    logprobs: bool,
    events: NumberedEvents,
    storage: ResponseStorage,
}

/// What a finished response is stored with.
pub struct ResponseStorage {
    pub app: Arc<App>,
    pub owner: Option<String>,
    pub previous: Option<StoredResponse>,
    pub input: Vec<Item>,
}

impl ResponseWriter {
    pub fn new(
        response: ResponseObject,
        chat: &ChatContext,
        logprobs: bool,
        streams: bool,
        storage: ResponseStorage,
    ) -> Self {
        Self {
            segments: ReplySegments::default().with_tokens(chat),
            response,
            item_id: String::new(),
            tokenizer: chat.tokenizer().clone(),
            logprobs,
            events: NumberedEvents {
                frames: EventFrames::new(streams),
                next: 0,
            },
            storage,
        }
    }

    fn write_event(&mut self, event: SegmentEvent) {
        match event {
            SegmentEvent::Begin { index, kind } => self.begin(index, kind),
            SegmentEvent::Delta {
                index,
                kind,
                text,
                tokens,
            } => {
                let logprobs = self.logprobs(&tokens);
                self.delta(index, &kind, &text, &logprobs);
            }
            SegmentEvent::End(segment) => self.end(segment),
        }
    }

    fn logprobs(&self, tokens: &[TokenInfo]) -> Vec<TokenLogprob> {
        if self.logprobs {
            ChatLogprobs::new(tokens, &self.tokenizer).content
        } else {
            Vec::new()
        }
    }

    fn begin(&mut self, index: usize, kind: SegmentKind) {
        self.item_id = fresh_id(match kind {
            SegmentKind::Reasoning => "rs_",
            SegmentKind::Text => "msg_",
            SegmentKind::ToolCall { .. } => "fc_",
        });
        let output = SegmentOutput::new(&self.item_id, index, kind);
        let item = output.item(ItemStatus::InProgress, false);
        self.events.push(&Event::ItemAdded {
            output_index: index,
            item: &item,
        });
        if let Some(part) = output.part() {
            self.events.push(&Event::PartAdded {
                position: output.position(),
                content_index: 0,
                part,
            });
        }
    }

    fn delta(&mut self, index: usize, kind: &SegmentKind, delta: &str, logprobs: &[TokenLogprob]) {
        let content_index = 0;
        let position = ItemPosition {
            item_id: &self.item_id,
            output_index: index,
        };
        self.events.push(&match kind {
            SegmentKind::Reasoning => Event::ReasoningDelta {
                position,
                content_index,
                delta,
            },
            SegmentKind::Text => Event::TextDelta {
                position,
                content_index,
                delta,
                logprobs,
            },
            SegmentKind::ToolCall { .. } => Event::ArgumentsDelta { position, delta },
        });
    }

    fn end(&mut self, segment: Segment) {
        let Segment {
            index,
            kind,
            text,
            tokens,
            complete,
        } = segment;
        let output = SegmentOutput {
            text,
            logprobs: self.logprobs(&tokens),
            ..SegmentOutput::new(&self.item_id, index, kind)
        };
        let (position, content_index, text) = (output.position(), 0, output.text.as_str());
        self.events.push(&match &output.kind {
            SegmentKind::Reasoning => Event::ReasoningDone {
                position,
                content_index,
                text,
            },
            SegmentKind::Text => Event::TextDone {
                position,
                content_index,
                text,
                logprobs: &output.logprobs,
            },
            SegmentKind::ToolCall { id: _, name } => Event::ArgumentsDone {
                position,
                name,
                arguments: text,
            },
        });
        if let Some(part) = output.part() {
            self.events.push(&Event::PartDone {
                position,
                content_index,
                part,
            });
        }
        let status = if complete {
            ItemStatus::Completed
        } else {
            ItemStatus::Incomplete
        };
        let item = output.item(status, true);
        self.events.push(&Event::ItemDone {
            output_index: index,
            item: &item,
        });
        self.response.output.push(item);
    }

    fn end_response(&mut self, finish: &Finish) {
        let response = &mut self.response;
        let reasoning_tokens = self.segments.reasoning_tokens().unwrap_or(0);
        response.usage = Some(ResponseUsage::new(finish.usage, reasoning_tokens));
        if finish.reason == FinishReason::Length {
            response.status = ResponseStatus::Incomplete;
            response.incomplete_details = Some(IncompleteDetails {
                reason: "max_output_tokens",
            });
            self.events.push(&Event::Incomplete { response });
        } else {
            response.status = ResponseStatus::Completed;
            response.completed_at = Some(now());
            self.events.push(&Event::Completed { response });
        }
        // Before the client sees the end, since it may continue from the response at once.
        self.storage.store(response);
    }
}

impl ReplyWriter for ResponseWriter {
    type Answer = ResponseObject;

    fn start(&mut self) -> Bytes {
        let response = &self.response;
        self.events.push(&Event::Created { response });
        self.events.push(&Event::InProgress { response });
        self.events.frames.take()
    }

    fn write(&mut self, delta: ChoiceDelta) -> Bytes {
        let finish = delta.reply.finish.clone();
        for event in self.segments.consume(delta.reply) {
            self.write_event(event);
        }
        if let Some(finish) = finish {
            self.end_response(&finish);
        }
        self.events.frames.take()
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(error.into());
        self.events.push(&Event::Error {
            code: error.code,
            message: &error.message,
            param: error.param.as_ref(),
        });
        let response = &self.response;
        self.events.push(&Event::Failed { response });
        self.events.frames.take()
    }

    fn into_answer(self) -> Result<ResponseObject, ApiError> {
        Ok(self.response)
    }
}

impl ResponseStorage {
    fn store(&mut self, response: &ResponseObject) {
        let Self {
            app,
            owner,
            previous,
            input,
        } = self;
        if response.store {
            app.responses.insert(
                owner.take(),
                previous.take(),
                std::mem::take(input),
                response.clone(),
                &app.config().responses,
            );
        }
    }
}

/// A segment on its way to an item.
struct SegmentOutput<'a> {
    id: &'a str,
    index: usize,
    kind: SegmentKind,
    text: String,
    logprobs: Vec<TokenLogprob>,
}

impl<'a> SegmentOutput<'a> {
    fn new(id: &'a str, index: usize, kind: SegmentKind) -> Self {
        Self {
            id,
            index,
            kind,
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    fn position(&self) -> ItemPosition<'a> {
        ItemPosition {
            item_id: self.id,
            output_index: self.index,
        }
    }

    /// The only part of text and reasoning; calls have none.
    fn part(&self) -> Option<ContentPart> {
        match self.kind {
            SegmentKind::Reasoning => Some(ContentPart::Reasoning(ReasoningPart::ReasoningText {
                text: self.text.clone(),
            })),
            SegmentKind::Text => Some(ContentPart::Text(Part::OutputText(OutputText {
                text: self.text.clone(),
                annotations: Vec::new(),
                logprobs: self.logprobs.clone(),
            }))),
            SegmentKind::ToolCall { .. } => None,
        }
    }

    /// The item, with its part or without.
    fn item(&self, status: ItemStatus, with_part: bool) -> Item {
        let id = Some(self.id.to_owned());
        let mut parts = Vec::new();
        let mut reasoning = Vec::new();
        match self.part().filter(|_| with_part) {
            Some(ContentPart::Text(part)) => parts.push(part),
            Some(ContentPart::Reasoning(part)) => reasoning.push(part),
            None => {}
        }
        match &self.kind {
            SegmentKind::Reasoning => Item::Reasoning(ReasoningItem {
                id,
                summary: Vec::new(),
                content: reasoning,
                encrypted_content: None,
                status: Some(status),
            }),
            SegmentKind::Text => Item::Message(MessageItem {
                id,
                role: ItemRole::Assistant,
                content: TextOr::Many(parts),
                status: Some(status),
                phase: None,
            }),
            SegmentKind::ToolCall { id: call_id, name } => Item::FunctionCall(FunctionCallItem {
                id,
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: self.text.clone(),
                status: Some(status),
            }),
        }
    }
}

/// Numbers the events of a stream.
struct NumberedEvents {
    frames: EventFrames,
    next: u64,
}

impl NumberedEvents {
    fn push(&mut self, event: &Event<'_>) {
        let numbered = NumberedEvent {
            event,
            sequence_number: self.next,
        };
        self.next += 1;
        self.frames.push(Some(event.name()), &numbered);
    }
}
