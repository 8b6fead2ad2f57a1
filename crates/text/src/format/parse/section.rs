//! The part of the output with calls, and the text around, before and between them.

use super::super::data::{CallFormat, CallSyntax};
use super::call::{Call, Progress, Reader, is_name};
use super::json::Step;
use super::json_call::JsonCall;
use super::matching::{Choice, Chosen, Scan};
use super::named_call::NamedCall;
use super::piece::Sink;
use super::python_call::PythonCall;
use super::schema::ToolSignature;
use super::tagged_call::TaggedCall;

/// How the section started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// The marker around all calls.
    Section,
    /// The marker around one call.
    Call,
    /// The text before a name, if the model omitted the rest.
    Name,
    /// No marker: the next character is a call's first bracket.
    Bare,
}

/// The effect of a character on the section.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    More,
    /// The section ended before this text.
    End(String),
    /// Not a call but text; its first `opening` bytes certainly do not start another call.
    Text {
        text: String,
        opening: usize,
    },
}

#[derive(Debug)]
pub(super) struct Section {
    format: &'static CallFormat,
    /// Whether a call of a tool that does not exist is text.
    known_only: bool,
    /// Whether a list was opened.
    in_list: bool,
    phase: Phase,
    progress: Progress,
    /// Text read since the last call, in case no other call follows.
    raw: String,
    opening: usize,
    /// Whether any call was sent.
    pub fruitful: bool,
}

#[derive(Debug)]
enum Phase {
    /// Markers before a call, or between two.
    Markers(Choice<Mark>),
    Call(Box<dyn Reader>),
    /// Arguments that broke: passed on as they are until the call's closing marker.
    Broken(Scan<Mark>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    ListOpen,
    ListClose,
    Separator,
    CallOpen,
    /// The brace of a JSON call.
    Brace,
    /// The text before a tagged call's name.
    NameOpen,
    /// The text after a call's arguments.
    After,
    CallClose,
    SectionClose,
}

impl Section {
    /// `raw` is the text read so far, including the entry.
    pub fn new(format: &'static CallFormat, known_only: bool, entry: Entry, raw: String) -> Self {
        let mut section = Self {
            format,
            known_only,
            in_list: false,
            phase: Phase::Markers(Choice::new([])),
            progress: Progress::Waiting,
            opening: raw.len() + usize::from(entry == Entry::Bare),
            raw,
            fruitful: false,
        };
        section.phase = match entry {
            Entry::Section | Entry::Bare => section.before_call(true),
            Entry::Call => section.before_call(false),
            Entry::Name => section.named(),
        };
        section
    }

    pub fn push(&mut self, c: char, sink: &mut Sink, tools: &[ToolSignature]) -> Outcome {
        if self.progress == Progress::Waiting {
            self.raw.push(c);
        }
        match &mut self.phase {
            Phase::Markers(choice) => match choice.push(c) {
                Chosen::More => Outcome::More,
                Chosen::Found(mark) => self.marker(mark, c, sink, tools),
                Chosen::Other => self.no_marker(c, sink, tools),
            },
            Phase::Call(_) => self.read(c, sink, tools),
            Phase::Broken(scan) => {
                let mut text = String::new();
                let found = scan.push(c, &mut text);
                sink.arguments(&text);
                match found {
                    None => Outcome::More,
                    Some((_, mark)) => self.marker(mark, c, sink, tools),
                }
            }
        }
    }

    /// Ends the output. Returns the remaining text.
    pub fn finish(&mut self, sink: &mut Sink) -> String {
        match (&mut self.phase, self.progress) {
            (_, Progress::Waiting) => std::mem::take(&mut self.raw),
            // The start of a marker after a complete call.
            (Phase::Markers(_), _) => String::new(),
            (Phase::Call(reader), Progress::Started) => {
                sink.arguments(&reader.take_held());
                String::new()
            }
            (Phase::Call(_), Progress::Ended) => String::new(),
            (Phase::Broken(scan), _) => {
                sink.arguments(&scan.take_held());
                String::new()
            }
        }
    }

