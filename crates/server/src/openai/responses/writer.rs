//! A reply as a response: its items, and the events that tell of them.

use bytes::{Bytes, BytesMut};
use loquat_chat::{ChatContext, ReplyEvent};
use loquat_engine::{FinishReason, TokenInfo};
use loquat_text::Tokenizer;

use super::events::{Event, Numbered, Piece, Place};
use super::item::{
    FunctionCallItem, Item, MessageItem, OutputText, Part, ReasoningItem, Speaker, Status, Thought,
};
use super::object::{IncompleteDetails, ResponseObject, ResponseStatus, ResponseUsage};
use crate::chat_turn::{End, Said};
use crate::error::ApiError;
use crate::openai::attribution::Attribution;
use crate::openai::logprobs::{ChatLogprobs, TokenLogprob};
use crate::openai::{fresh_id, now};
use crate::segments::{Segment, Segments, Step};
use crate::{frames, union::TextOr};

/// Writes one response, whole or as a stream.
pub struct Writer {
    response: ResponseObject,
    tokenizer: Tokenizer,
    /// Whether the request asks how likely words were.
    scores: bool,
    attribution: Attribution,
    segments: Segments,
    open: Option<Open>,
    /// Of words that no event told yet.
    logprobs: Vec<TokenLogprob>,
    teller: Teller,
}

impl Writer {
    pub fn new(response: ResponseObject, chat: &ChatContext, scores: bool, streams: bool) -> Self {
        Self {
            response,
            tokenizer: chat.tokenizer().clone(),
            scores,
            attribution: Attribution::new(chat),
            segments: Segments::default(),
            open: None,
            logprobs: Vec::new(),
            teller: Teller {
                streams,
                ..Teller::default()
            },
        }
    }

    /// How a stream begins.
    pub fn start(&mut self) -> Bytes {
        let response = &self.response;
        self.teller.tell(&Event::Created { response });
        self.teller.tell(&Event::InProgress { response });
        self.teller.told()
    }

    /// Takes news of the reply; gives the events of a stream.
    pub fn take(&mut self, said: Said) -> Bytes {
        let Said {
            choice: _,
            events,
            tokens,
            end,
        } = said;
        let mut tokens = Some(tokens);
        for event in events {
            let words = self.attribute(tokens.take(), std::slice::from_ref(&event));
            self.score(&event, &words);
            for step in self.segments.take(event) {
                self.step(step);
            }
        }
        self.attribute(tokens, &[]);
        if let Some(end) = end {
            self.end(&end);
        }
        self.teller.told()
    }

    /// The reply ends here, by a failure.
    pub fn fail(&mut self, error: &ApiError) -> Bytes {
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(error.into());
        self.teller.tell(&Event::Error {
            code: error.code,
            message: &error.message,
            param: error.param.as_deref(),
        });
        let response = &self.response;
        self.teller.tell(&Event::Failed { response });
        self.teller.told()
    }

    /// The response as far as it has come.
    pub fn response(&self) -> &ResponseObject {
        &self.response
    }

    fn attribute(
        &mut self,
        tokens: Option<Vec<TokenInfo>>,
        events: &[ReplyEvent],
    ) -> Vec<TokenInfo> {
        self.attribution.take(tokens.unwrap_or_default(), events)
    }

