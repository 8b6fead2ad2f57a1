//! Harmony: messages with headers that name a channel and a recipient.
//!
//! `<|start|>assistant<|channel|>analysis<|message|>…<|end|>`; the prompt already contains the
//! first `<|start|>assistant`. A message for `functions.name` is a call. The recipient follows the
//! channel or the role.

use super::ParseOptions;
use super::json::{JsonReader, Step};
use super::matching::{Choice, Chosen, Scan};
use super::piece::Sink;

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const RECIPIENT: &str = "to=";
const FUNCTIONS: &str = "functions.";

/// A header names a role, a recipient, a channel and a content type; more is no header.
const MAX_HEADER: usize = 512;

#[derive(Debug)]
pub(super) struct Channels {
    state: ChannelState,
}

#[derive(Debug)]
enum ChannelState {
    /// Before a header; the next characters may start one.
    Opening(Choice<()>),
    /// Within a header, with the text read so far.
    Header(String),
    Body(Scan<Mark>, Part),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    End,
    /// A header that follows without an end.
    Header(&'static str),
}

/// The kind of a message's text.
#[derive(Debug)]
enum Part {
    Reasoning,
    Text,
    Call(CallPart),
}

#[derive(Debug)]
struct CallPart {
    name: String,
    /// The header and the space after it, in case the message is not a call.
    header: String,
    reader: JsonReader,
    progress: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Started,
    Ended,
    Broken,
}

impl Channels {
    pub fn new(in_reasoning: bool) -> Self {
        let state = if in_reasoning {
            body(Part::Reasoning)
        } else {
            opening()
        };
        Self { state }
    }

    pub fn push(&mut self, text: &str, sink: &mut Sink, start: &ParseOptions) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = match &mut self.state {
                ChannelState::Body(scan, part) => {
                    let plain = scan.plain(rest);
                    part.text(&rest[..plain], sink);
                    plain
                }
                ChannelState::Opening(_) | ChannelState::Header(_) => 0,
            };
            if plain == 0 {
                self.one(c, sink, start);
            }
            rest = &rest[plain.max(c.len_utf8())..];
        }
    }

    fn one(&mut self, c: char, sink: &mut Sink, start: &ParseOptions) {
        match &mut self.state {
            ChannelState::Opening(choice) => match choice.push(c) {
                Chosen::More => {}
                Chosen::Found(()) => {
                    let header = choice.take_text();
                    self.header(header, sink, start);
                }
                Chosen::Other => {
                    let text = choice.take_text() + c.encode_utf8(&mut [0; 4]);
                    self.state = body(Part::Text);
                    self.push(&text, sink, start);
                }
            },
            ChannelState::Header(header) => {
                header.push(c);
                let header = std::mem::take(header);
                self.header(header, sink, start);
            }
            ChannelState::Body(scan, part) => {
                let mut text = String::new();
                let found = scan.push(c, &mut text);
                part.text(&text, sink);
                match found {
                    None => {}
                    Some((_, Mark::End)) => {
                        part.end(sink);
                        self.state = opening();
                    }
                    Some((_, Mark::Header(header))) => {
                        part.end(sink);
                        self.state = ChannelState::Header(header.to_owned());
                    }
                }
            }
        }
    }

    pub fn finish(&mut self, sink: &mut Sink) {
        match &mut self.state {
            ChannelState::Opening(choice) => sink.text(&choice.take_text()),
            ChannelState::Header(text) => sink.text(text),
            ChannelState::Body(scan, part) => {
                part.text(&scan.take_held(), sink);
                part.finish(sink);
            }
        }
        self.state = opening();
    }

    /// Looks at a header as far as it has come.
    fn header(&mut self, header: String, sink: &mut Sink, start: &ParseOptions) {
        self.state = if header.ends_with(MESSAGE) {
            let part = Part::from_header(&header, start);
            if matches!(part, Part::Text) && recipient(&header).is_some() {
                sink.text(&header);
            }
            body(part)
        } else if header.len() > MAX_HEADER {
            sink.text(&header);
            body(Part::Text)
        } else {
            ChannelState::Header(header)
        };
    }
}

fn opening() -> ChannelState {
    let headers = [CHANNEL, START, RECIPIENT, MESSAGE];
    ChannelState::Opening(Choice::new(headers.map(|header| (header, ()))))
}

