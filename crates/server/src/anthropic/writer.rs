//! A reply as a message: its blocks, and the events that tell of them.

use bytes::{Bytes, BytesMut};
use loquat_engine::FinishReason;
use serde_json::{Map, Value};

use super::response::{Block, Delta, Ending, Event, Message, SIGNATURE, StopReason};
use crate::chat_turn::{End, Said};
use crate::frames;
use crate::segments::{Segment, Segments, Step};

/// Writes one message, whole or as a stream.
pub struct Writer {
    message: Message,
    segments: Segments,
    open: Option<Open>,
    /// Blocks begun so far.
    begun: usize,
    stop_sequences: Vec<String>,
    hides_thinking: bool,
    streams: bool,
    frames: BytesMut,
}

/// What a request says of how its reply is told.
pub struct Manner {
    pub stop_sequences: Vec<String>,
    pub hides_thinking: bool,
    pub streams: bool,
}

struct Open {
    segment: Segment,
    text: String,
}

impl Writer {
    pub fn new(message: Message, manner: Manner) -> Self {
        let Manner {
            stop_sequences,
            hides_thinking,
            streams,
        } = manner;
        Self {
            message,
            segments: Segments::default(),
            open: None,
            begun: 0,
            stop_sequences,
            hides_thinking,
            streams,
            frames: BytesMut::new(),
        }
    }

    /// How a stream begins.
    pub fn start(&self) -> Bytes {
        let message = &self.message;
        let mut frames = BytesMut::new();
        for event in [Event::MessageStart { message }, Event::Ping {}] {
            frames.extend_from_slice(&frames::event(Some(event.name()), &event));
        }
        frames.freeze()
    }

    /// Takes news of the reply; gives the events of a stream.
    pub fn take(&mut self, said: Said) -> Bytes {
        for event in said.events {
            for step in self.segments.take(event) {
                self.step(step);
            }
        }
        if let Some(end) = said.end {
            self.end(&end);
        }
        self.frames.split().freeze()
    }

    /// The message as far as it has come.
    pub fn into_message(self) -> Message {
        self.message
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin(segment) => self.begin(segment),
            Step::More(text) => self.more(&text),
            Step::End { whole } => self.close(whole),
        }
    }

    fn begin(&mut self, segment: Segment) {
        let index = self.begun;
        self.begun += 1;
        let content_block = block(&segment, String::new(), Map::new());
        self.open = Some(Open {
            segment,
            text: String::new(),
        });
        self.tell(&Event::ContentBlockStart {
            index,
            content_block,
        });
    }

    fn more(&mut self, text: &str) {
        let Some(open) = &mut self.open else {
            return;
        };
        let delta = match open.segment {
            Segment::Thinking if self.hides_thinking => return,
            Segment::Thinking => Delta::Thinking { thinking: text },
            Segment::Text => Delta::Text { text },
            Segment::Call { .. } => Delta::Input { partial_json: text },
        };
        open.text.push_str(text);
        self.delta(delta);
    }

    fn close(&mut self, whole: bool) {
        let Some(Open { segment, text }) = self.open.take() else {
            return;
        };
        if segment == Segment::Thinking {
            self.delta(Delta::Signature {
                signature: SIGNATURE,
            });
        }
        let index = self.begun - 1;
        self.tell(&Event::ContentBlockStop { index });
        let input = match segment {
            Segment::Call { .. } => input(&text).filter(|_| whole),
            Segment::Thinking | Segment::Text => Some(Map::new()),
        };
        // A call that was cut short has no input that anybody should be called with.
        if let Some(input) = input {
            self.message.content.push(block(&segment, text, input));
        }
    }

    fn end(&mut self, end: &End) {
        let whole = end.reason != FinishReason::Length;
        for step in self.segments.finish(whole) {
            self.step(step);
        }
        let message = &mut self.message;
        let called = |block: &Block| matches!(block, Block::ToolUse { .. });
        let calls = message.content.iter().any(called);
        message.stop_reason = Some(StopReason::of(end.reason, calls));
        if let FinishReason::StopString(index) = end.reason {
            message.stop_sequence = self.stop_sequences.get(index).cloned();
        }
        message.usage = end.usage.into();
        let (stop_sequence, usage) = (message.stop_sequence.clone(), message.usage);
        let delta = Ending {
            stop_reason: message.stop_reason,
            stop_sequence: stop_sequence.as_deref(),
        };
        self.tell(&Event::MessageDelta { delta, usage });
        self.tell(&Event::MessageStop {});
    }

    fn delta(&mut self, delta: Delta<'_>) {
        let index = self.begun - 1;
        self.tell(&Event::ContentBlockDelta { index, delta });
    }

    fn tell(&mut self, event: &Event<'_>) {
        if self.streams {
            let frame = frames::event(Some(event.name()), event);
            self.frames.extend_from_slice(&frame);
        }
    }
}

fn block(segment: &Segment, text: String, input: Map<String, Value>) -> Block {
    match segment {
        Segment::Thinking => Block::Thinking {
            thinking: text,
            signature: SIGNATURE,
        },
        Segment::Text => Block::Text {
            text,
            citations: None,
        },
        Segment::Call { id, name } => Block::ToolUse {
            id: id.clone(),
            name: name.clone(),
            input,
        },
    }
}

/// A call's input; none at all is an empty one.
fn input(json: &str) -> Option<Map<String, Value>> {
    match json.trim() {
        "" => Some(Map::new()),
        json => serde_json::from_str(json).ok(),
    }
}