    fn read(&mut self, c: char, sink: &mut Sink, tools: &[ToolSignature]) -> Outcome {
        let Phase::Call(reader) = &mut self.phase else {
            return Outcome::More;
        };
        let mut call = Call {
            sink,
            tools,
            known_only: self.known_only,
            progress: &mut self.progress,
        };
        let step = reader.push(c, &mut call);
        if self.progress != Progress::Waiting {
            self.fruitful = true;
            self.raw.clear();
        }
        match step {
            Step::More => Outcome::More,
            Step::Done => self.end_call(),
            Step::DoneBefore => match self.end_call() {
                Outcome::More => self.push(c, sink, tools),
                Outcome::End(mut text) => {
                    text.push(c);
                    Outcome::End(text)
                }
                text @ Outcome::Text { .. } => text,
            },
            Step::Broken if self.progress == Progress::Waiting => self.give_up(),
            Step::Broken => {
                sink.arguments(&reader.take_held());
                self.phase = Phase::Broken(Scan::new(vec![
                    (self.format.call.close.trim(), Mark::CallClose),
                    (self.format.section.close.trim(), Mark::SectionClose),
                ]));
                self.push(c, sink, tools)
            }
        }
    }

    /// A character that no marker has: the first of a call that needs none, or the end.
    fn no_marker(&mut self, c: char, sink: &mut Sink, tools: &[ToolSignature]) -> Outcome {
        let Phase::Markers(choice) = &mut self.phase else {
            return Outcome::More;
        };
        let waiting = self.progress == Progress::Waiting;
        let may_begin = choice.is_untouched() && is_name(c);
        if may_begin && self.takes_bare_call() {
            if !waiting {
                self.await_call();
                self.raw.push(c);
            }
            self.phase = self.named();
            return self.read(c, sink, tools);
        }
        if waiting {
            return self.give_up();
        }
        Outcome::End(self.take_marker_text() + c.encode_utf8(&mut [0; 4]))
    }

    /// Whether a call may start here without a marker.
    fn takes_bare_call(&self) -> bool {
        let separated = self.progress == Progress::Waiting
            || (self.format.separator.trim().is_empty() && !self.in_list);
        matches!(self.format.syntax, CallSyntax::Pythonic) && separated
    }

    /// Text read while searching for a marker.
    fn take_marker_text(&mut self) -> String {
        match &mut self.phase {
            Phase::Markers(choice) => choice.take_text(),
            _ => String::new(),
        }
    }

    fn give_up(&mut self) -> Outcome {
        Outcome::Text {
            text: std::mem::take(&mut self.raw),
            opening: self.opening,
        }
    }

    fn marker(&mut self, mark: Mark, c: char, sink: &mut Sink, tools: &[ToolSignature]) -> Outcome {
        match mark {
            Mark::ListOpen | Mark::Separator | Mark::CallOpen | Mark::Brace | Mark::NameOpen => {
                self.await_call();
            }
            _ => {}
        }
        self.phase = match mark {
            Mark::ListOpen => {
                self.in_list = true;
                self.before_call(false)
            }
            Mark::Separator => self.before_call(true),
            Mark::CallOpen => self.before_call(false),
            Mark::NameOpen => self.named(),
            Mark::Brace => {
                self.phase = self.brace();
                return self.read(c, sink, tools);
            }
            Mark::After => Phase::Markers(self.after_call(true)),
            Mark::ListClose => {
                self.in_list = false;
                self.progress = Progress::Ended;
                Phase::Markers(self.after_list())
            }
            Mark::CallClose if !self.has_section() => return Outcome::End(String::new()),
            Mark::CallClose => Phase::Markers(self.after_call(false)),
            Mark::SectionClose => return Outcome::End(String::new()),
        };
        self.unless_over()
    }

    /// From here on, text may turn out to be no call.
    fn await_call(&mut self) {
        if self.progress == Progress::Waiting {
            return;
        }
        self.progress = Progress::Waiting;
        self.raw = self.take_marker_text();
        self.opening = self.raw.len();
    }

