//! Calls whose parameters are elements with raw text.

use super::super::data::{RawValue, Tagged};
use super::call::{Call, MAX_NAME, Progress, Reader, is_name, push_name};
use super::json::{Step, escape_into, quoted};
use super::matching::{Choice, Chosen, Scan};
use super::schema::Types;

/// Reads a call from its name on to its end.
#[derive(Debug)]
pub(super) struct TaggedCall {
    syntax: &'static Tagged,
    /// The call's closing marker, which ends the call if the syntax has no end mark.
    close: &'static str,
    state: TaggedCallState,
    name: String,
    parameters: usize,
    out: String,
}

#[derive(Debug)]
enum TaggedCallState {
    Name,
    NameClose(Choice<()>),
    /// Before a parameter, or the call's end.
    Next(Choice<Next>),
    Key(String),
    ValueOpen(Choice<()>, Types),
    Value(RawValueReader),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Key,
    End,
}

impl TaggedCall {
    pub fn new(syntax: &'static Tagged, close: &'static str) -> Self {
        Self {
            syntax,
            close,
            state: TaggedCallState::Name,
            name: String::new(),
            parameters: 0,
            out: String::new(),
        }
    }

    fn name(&mut self, c: char, call: &mut Call) -> Step {
        if is_name(c) {
            return push_name(&mut self.name, c);
        }
        if self.name.is_empty() {
            return if c.is_whitespace() {
                Step::More
            } else {
                Step::Broken
            };
        }
        let close = Choice::new([(self.syntax.name.close, ())]);
        self.state = if close.is_empty() {
            self.next_parameter()
        } else {
            TaggedCallState::NameClose(close)
        };
        self.push(c, call)
    }

    fn next_parameter(&self) -> TaggedCallState {
        TaggedCallState::Next(Choice::new([
            (self.syntax.key_open, Next::Key),
            (self.syntax.end, Next::End),
            (self.close, Next::End),
        ]))
    }

    fn go_on(&mut self, next: Next, call: &mut Call) -> Step {
        // Only now is it sure that the name is one, and not a word of some text.
        if *call.progress == Progress::Waiting && !call.start(&self.name, None) {
            return Step::Broken;
        }
        match next {
            Next::Key => {
                self.state = TaggedCallState::Key(String::new());
                Step::More
            }
            Next::End => {
                call.arguments(if self.parameters == 0 { "{}" } else { "}" });
                call.end();
                Step::Done
            }
        }
    }

    fn key(&mut self, c: char, call: &mut Call) -> Step {
        let TaggedCallState::Key(key) = &mut self.state else {
            return Step::Broken;
        };
        if key.len() >= MAX_NAME || c == '\n' {
            return Step::Broken;
        }
        key.push(c);
        let closings = self.syntax.key_close.iter();
        let mut closings = closings.map(|(close, value)| (close.trim(), value));
        let Some((close, value)) = closings.find(|(close, _)| key.ends_with(close)) else {
            return Step::More;
        };
        let key = key[..key.len() - close.len()].trim().to_owned();
        let types = match value {
            RawValue::BySchema => call.types(&self.name, &key),
            RawValue::Text => Types::STRING,
            RawValue::Json => Types::JSON,
        };
        call.arguments(if self.parameters == 0 { "{" } else { "," });
        call.arguments(&quoted(&key));
        call.arguments(":");
        self.parameters += 1;
        let open = Choice::new([(self.syntax.value_open, ())]);
        self.state = if open.is_empty() {
            TaggedCallState::Value(RawValueReader::new(self.syntax, types))
        } else {
            TaggedCallState::ValueOpen(open, types)
        };
        Step::More
    }

    fn value(&mut self, c: char, call: &mut Call) -> Step {
        let TaggedCallState::Value(value) = &mut self.state else {
            return Step::Broken;
        };
        self.out.clear();
        let ended = value.push(c, &mut self.out);
        call.arguments(&self.out);
        if ended {
            self.state = self.next_parameter();
        }
        Step::More
    }
}

