//! Calls that are a name and then a JSON object, and Gemma's, which differ in the object only.

use super::super::data::{IdPosition, NameThenJson};
use super::call::{Call, Reader, is_name, push_name};
use super::json::{JsonReader, Step};
use super::literal::{LiteralReader, Notation};
use super::matching::{Choice, Chosen};

/// Reads a call from its opening marker to the end of its arguments.
#[derive(Debug)]
pub(super) struct NamedCall {
    id_place: IdPosition,
    /// The texts that end the name, and those that follow the arguments.
    between: &'static str,
    closings: [&'static str; 2],
    state: NamedCallState,
    name: String,
    id: String,
    arguments: Object,
    out: String,
}

#[derive(Debug)]
enum NamedCallState {
    /// The text before the name.
    Before(Choice<()>),
    IdBefore,
    Name,
    /// The text after the name.
    Behind(Choice<Next>),
    IdAfter,
    /// The arguments' first character, or the end of a call that has none.
    Start(Choice<Next>),
    Arguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Name,
    Id,
    Arguments,
    Object,
    End,
}

/// The arguments in either notation.
#[derive(Debug)]
enum Object {
    Json(JsonReader),
    Gemma(LiteralReader),
}

impl NamedCall {
    pub fn new(syntax: &NameThenJson, close: &'static str) -> Self {
        let state = match (syntax.before, syntax.id) {
            ("", IdPosition::BeforeName(_)) => NamedCallState::IdBefore,
            ("", _) => NamedCallState::Name,
            (before, _) => NamedCallState::Before(Choice::new([(before, ())])),
        };
        Self {
            id_place: syntax.id,
            between: syntax.between,
            closings: [syntax.after, close],
            state,
            name: String::new(),
            id: String::new(),
            arguments: Object::Json(JsonReader::new()),
            out: String::new(),
        }
    }

    /// `call:name{…}` with strings between this marker.
    pub fn gemma(quote: &'static str) -> Self {
        Self {
            id_place: IdPosition::None,
            between: "",
            closings: ["", ""],
            state: NamedCallState::Before(Choice::new([("call:", ())])),
            name: String::new(),
            id: String::new(),
            arguments: Object::Gemma(LiteralReader::new(Notation::Gemma(quote))),
            out: String::new(),
        }
    }

    /// Reads the name or the identifier. Any other character belongs to the next marker.
    fn word(&mut self, c: char, next: NamedCallState, call: &mut Call) -> Step {
        let word = match self.state {
            NamedCallState::Name => &mut self.name,
            _ => &mut self.id,
        };
        if is_name(c) {
            return push_name(word, c);
        }
        if word.is_empty() {
            return if c.is_whitespace() {
                Step::More
            } else {
                Step::Broken
            };
        }
        self.state = next;
        self.push(c, call)
    }

    fn behind_id(&self) -> NamedCallState {
        let mark = match self.id_place {
            IdPosition::BeforeName(mark) => mark,
            _ => self.between,
        };
        let next = match self.id_place {
            IdPosition::BeforeName(_) => Next::Name,
            _ => Next::Arguments,
        };
        NamedCallState::Behind(Choice::new([(mark, next)]))
    }

    fn behind_name(&self) -> NamedCallState {
        let id = match self.id_place {
            IdPosition::AfterName(mark) => mark,
            _ => "",
        };
        NamedCallState::Behind(Choice::new([
            (self.between, Next::Arguments),
            (id, Next::Id),
            ("{", Next::Object),
        ]))
    }

    fn go_on(&mut self, next: Next, call: &mut Call) -> Step {
        self.state = match next {
            Next::Name => NamedCallState::Name,
            Next::Id => NamedCallState::IdAfter,
            Next::Arguments => NamedCallState::Start(Choice::new([
                ("{", Next::Object),
                (self.closings[0], Next::End),
                (self.closings[1], Next::End),
            ])),
            Next::Object => NamedCallState::Arguments,
            Next::End => return self.end_empty(call),
        };
        if next == Next::Object {
            return if self.start(call) {
                self.argument('{', call)
            } else {
                Step::Broken
            };
        }
        Step::More
    }

    fn start(&mut self, call: &mut Call) -> bool {
        let (name, id) = match self.id_place {
            IdPosition::AroundName(prefix) => split_id(&self.name, prefix),
            _ => (
                self.name.as_str(),
                (!self.id.is_empty()).then_some(self.id.as_str()),
            ),
        };
        call.start(name, id.map(str::to_owned))
    }

    /// A call without arguments. Its closing marker was read, and is no longer needed.
    fn end_empty(&mut self, call: &mut Call) -> Step {
        if !self.start(call) {
            return Step::Broken;
        }
        call.arguments("{}");
        call.end();
        Step::Done
    }

    fn argument(&mut self, c: char, call: &mut Call) -> Step {
        self.out.clear();
        let step = match &mut self.arguments {
            Object::Json(reader) => reader.push(c, &mut self.out),
            Object::Gemma(reader) => reader.push(c, &mut self.out),
        };
        call.arguments(&self.out);
        if step == Step::Done {
            call.end();
        }
        step
    }
}

impl Reader for NamedCall {
    fn push(&mut self, c: char, call: &mut Call) -> Step {
        match &mut self.state {
            NamedCallState::Before(choice) => match choice.push(c) {
                Chosen::More => Step::More,
                Chosen::Other => Step::Broken,
                Chosen::Found(()) => {
                    self.state = match self.id_place {
                        IdPosition::BeforeName(_) => NamedCallState::IdBefore,
                        _ => NamedCallState::Name,
                    };
                    Step::More
                }
            },
            NamedCallState::Behind(choice) | NamedCallState::Start(choice) => {
                match choice.push(c) {
                    Chosen::More => Step::More,
                    Chosen::Other => Step::Broken,
                    Chosen::Found(next) => self.go_on(next, call),
                }
            }
            NamedCallState::Name => {
                let next = self.behind_name();
                self.word(c, next, call)
            }
            NamedCallState::IdBefore | NamedCallState::IdAfter => {
                let next = self.behind_id();
                self.word(c, next, call)
            }
            NamedCallState::Arguments => self.argument(c, call),
        }
    }

    fn take_held(&mut self) -> String {
        match &mut self.arguments {
            Object::Json(reader) => reader.take_held(),
            Object::Gemma(reader) => reader.take_held(),
        }
    }
}

/// `functions.name:0` is an identifier that contains a name.
fn split_id<'a>(text: &'a str, prefix: &str) -> (&'a str, Option<&'a str>) {
    let bare = text.strip_prefix(prefix).unwrap_or(text);
    match bare.rsplit_once(':') {
        Some((name, number)) if !name.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            (name, Some(text))
        }
        _ => (bare, None),
    }
}