fn body(part: Part) -> ChannelState {
    let markers = vec![
        ("<|end|>", Mark::End),
        ("<|call|>", Mark::End),
        ("<|return|>", Mark::End),
        (START, Mark::Header(START)),
        (CHANNEL, Mark::Header(CHANNEL)),
    ];
    ChannelState::Body(Scan::new(markers), part)
}

/// The recipient of a message, if it is a tool.
fn recipient(header: &str) -> Option<&str> {
    let (_, rest) = header.rsplit_once(RECIPIENT)?;
    let name = rest.split(|c: char| c.is_whitespace() || c == '<').next()?;
    (!name.is_empty() && name != "user" && name != "assistant").then_some(name)
}

fn channel(header: &str) -> &str {
    let rest = header.rsplit_once(CHANNEL).map_or("", |(_, rest)| rest);
    let end = rest.find(|c: char| c.is_whitespace() || c == '<');
    &rest[..end.unwrap_or(rest.len())]
}

impl Part {
    fn from_header(header: &str, start: &ParseOptions) -> Self {
        let known = |name: &str| start.tools.iter().any(|tool| tool.name == name);
        let called = recipient(header).and_then(|to| match to.strip_prefix(FUNCTIONS) {
            Some(name) => Some(name),
            None => known(to).then_some(to),
        });
        match called {
            Some(name) if start.calls && !name.is_empty() => Self::Call(CallPart {
                name: name.to_owned(),
                header: header.to_owned(),
                reader: JsonReader::new(),
                progress: Progress::Waiting,
            }),
            _ if channel(header) == "analysis" => Self::Reasoning,
            _ => Self::Text,
        }
    }

    fn text(&mut self, text: &str, sink: &mut Sink) {
        match self {
            Self::Reasoning => sink.reasoning(text),
            Self::Text => sink.text(text),
            Self::Call(call) => {
                let mut rest = text.chars();
                while let Some(c) = rest.next() {
                    if !call.push(c, sink) {
                        let header = std::mem::take(&mut call.header);
                        *self = Self::Text;
                        sink.text(&header);
                        sink.text(c.encode_utf8(&mut [0; 4]));
                        return self.text(rest.as_str(), sink);
                    }
                }
            }
        }
    }

    /// The message has ended: a call without arguments is one too.
    fn end(&mut self, sink: &mut Sink) {
        if let Self::Call(call) = self
            && call.progress == Progress::Waiting
        {
            sink.start(&call.name, None);
            sink.arguments("{}");
            sink.end();
            call.progress = Progress::Ended;
        }
        self.finish(sink);
    }

    /// The text ended, possibly within a message.
    fn finish(&mut self, sink: &mut Sink) {
        if let Self::Call(call) = self {
            match call.progress {
                Progress::Waiting => sink.text(&call.header),
                Progress::Started => sink.arguments(&call.reader.take_held()),
                Progress::Ended | Progress::Broken => {}
            }
        }
    }
}

impl CallPart {
    /// Consumes the next character, or reports that this is not a call.
    fn push(&mut self, c: char, sink: &mut Sink) -> bool {
        match self.progress {
            Progress::Waiting if c.is_whitespace() => {
                self.header.push(c);
                return true;
            }
            Progress::Waiting if c != '{' => return false,
            Progress::Waiting => {
                sink.start(&self.name, None);
                self.progress = Progress::Started;
            }
            Progress::Ended if c.is_whitespace() => return true,
            Progress::Ended => {
                sink.text(c.encode_utf8(&mut [0; 4]));
                return true;
            }
            Progress::Broken => {
                sink.arguments(c.encode_utf8(&mut [0; 4]));
                return true;
            }
            Progress::Started => {}
        }
        let mut out = String::new();
        let step = self.reader.push(c, &mut out);
        sink.arguments(&out);
        match step {
            Step::More => {}
            Step::Done => {
                sink.end();
                self.progress = Progress::Ended;
            }
            Step::DoneBefore | Step::Broken => {
                sink.arguments(&self.reader.take_held());
                sink.arguments(c.encode_utf8(&mut [0; 4]));
                self.progress = Progress::Broken;
            }
        }
        true
    }
}
