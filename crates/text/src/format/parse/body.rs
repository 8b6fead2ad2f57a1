//! Thinking and answer: the text outside calls, and the markers in it.

use super::super::OutputFormat;
use super::matching::Scan;
use super::piece::Sink;
use super::section::Entry;

/// A marker in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    ThinkingOpen,
    ThinkingClose,
    /// Around the answer, and no part of it.
    Silent,
    Calls(Entry),
}

/// The parser outside of calls.
///
/// White space is held back until the next character decides: before a marker it belongs to the
/// format. So do line breaks after a marker.
#[derive(Debug)]
pub(super) struct Body {
    pub thinking: bool,
    /// Whether this part has sent no text so far.
    pub fresh: bool,
    pub scan: Scan<Mark>,
    space: String,
    after_marker: bool,
}

impl Body {
    pub fn thinking(format: &OutputFormat, calls: bool) -> Self {
        let mut markers = Vec::new();
        if let Some(reasoning) = format.reasoning {
            markers.extend(reasoning.close.iter().map(|it| (*it, Mark::ThinkingClose)));
            markers.extend(reasoning.open.iter().map(|it| (*it, Mark::ThinkingOpen)));
        }
        if calls && format.calls.is_some_and(|calls| calls.ends_reasoning) {
            markers.extend(entries(format));
        }
        Self::new(true, markers)
    }

    pub fn answer(format: &OutputFormat, calls: bool) -> Self {
        let mut markers = Vec::new();
        if let Some(reasoning) = format.reasoning {
            markers.extend(reasoning.open.iter().map(|it| (*it, Mark::ThinkingOpen)));
            markers.extend(reasoning.close.iter().map(|it| (*it, Mark::ThinkingClose)));
            markers.extend(reasoning.silent.iter().map(|it| (*it, Mark::Silent)));
        }
        if calls {
            markers.extend(entries(format));
        }
        Self::new(false, markers)
    }

    fn new(thinking: bool, markers: Vec<(&'static str, Mark)>) -> Self {
        Self {
            thinking,
            fresh: true,
            scan: Scan::new(markers),
            space: String::new(),
            after_marker: false,
        }
    }

    /// A marker was found: the white space around it belongs to the format.
    pub fn skip_breaks(mut self) -> Self {
        self.after_marker = true;
        self
    }

    /// Consumes text that is not a marker.
    pub fn text(&mut self, text: &str, sink: &mut Sink) {
        let mut rest = text;
        if self.after_marker {
            rest = rest.trim_start_matches(['\n', '\r']);
            self.after_marker = rest.is_empty();
        }
        while !rest.is_empty() {
            let word = rest.trim_start();
            self.space.push_str(&rest[..rest.len() - word.len()]);
            let end = word.find(char::is_whitespace).unwrap_or(word.len());
            if end > 0 {
                self.flush(sink);
                self.fresh = false;
                self.send(&word[..end], sink);
            }
            rest = &word[end..];
        }
    }

    /// Sends the held white space.
    pub fn flush(&mut self, sink: &mut Sink) {
        let space = self.take_space();
        self.send(&space, sink);
    }

    pub fn take_space(&mut self) -> String {
        std::mem::take(&mut self.space)
    }

    fn send(&self, text: &str, sink: &mut Sink) {
        if self.thinking {
            sink.reasoning(text);
        } else {
            sink.text(text);
        }
    }
}

/// The texts that calls may start with.
fn entries(format: &OutputFormat) -> Vec<(&'static str, Mark)> {
    let Some(calls) = format.calls else {
        return Vec::new();
    };
    let outer = if calls.section.open.is_empty() {
        Entry::Call
    } else {
        Entry::Section
    };
    let mut entries = vec![
        (calls.section.open.trim(), Mark::Calls(Entry::Section)),
        (calls.call.open.trim(), Mark::Calls(Entry::Call)),
        (calls.syntax.name_open(), Mark::Calls(Entry::Name)),
    ];
    entries.extend(
        calls
            .aliases
            .iter()
            .map(|alias| (*alias, Mark::Calls(outer))),
    );
    entries
}
