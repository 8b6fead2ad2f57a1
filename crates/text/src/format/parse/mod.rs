//! The parser: text in, pieces out.

mod body;
mod call;
mod channels;
mod inline;
mod json;
mod json_call;
mod literal;
mod matching;
mod named_call;
mod piece;
mod python;
mod python_call;
pub(super) mod schema;
mod section;
mod tagged_call;

pub use piece::Piece;
pub use schema::ToolSignature;

use self::channels::Channels;
use self::inline::Inline;
use self::piece::Sink;
use super::OutputFormat;
use super::data::Framing;

/// Where the output begins, and what may come.
#[derive(Debug, Clone, Default)]
pub struct ParseOptions {
    /// Whether the prompt ended within thinking.
    pub in_reasoning: bool,
    /// Whether calls are looked for; if not, they are text like any other.
    pub calls: bool,
    /// The tools there are. The types of their parameters decide what raw values stand for.
    pub tools: Vec<ToolSignature>,
    /// Whether a call is sure to come first, so that, in a format without markers, it need not be
    /// told by the name of a tool that exists.
    pub calls_forced: bool,
}

/// Takes a model's output apart into thinking, text and calls.
///
/// Where the text is cut does not matter: pieces of one kind, joined, are the same for every cut.
/// Nothing is lost. What begins like a call but is none comes back as text, to the letter, unless a
/// call had to come; a call
/// that breaks after its beginning was sent gets the rest as arguments, and no
/// [`Piece::CallEnd`].
///
/// To go on from an answer that was begun already, push that beginning first and drop what comes.
#[derive(Debug)]
pub struct OutputParser {
    start: ParseOptions,
    machine: Machine,
    sink: Sink,
}

#[derive(Debug)]
enum Machine {
    Inline(Inline),
    Channels(Channels),
}

impl OutputParser {
    pub fn new(format: OutputFormat, start: ParseOptions) -> Self {
        let machine = match format.framing() {
            Framing::Inline => Machine::Inline(Inline::new(format, &start)),
            Framing::Channels => Machine::Channels(Channels::new(start.in_reasoning)),
        };
        Self {
            start,
            machine,
            sink: Sink::default(),
        }
    }

    /// Takes the next text, cut anywhere.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        match &mut self.machine {
            Machine::Inline(inline) => inline.push(text, &mut self.sink, &self.start),
            Machine::Channels(channels) => channels.push(text, &mut self.sink, &self.start),
        }
        self.sink.take()
    }

    /// The output has ended: gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        match &mut self.machine {
            Machine::Inline(inline) => inline.finish(&mut self.sink),
            Machine::Channels(channels) => channels.finish(&mut self.sink),
        }
        let mut pieces = self.sink.take();
        if self.start.calls_forced {
            // Cut short before it had a name; nothing that anybody said.
            pieces.retain(|piece| !matches!(piece, Piece::Text(_)));
        }
        pieces
    }
}
