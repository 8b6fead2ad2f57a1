//! The parser's output.

/// A part of a model's output. Adjacent parts of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPiece {
    /// Reasoning before the answer.
    Reasoning(String),
    /// The answer.
    Text(String),
    /// A call starts. The identifier is the model's, if it writes one before the arguments.
    CallStart {
        /// Counts the output's calls from 0.
        index: usize,
        /// The name of the tool.
        name: String,
        /// The call's identifier.
        id: Option<String>,
    },
    /// The next fragment of a call's arguments.
    CallArguments {
        /// The call's index.
        index: usize,
        /// Text of a JSON object.
        json: String,
    },
    /// The call is complete and its arguments are a JSON object. A truncated or invalid call has no
    /// end; its arguments are the text the model wrote.
    CallEnd {
        /// The call's index.
        index: usize,
    },
}

/// Collects pieces, joining fragments of one kind.
#[derive(Debug, Default)]
pub(super) struct Sink {
    pieces: Vec<OutputPiece>,
    calls: usize,
}

impl Sink {
    pub fn take(&mut self) -> Vec<OutputPiece> {
        std::mem::take(&mut self.pieces)
    }

    pub fn text(&mut self, fragment: &str) {
        match self.pieces.last_mut() {
            _ if fragment.is_empty() => {}
            Some(OutputPiece::Text(text)) => text.push_str(fragment),
            _ => self.pieces.push(OutputPiece::Text(fragment.to_owned())),
        }
    }

    pub fn reasoning(&mut self, fragment: &str) {
        match self.pieces.last_mut() {
            _ if fragment.is_empty() => {}
            Some(OutputPiece::Reasoning(text)) => text.push_str(fragment),
            _ => self
                .pieces
                .push(OutputPiece::Reasoning(fragment.to_owned())),
        }
    }

    pub fn start(&mut self, name: &str, id: Option<String>) {
        self.pieces.push(OutputPiece::CallStart {
            index: self.calls,
            name: name.to_owned(),
            id,
        });
        self.calls += 1;
    }

    /// A fragment for the call that was started last.
    pub fn arguments(&mut self, fragment: &str) {
        match self.pieces.last_mut() {
            _ if fragment.is_empty() => {}
            Some(OutputPiece::CallArguments { json, .. }) => json.push_str(fragment),
            _ => self.pieces.push(OutputPiece::CallArguments {
                index: self.calls.saturating_sub(1),
                json: fragment.to_owned(),
            }),
        }
    }

    /// The last started call is complete.
    pub fn end(&mut self) {
        self.pieces.push(OutputPiece::CallEnd {
            index: self.calls.saturating_sub(1),
        });
    }
}
