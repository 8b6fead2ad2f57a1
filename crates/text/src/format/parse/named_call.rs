//! Calls that are a name and then a JSON object, and Gemma's, which differ in the object only.

use super::super::data::{IdPlace, NameThenJson};
use super::call::{Call, Reader, is_name, push_name};
use super::json::{JsonReader, Step};
use super::literal::{LiteralReader, Notation};
use super::matching::{Choice, Chosen};

/// Reads a call from behind its opening marker to the end of its arguments.
#[derive(Debug)]
pub(super) struct NamedCall {
    id_place: IdPlace,
    /// What ends the name, what follows the arguments.
    between: &'static str,
    closings: [&'static str; 2],
    state: State,
    name: String,
    id: String,
    arguments: Object,
    out: String,
}

#[derive(Debug)]
enum State {
    /// What stands before the name.
    Before(Choice<()>),
    IdBefore,
    Name,
    /// What stands behind the name.
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
            ("", IdPlace::BeforeName(_)) => State::IdBefore,
            ("", _) => State::Name,
            (before, _) => State::Before(Choice::new([(before, ())])),
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
            id_place: IdPlace::None,
            between: "",
            closings: ["", ""],
            state: State::Before(Choice::new([("call:", ())])),
            name: String::new(),
            id: String::new(),
            arguments: Object::Gemma(LiteralReader::new(Notation::Gemma(quote))),
            out: String::new(),
        }
    }

    /// Reads the name or the identifier; what cannot be part of it is the next marker's.
    fn word(&mut self, c: char, next: State, call: &mut Call) -> Step {
        let word = match self.state {
            State::Name => &mut self.name,
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

    fn behind_id(&self) -> State {
        let mark = match self.id_place {
            IdPlace::BeforeName(mark) => mark,
            _ => self.between,
        };
        let next = match self.id_place {
            IdPlace::BeforeName(_) => Next::Name,
            _ => Next::Arguments,
        };
        State::Behind(Choice::new([(mark, next)]))
    }

    fn behind_name(&self) -> State {
        let id = match self.id_place {
            IdPlace::AfterName(mark) => mark,
            _ => "",
        };
        State::Behind(Choice::new([
            (self.between, Next::Arguments),
            (id, Next::Id),
            ("{", Next::Object),
        ]))
    }

    fn go_on(&mut self, next: Next, call: &mut Call) -> Step {
        self.state = match next {
            Next::Name => State::Name,
            Next::Id => State::IdAfter,
            Next::Arguments => State::Start(Choice::new([
                ("{", Next::Object),
                (self.closings[0], Next::End),
                (self.closings[1], Next::End),
            ])),
            Next::Object => State::Arguments,
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
            IdPlace::AroundName(prefix) => split_id(&self.name, prefix),
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
            State::Before(choice) => match choice.push(c) {
                Chosen::More => Step::More,
                Chosen::Other => Step::Broken,
                Chosen::Found(()) => {
                    self.state = match self.id_place {
                        IdPlace::BeforeName(_) => State::IdBefore,
                        _ => State::Name,
                    };
                    Step::More
                }
            },
            State::Behind(choice) | State::Start(choice) => match choice.push(c) {
                Chosen::More => Step::More,
                Chosen::Other => Step::Broken,
                Chosen::Found(next) => self.go_on(next, call),
            },
            State::Name => {
                let next = self.behind_name();
                self.word(c, next, call)
            }
            State::IdBefore | State::IdAfter => {
                let next = self.behind_id();
                self.word(c, next, call)
            }
            State::Arguments => self.argument(c, call),
        }
    }

    fn take_held(&mut self) -> String {
        match &mut self.arguments {
            Object::Json(reader) => reader.take_held(),
            Object::Gemma(reader) => reader.take_held(),
        }
    }
}

/// `functions.name:0` is an identifier that holds a name.
fn split_id<'a>(text: &'a str, prefix: &str) -> (&'a str, Option<&'a str>) {
    let bare = text.strip_prefix(prefix).unwrap_or(text);
    match bare.rsplit_once(':') {
        Some((name, number)) if !name.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            (name, Some(text))
        }
        _ => (bare, None),
    }
}
