//! Renders a reply as a response: its items, and the events of its stream.

use std::sync::Arc;

use bytes::Bytes;
use loquat_chat::{ChatContext, Finish};
use loquat_engine::{FinishReason, TokenInfo, Usage};
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
        let added = Event::Item {
            output_index: index,
            item: &item,
        };
        self.events.push("response.output_item.added", &added);
        if let Some(part) = output.part() {
            let added = output.part_event(&part);
            self.events.push("response.content_part.added", &added);
        }
    }

    fn delta(&mut self, index: usize, kind: &SegmentKind, delta: &str, logprobs: &[TokenLogprob]) {
        let (name, logprobs) = match kind {
            SegmentKind::Reasoning => ("response.reasoning_text.delta", None),
            SegmentKind::Text => ("response.output_text.delta", Some(logprobs)),
            SegmentKind::ToolCall { .. } => ("response.function_call_arguments.delta", None),
        };
        let event = Event::Delta {
            position: ItemPosition::new(&self.item_id, index, kind),
            delta,
            logprobs,
        };
        self.events.push(name, &event);
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
        let (name, done) = output.done_event();
        self.events.push(name, &done);
        if let Some(part) = output.part() {
            let done = output.part_event(&part);
            self.events.push("response.content_part.done", &done);
        }
        let status = if complete {
            ItemStatus::Completed
        } else {
            ItemStatus::Incomplete
        };
        let item = output.item(status, true);
        let done = Event::Item {
            output_index: index,
            item: &item,
        };
        self.events.push("response.output_item.done", &done);
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
            let event = Event::Response { response };
            self.events.push("response.incomplete", &event);
        } else {
            response.status = ResponseStatus::Completed;
            response.completed_at = Some(now());
            let event = Event::Response { response };
            self.events.push("response.completed", &event);
        }
        // Before the client sees the end, since it may continue from the response at once.
        self.storage.store(response);
    }
}

impl ReplyWriter for ResponseWriter {
    type Answer = ResponseObject;

    fn start(&mut self) -> Bytes {
        let event = Event::Response {
            response: &self.response,
        };
        self.events.push("response.created", &event);
        self.events.push("response.in_progress", &event);
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

    /// Keeps what was delivered: its items, the last one incomplete, and their usage.
    fn fail(&mut self, error: &ApiError, usage: Usage) -> Bytes {
        for event in self.segments.break_off() {
            self.write_event(event);
        }
        let reasoning_tokens = self.segments.reasoning_tokens().unwrap_or(0);
        self.response.usage = Some(ResponseUsage::new(usage, reasoning_tokens));
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(error.into());
        self.storage.store(&self.response);
        let event = Event::Error {
            code: error.code,
            message: &error.message,
            param: error.param.as_ref(),
        };
        self.events.push("error", &event);
        let event = Event::Response {
            response: &self.response,
        };
        self.events.push("response.failed", &event);
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
        ItemPosition::new(self.id, self.index, &self.kind)
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

    fn part_event<'b>(&'b self, part: &'b ContentPart) -> Event<'b> {
        Event::Part {
            position: self.position(),
            part,
        }
    }

    /// The event of the whole text, and its name.
    fn done_event(&self) -> (&'static str, Event<'_>) {
        let (position, text) = (self.position(), self.text.as_str());
        let text_done = |logprobs| Event::TextDone {
            position,
            text,
            logprobs,
        };
        match &self.kind {
            SegmentKind::Reasoning => ("response.reasoning_text.done", text_done(None)),
            SegmentKind::Text => {
                let logprobs = Some(self.logprobs.as_slice());
                ("response.output_text.done", text_done(logprobs))
            }
            SegmentKind::ToolCall { id: _, name } => {
                let event = Event::ArgumentsDone {
                    position,
                    name,
                    arguments: text,
                };
                ("response.function_call_arguments.done", event)
            }
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
    fn push(&mut self, name: &'static str, event: &Event<'_>) {
        let numbered = NumberedEvent {
            r#type: name,
            event,
            sequence_number: self.next,
        };
        self.next += 1;
        self.frames.push(Some(name), &numbered);
    }
}
