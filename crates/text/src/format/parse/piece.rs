//! What comes out of the parser.

/// A part of a model's output. Adjacent parts of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    /// A call begins. The identifier is the model's own, where it writes one ahead of the
    /// arguments.
    CallStart {
        index: usize,
        name: String,
        id: Option<String>,
    },
    /// The next fragment of a call's arguments.
    CallArguments {
        index: usize,
        json: String,
    },
    /// The call is whole and its arguments are a JSON object. A call that was cut off or broken
    /// has no end: its arguments are what the model wrote, as far as it came.
    CallEnd {
        index: usize,
    },
}

/// Collects pieces, joining fragments of one kind.
#[derive(Debug, Default)]
pub(super) struct Sink {
    pieces: Vec<Piece>,
    calls: usize,
}

impl Sink {
    pub fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    pub fn text(&mut self, fragment: &str) {
        match self.pieces.last_mut() {
            _ if fragment.is_empty() => {}
            Some(Piece::Text(text)) => text.push_str(fragment),
            _ => self.pieces.push(Piece::Text(fragment.to_owned())),
        }
    }

    pub fn reasoning(&mut self, fragment: &str) {
        match self.pieces.last_mut() {
            _ if fragment.is_empty() => {}
            Some(Piece::Reasoning(text)) => text.push_str(fragment),
            _ => self.pieces.push(Piece::Reasoning(fragment.to_owned())),
        }
    }

    pub fn start(&mut self, name: &str, id: Option<String>) {
        self.pieces.push(Piece::CallStart {
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
            Some(Piece::CallArguments { json, .. }) => json.push_str(fragment),
            _ => self.pieces.push(Piece::CallArguments {
                index: self.calls.saturating_sub(1),
                json: fragment.to_owned(),
            }),
        }
    }

    /// The call that was started last is whole.
    pub fn end(&mut self) {
        self.pieces.push(Piece::CallEnd {
            index: self.calls.saturating_sub(1),
        });
    }
}
