//! Calls in Python's notation: `f(a=1, b="x")`.

use super::call::{Call, Progress, Reader, is_name, push_name};
use super::json::{Step, quoted};
use super::literal::{LiteralReader, Notation};

/// Reads a call from its name to its closing parenthesis. Arguments must have names.
#[derive(Debug)]
pub(super) struct PythonCall {
    state: PythonCallState,
    name: String,
    arguments: usize,
    out: String,
}

#[derive(Debug)]
enum PythonCallState {
    Name,
    /// The name of an argument, or the end.
    Key(String),
    Equals(String),
    Value(LiteralReader),
    AfterValue,
}

impl PythonCall {
    pub fn new() -> Self {
        Self {
            state: PythonCallState::Name,
            name: String::new(),
            arguments: 0,
            out: String::new(),
        }
    }

    fn key(&mut self, c: char, call: &mut Call) -> Step {
        let PythonCallState::Key(key) = &mut self.state else {
            return Step::Broken;
        };
        match c {
            ')' if key.is_empty() => self.close(call),
            '=' if !key.is_empty() => {
                let key = std::mem::take(key);
                self.begin_value(&key, call)
            }
            _ if c.is_whitespace() => {
                if !key.is_empty() {
                    self.state = PythonCallState::Equals(std::mem::take(key));
                }
                Step::More
            }
            _ if c.is_alphanumeric() || c == '_' => push_name(key, c),
            _ => Step::Broken,
        }
    }

    fn begin_value(&mut self, key: &str, call: &mut Call) -> Step {
        if !self.start(call) {
            return Step::Broken;
        }
        call.arguments(if self.arguments == 0 { "{" } else { "," });
        call.arguments(&quoted(key));
        call.arguments(":");
        self.arguments += 1;
        self.state = PythonCallState::Value(LiteralReader::new(Notation::Python));
        Step::More
    }

    fn start(&mut self, call: &mut Call) -> bool {
        *call.progress != Progress::Waiting || call.start(&self.name, None)
    }

    fn value(&mut self, c: char, call: &mut Call) -> Step {
        let PythonCallState::Value(reader) = &mut self.state else {
            return Step::Broken;
        };
        self.out.clear();
        let step = reader.push(c, &mut self.out);
        call.arguments(&self.out);
        match step {
            Step::More | Step::Broken => step,
            Step::Done => {
                self.state = PythonCallState::AfterValue;
                Step::More
            }
            Step::DoneBefore => {
                self.state = PythonCallState::AfterValue;
                self.push(c, call)
            }
        }
    }

    fn close(&mut self, call: &mut Call) -> Step {
        if !self.start(call) {
            return Step::Broken;
        }
        call.arguments(if self.arguments == 0 { "{}" } else { "}" });
        call.end();
        Step::Done
    }
}

impl Reader for PythonCall {
    fn push(&mut self, c: char, call: &mut Call) -> Step {
        match &mut self.state {
            PythonCallState::Name => match c {
                '(' if !self.name.is_empty() => {
                    self.state = PythonCallState::Key(String::new());
                    Step::More
                }
                _ if is_name(c) => push_name(&mut self.name, c),
                _ => Step::Broken,
            },
            PythonCallState::Key(_) => self.key(c, call),
            PythonCallState::Equals(key) => match c {
                '=' => {
                    let key = std::mem::take(key);
                    self.begin_value(&key, call)
                }
                _ if c.is_whitespace() => Step::More,
                _ => Step::Broken,
            },
            PythonCallState::Value(_) => self.value(c, call),
            PythonCallState::AfterValue => match c {
                ',' => {
                    self.state = PythonCallState::Key(String::new());
                    Step::More
                }
                ')' => self.close(call),
                _ if c.is_whitespace() => Step::More,
                _ => Step::Broken,
            },
        }
    }

    fn take_held(&mut self) -> String {
        match &mut self.state {
            PythonCallState::Value(reader) => reader.take_held(),
            PythonCallState::Key(key) | PythonCallState::Equals(key) => std::mem::take(key),
            _ => String::new(),
        }
    }
}