    fn score(&mut self, event: &ReplyEvent, words: &[TokenInfo]) {
        match event {
            ReplyEvent::Text(_) if self.scores => {
                let scored = ChatLogprobs::new(words, &self.tokenizer);
                self.logprobs.extend(scored.content);
            }
            // Space before a call is no words.
            _ => self.logprobs.clear(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin(segment) => self.begin(segment),
            Step::More(text) => self.more(&text),
            Step::End { whole } => self.close(whole),
        }
    }

    fn begin(&mut self, segment: Segment) {
        let open = Open::new(segment, self.response.output.len());
        let output_index = open.index;
        let item = open.item(Status::InProgress, Vec::new(), Vec::new());
        self.teller.tell(&Event::ItemAdded {
            output_index,
            item: &item,
        });
        open.with_piece(|place, part| {
            self.teller.tell(&Event::PartAdded {
                place,
                content_index: 0,
                part,
            });
        });
        self.open = Some(open);
    }

    fn more(&mut self, delta: &str) {
        let Some(open) = &mut self.open else {
            return;
        };
        let logprobs = std::mem::take(&mut self.logprobs);
        let place = open.place();
        let content_index = 0;
        self.teller.tell(&match open.segment {
            Segment::Thinking => Event::ReasoningDelta {
                place,
                content_index,
                delta,
            },
            Segment::Text => Event::TextDelta {
                place,
                content_index,
                delta,
                logprobs: &logprobs,
            },
            Segment::Call { .. } => Event::ArgumentsDelta { place, delta },
        });
        open.text.push_str(delta);
        open.logprobs.extend(logprobs);
    }

    fn close(&mut self, whole: bool) {
        let Some(open) = self.open.take() else {
            return;
        };
        let place = open.place();
        let (content_index, text) = (0, open.text.as_str());
        self.teller.tell(&match &open.segment {
            Segment::Thinking => Event::ReasoningDone {
                place,
                content_index,
                text,
            },
            Segment::Text => Event::TextDone {
                place,
                content_index,
                text,
                logprobs: &open.logprobs,
            },
            Segment::Call { id: _, name } => Event::ArgumentsDone {
                place,
                name,
                arguments: text,
            },
        });
        open.with_piece(|place, part| {
            self.teller.tell(&Event::PartDone {
                place,
                content_index,
                part,
            });
        });
        let status = if whole {
            Status::Completed
        } else {
            Status::Incomplete
        };
        let output_index = open.index;
        let item = open.whole(status);
        self.teller.tell(&Event::ItemDone {
            output_index,
            item: &item,
        });
        self.response.output.push(item);
    }

    fn end(&mut self, end: &End) {
        let whole = end.reason != FinishReason::Length;
        for step in self.segments.finish(whole) {
            self.step(step);
        }
        let response = &mut self.response;
        let reasoning_tokens = self.attribution.reasoning_tokens();
        response.usage = Some(ResponseUsage::new(end.usage, reasoning_tokens));
        if whole {
            response.status = ResponseStatus::Completed;
            response.completed_at = Some(now());
            self.teller.tell(&Event::Completed { response });
        } else {
            response.status = ResponseStatus::Incomplete;
            response.incomplete_details = Some(IncompleteDetails {
                reason: "max_output_tokens",
            });
            self.teller.tell(&Event::Incomplete { response });
        }
    }
}

/// An item that is being written.
struct Open {
    id: String,
    index: usize,
    segment: Segment,
    text: String,
    logprobs: Vec<TokenLogprob>,
}

impl Open {
    fn new(segment: Segment, index: usize) -> Self {
        let prefix = match segment {
            Segment::Thinking => "rs_",
            Segment::Text => "msg_",
            Segment::Call { .. } => "fc_",
        };
        Self {
            id: fresh_id(prefix),
            index,
            segment,
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    fn place(&self) -> Place<'_> {
        Place {
            item_id: &self.id,
            output_index: self.index,
        }
    }

    fn words(&self) -> Part {
        Part::OutputText(OutputText {
            text: self.text.clone(),
            annotations: Vec::new(),
            logprobs: self.logprobs.clone(),
        })
    }

    fn thought(&self) -> Thought {
        Thought::ReasoningText {
            text: self.text.clone(),
        }
    }

    /// Calls `tell` with the one piece that words and thoughts have; calls have none.
    fn with_piece(&self, tell: impl FnOnce(Place<'_>, Piece<'_>)) {
        match self.segment {
            Segment::Thinking => tell(self.place(), Piece::Thought(&self.thought())),
            Segment::Text => tell(self.place(), Piece::Words(&self.words())),
            Segment::Call { .. } => {}
        }
    }

    fn whole(&self, status: Status) -> Item {
        match self.segment {
            Segment::Thinking => self.item(status, Vec::new(), vec![self.thought()]),
            Segment::Text => self.item(status, vec![self.words()], Vec::new()),
            Segment::Call { .. } => self.item(status, Vec::new(), Vec::new()),
        }
    }

    fn item(&self, status: Status, words: Vec<Part>, thoughts: Vec<Thought>) -> Item {
        let id = Some(self.id.clone());
        match &self.segment {
            Segment::Thinking => Item::Reasoning(ReasoningItem {
                id,
                summary: Vec::new(),
                content: thoughts,
                encrypted_content: None,
                status: Some(status),
            }),
            Segment::Text => Item::Message(MessageItem {
                id,
                role: Speaker::Assistant,
                content: TextOr::Many(words),
                status: Some(status),
                phase: None,
            }),
            Segment::Call { id: call_id, name } => Item::FunctionCall(FunctionCallItem {
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
#[derive(Default)]
struct Teller {
    streams: bool,
    next: u64,
    frames: BytesMut,
}

impl Teller {
    fn tell(&mut self, event: &Event<'_>) {
        if !self.streams {
            return;
        }
        let numbered = Numbered {
            event,
            sequence_number: self.next,
        };
        self.next += 1;
        let frame = frames::event(Some(event.name()), &numbered);
        self.frames.extend_from_slice(&frame);
    }

    fn told(&mut self) -> Bytes {
        self.frames.split().freeze()
    }
}