    fn end_call(&mut self) -> Outcome {
        self.phase = Phase::Markers(self.after_call(true));
        self.unless_over()
    }

    /// The section ends if no marker can follow.
    fn unless_over(&self) -> Outcome {
        match &self.phase {
            Phase::Markers(choice) if choice.is_empty() && self.progress != Progress::Waiting => {
                Outcome::End(String::new())
            }
            _ => Outcome::More,
        }
    }

    fn has_section(&self) -> bool {
        !self.format.section.open.is_empty()
    }

    /// Marks that may precede a call, with or without its own.
    fn before_call(&self, marker: bool) -> Phase {
        let CallFormat { call, syntax, .. } = self.format;
        let call_open = if marker { call.open } else { "" };
        let list_open = if self.in_list { "" } else { "[" };
        // A list may have a comma after its last call.
        let list_close = if self.in_list && self.fruitful {
            "]"
        } else {
            ""
        };
        let options = match syntax {
            CallSyntax::Json(_) | CallSyntax::KeyedJson | CallSyntax::Pythonic => vec![
                (call_open, Mark::CallOpen),
                (list_open, Mark::ListOpen),
                (list_close, Mark::ListClose),
                ("{", Mark::Brace),
            ],
            CallSyntax::Tagged(tagged) => {
                vec![
                    (call_open, Mark::CallOpen),
                    (tagged.name.open, Mark::NameOpen),
                ]
            }
            CallSyntax::NameThenJson(_) | CallSyntax::Gemma { .. } => {
                vec![(call_open, Mark::CallOpen)]
            }
        };
        let choice = Choice::new(options);
        if choice.is_empty() {
            return self.named();
        }
        Phase::Markers(choice)
    }

    /// Marks that may follow a call.
    fn after_call(&self, open: bool) -> Choice<Mark> {
        let CallFormat {
            section,
            call,
            list,
            separator,
            syntax,
            ..
        } = self.format;
        let (after, direct) = match syntax {
            CallSyntax::Json(_) if open => ("", ("{", Mark::Brace)),
            CallSyntax::NameThenJson(syntax) => (syntax.after, ("", Mark::Brace)),
            CallSyntax::Tagged(syntax) => ("", (syntax.name.open, Mark::NameOpen)),
            _ => ("", ("", Mark::Brace)),
        };
        if self.in_list {
            return Choice::new([(",", Mark::Separator), ("]", Mark::ListClose)]);
        }
        let only = |condition: bool, text| if condition { text } else { "" };
        Choice::new([
            (only(!list, separator), Mark::Separator),
            (only(open, after), Mark::After),
            (only(open, call.close), Mark::CallClose),
            (only(self.has_section(), call.open), Mark::CallOpen),
            (section.close, Mark::SectionClose),
            direct,
        ])
    }

    /// Marks that may follow a list.
    fn after_list(&self) -> Choice<Mark> {
        Choice::new([
            (self.format.call.close, Mark::CallClose),
            (self.format.section.close, Mark::SectionClose),
        ])
    }

    fn brace(&self) -> Phase {
        let fields = match &self.format.syntax {
            CallSyntax::Json(fields) => Some(fields),
            CallSyntax::KeyedJson => None,
            _ => Some(&super::super::calls::COMMON_FIELDS),
        };
        Phase::Call(Box::new(JsonCall::new(fields, self.known_only)))
    }

    fn named(&self) -> Phase {
        let close = self.format.call.close;
        Phase::Call(match &self.format.syntax {
            CallSyntax::NameThenJson(syntax) => Box::new(NamedCall::new(syntax, close)),
            CallSyntax::Gemma { quote } => Box::new(NamedCall::gemma(quote)),
            CallSyntax::Tagged(syntax) => Box::new(TaggedCall::new(syntax, close)),
            CallSyntax::Json(_) | CallSyntax::KeyedJson | CallSyntax::Pythonic => {
                Box::new(PythonCall::new())
            }
        })
    }
}
