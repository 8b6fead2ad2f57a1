//! Renders a reply as a message: its blocks, and the events of its stream.

use bytes::Bytes;
use loquat_chat::Finish;
use loquat_engine::{FinishReason, Usage};
use serde_json::{Map, Value};

use super::response::{Block, Delta, Event, Message, MessageEnd, SIGNATURE, StopReason};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::reply::{
    ChoiceDelta, EventFrames, ReplySegments, ReplyWriter, Segment, SegmentEvent, SegmentKind,
};

pub struct MessageWriter {
    segments: ReplySegments,
    message: Message,
    options: WriterOptions,
    frames: EventFrames,
}

/// How a request wants its reply.
pub struct WriterOptions {
    pub stop_sequences: Vec<String>,
    pub hides_thinking: bool,
    pub streams: bool,
}

impl MessageWriter {
    pub fn new(message: Message, options: WriterOptions) -> Self {
        Self {
            segments: ReplySegments::default(),
            message,
            frames: EventFrames::new(options.streams),
            options,
        }
    }

    fn push(&mut self, event: &Event<'_>) {
        self.frames.push(Some(event.name()), event);
    }

    fn write_event(&mut self, event: SegmentEvent) {
        match event {
            SegmentEvent::Begin { index, kind } => {
                let content_block = block(&kind, String::new(), Map::new());
                self.push(&Event::ContentBlockStart {
                    index,
                    content_block,
                });
            }
            SegmentEvent::Delta {
                index, kind, text, ..
            } => {
                let delta = match kind {
                    SegmentKind::Reasoning if self.options.hides_thinking => return,
                    SegmentKind::Reasoning => Delta::Thinking { thinking: &text },
                    SegmentKind::Text => Delta::Text { text: &text },
                    SegmentKind::ToolCall { .. } => Delta::Input {
                        partial_json: &text,
                    },
                };
                self.push(&Event::ContentBlockDelta { index, delta });
            }
            SegmentEvent::End(segment) => self.end_block(segment),
        }
    }

    fn end_block(&mut self, segment: Segment) {
        let Segment {
            index,
            kind,
            mut text,
            complete,
            ..
        } = segment;
        if kind == SegmentKind::Reasoning {
            if self.options.hides_thinking {
                text.clear();
            }
            let delta = Delta::Signature {
                signature: SIGNATURE,
            };
            self.push(&Event::ContentBlockDelta { index, delta });
        }
        self.push(&Event::ContentBlockStop { index });
        let input = match kind {
            SegmentKind::ToolCall { .. } => input(&text).filter(|_| complete),
            SegmentKind::Reasoning | SegmentKind::Text => Some(Map::new()),
        };
        // A call that was cut has no valid input.
        if let Some(input) = input {
            self.message.content.push(block(&kind, text, input));
        }
    }

    fn end_message(&mut self, finish: &Finish) {
        let message = &mut self.message;
        let is_call = |block: &Block| matches!(block, Block::ToolUse { .. });
        let has_calls = message.content.iter().any(is_call);
        message.stop_reason = Some(StopReason::new(finish.reason, has_calls));
        if let FinishReason::StopString(index) = finish.reason {
            message.stop_sequence = self.options.stop_sequences.get(index).cloned();
        }
        message.usage = finish.usage.into();
        let (stop_sequence, usage) = (message.stop_sequence.clone(), message.usage);
        let delta = MessageEnd {
            stop_reason: message.stop_reason,
            stop_sequence: stop_sequence.as_deref(),
        };
        self.push(&Event::MessageDelta { delta, usage });
        self.push(&Event::MessageStop {});
    }
}

impl ReplyWriter for MessageWriter {
    type Answer = Message;

    fn start(&mut self) -> Bytes {
        let message = self.message.clone();
        self.push(&Event::MessageStart { message: &message });
        self.push(&Event::Ping {});
        self.frames.take()
    }

    fn write(&mut self, delta: ChoiceDelta) -> Bytes {
        let finish = delta.reply.finish.clone();
        for event in self.segments.consume(delta.reply) {
            self.write_event(event);
        }
        if let Some(finish) = finish {
            self.end_message(&finish);
        }
        self.frames.take()
    }

    fn fail(&mut self, error: &ApiError, usage: Usage) -> Bytes {
        for event in self.segments.break_off() {
            self.write_event(event);
        }
        let delta = MessageEnd {
            stop_reason: None,
            stop_sequence: None,
        };
        let usage = usage.into();
        self.push(&Event::MessageDelta { delta, usage });
        let before = self.frames.take();
        let error = Dialect::Anthropic.error_frame(error);
        self.push(&Event::MessageStop {});
        [before, error, self.frames.take()].concat().into()
    }

    fn into_answer(self) -> Result<Message, ApiError> {
        Ok(self.message)
    }
}

fn block(kind: &SegmentKind, text: String, input: Map<String, Value>) -> Block {
    match kind {
        SegmentKind::Reasoning => Block::Thinking {
            thinking: text,
            signature: SIGNATURE,
        },
        SegmentKind::Text => Block::Text { text },
        SegmentKind::ToolCall { id, name } => Block::ToolUse {
            id: id.clone(),
            name: name.clone(),
            input,
        },
    }
}

/// A call's input; no text is an empty object.
fn input(json: &str) -> Option<Map<String, Value>> {
    match json.trim() {
        "" => Some(Map::new()),
        json => serde_json::from_str(json).ok(),
    }
}