impl Reader for TaggedCall {
    fn push(&mut self, c: char, call: &mut Call) -> Step {
        match &mut self.state {
            TaggedCallState::Name => self.name(c, call),
            TaggedCallState::NameClose(choice) => match choice.push(c) {
                Chosen::More => Step::More,
                Chosen::Other => Step::Broken,
                Chosen::Found(()) => {
                    self.state = self.next_parameter();
                    Step::More
                }
            },
            TaggedCallState::Next(choice) => match choice.push(c) {
                Chosen::More => Step::More,
                Chosen::Other => Step::Broken,
                Chosen::Found(next) => self.go_on(next, call),
            },
            TaggedCallState::Key(_) => self.key(c, call),
            TaggedCallState::ValueOpen(choice, types) => match choice.push(c) {
                Chosen::More => Step::More,
                Chosen::Other => Step::Broken,
                Chosen::Found(()) => {
                    self.state = TaggedCallState::Value(RawValueReader::new(self.syntax, *types));
                    Step::More
                }
            },
            TaggedCallState::Value(_) => self.value(c, call),
        }
    }

    fn take_held(&mut self) -> String {
        match &mut self.state {
            TaggedCallState::Key(key) => std::mem::take(key),
            TaggedCallState::Value(value) => value.take_held(),
            TaggedCallState::Next(choice) => choice.take_text(),
            TaggedCallState::ValueOpen(choice, _) => choice.take_text(),
            TaggedCallState::Name | TaggedCallState::NameClose(_) => String::new(),
        }
    }
}

/// Converts a parameter's text to JSON: a string is passed on immediately, any other value when it
/// is complete.
#[derive(Debug)]
struct RawValueReader {
    types: Types,
    scan: Scan<()>,
    /// Whether the next line break is padding.
    skip_break: bool,
    padded: bool,
    /// Whether the string's quotation mark was written.
    opened: bool,
    /// Text that cannot be passed on so far.
    held: String,
}

impl RawValueReader {
    fn new(syntax: &Tagged, types: Types) -> Self {
        Self {
            types,
            scan: Scan::new(vec![(syntax.value_close.trim(), ())]),
            skip_break: syntax.padded,
            padded: syntax.padded,
            opened: false,
            held: String::new(),
        }
    }

    fn is_text(&self) -> bool {
        self.types == Types::STRING
    }

    /// Returns whether the value ended.
    fn push(&mut self, c: char, out: &mut String) -> bool {
        let mut text = String::new();
        let ended = self.scan.push(c, &mut text).is_some();
        for c in text.chars() {
            self.character(c, out);
        }
        if ended {
            self.end(out);
        }
        ended
    }

    fn character(&mut self, c: char, out: &mut String) {
        if std::mem::take(&mut self.skip_break) && c == '\n' {
            return;
        }
        if !self.is_text() {
            self.held.push(c);
            return;
        }
        self.open(out);
        for held in std::mem::take(&mut self.held).chars() {
            escape_into(held, out);
        }
        if self.padded && c == '\n' {
            self.held.push(c);
        } else {
            escape_into(c, out);
        }
    }

    fn open(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.opened, true) {
            out.push('"');
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.is_text() {
            self.open(out);
            out.push('"');
            return;
        }
        let held = std::mem::take(&mut self.held);
        let unpadded = held.strip_suffix('\n').filter(|_| self.padded);
        out.push_str(&self.types.convert(unpadded.unwrap_or(&held)));
    }

    /// Text read and not passed on. A started string continues as a string.
    fn take_held(&mut self) -> String {
        let mut raw = std::mem::take(&mut self.held);
        raw.push_str(&self.scan.take_held());
        if !self.is_text() {
            return raw;
        }
        let mut out = String::new();
        self.open(&mut out);
        raw.chars().for_each(|c| escape_into(c, &mut out));
        out
    }
}
