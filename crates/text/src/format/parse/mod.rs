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

pub use piece::OutputPiece;
pub use schema::ToolSignature;

use self::channels::Channels;
use self::inline::Inline;
use self::piece::Sink;
use super::OutputFormat;
use super::data::Framing;

/// How to parse an output.
#[derive(Debug, Clone, Default)]
pub struct ParseOptions {
    /// Whether the prompt ended within thinking.
    pub in_reasoning: bool,
    /// Whether calls are looked for; if not, they are text like any other.
    pub calls: bool,
    /// The offered tools. Their parameter types decide how raw values are interpreted.
    pub tools: Vec<ToolSignature>,
    /// Whether a call must come first, so that a format without markers accepts names of unknown
    /// tools.
    pub calls_forced: bool,
}

/// Parses a model's output into reasoning, text and calls.
///
/// The result does not depend on how the text is split: pieces of one kind, joined, are always the
/// same. No text is lost. Text that starts like a call but is not one is returned verbatim, unless
/// a call was forced. A call that becomes invalid after its start was sent gets the rest as
/// arguments and no [`OutputPiece::CallEnd`].
///
/// To continue an existing answer, push its text first and discard the pieces.
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
    /// A parser at the start of an output.
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

    /// Consumes the next text, split anywhere.
    pub fn push(&mut self, text: &str) -> Vec<OutputPiece> {
        match &mut self.machine {
            Machine::Inline(inline) => inline.push(text, &mut self.sink, &self.start),
            Machine::Channels(channels) => channels.push(text, &mut self.sink, &self.start),
        }
        self.sink.take()
    }

    /// Ends the output. Returns what was held back.
    pub fn finish(&mut self) -> Vec<OutputPiece> {
        match &mut self.machine {
            Machine::Inline(inline) => inline.finish(&mut self.sink),
            Machine::Channels(channels) => channels.finish(&mut self.sink),
        }
        let mut pieces = self.sink.take();
        if self.start.calls_forced {
            // A forced call that ended before its name is not text.
            pieces.retain(|piece| !matches!(piece, OutputPiece::Text(_)));
        }
        pieces
    }
}
