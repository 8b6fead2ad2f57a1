//! What a format is made of: the types that the tables of [`reasoning`](super::reasoning) and
//! [`calls`](super::calls) are written in.
//!
//! Every string is spelled as the model's own template writes it, white space included, so that a
//! grammar can be built from it. The parser compares without the white space at its ends: models
//! are not strict about it.

/// How to tell a format by what a checkpoint brings with it.
#[derive(Debug, Clone, Copy)]
pub struct Signs {
    /// Strings of the chat template: all of one group, whichever group.
    pub template: &'static [&'static [&'static str]],
    /// Tokens that the markers are made of. The first, in the vocabulary, tells the format where
    /// no template does.
    pub tokens: &'static [&'static str],
}

impl Signs {
    pub const NONE: Self = Self::new(&[], &[]);

    pub const fn new(
        template: &'static [&'static [&'static str]],
        tokens: &'static [&'static str],
    ) -> Self {
        Self { template, tokens }
    }
}

/// What stands before and after a part of the output.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub open: &'static str,
    pub close: &'static str,
}

impl Span {
    pub const NONE: Self = Self::new("", "");

    pub const fn new(open: &'static str, close: &'static str) -> Self {
        Self { open, close }
    }
}

/// How a model marks its thinking.
#[derive(Debug)]
pub struct ReasoningFormat {
    pub name: &'static str,
    /// What begins thinking; the first is what [`open_text`](Self::open_text) writes.
    pub open: &'static [&'static str],
    /// What ends it.
    pub close: &'static [&'static str],
    /// Markers around the answer that are no part of it.
    pub silent: &'static [&'static str],
    /// What begins thinking, as the model would write it.
    pub open_text: &'static str,
    /// What ends thinking cleanly, up to where an answer or a call begins.
    pub close_text: &'static str,
    /// What begins an answer, with or without thinking before it; often nothing.
    pub answer_text: &'static str,
    pub framing: Framing,
    pub signs: Signs,
}

impl ReasoningFormat {
    /// Whether the end of a rendered prompt stands inside a thinking part, because the template
    /// opened it for the model.
    ///
    /// Only the prompt's very end counts: an opening further up may be a user's own words.
    pub fn is_open(&self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        self.open.iter().any(|open| end.ends_with(open))
    }

    /// Whether the end of a rendered prompt has thinking behind it, because the template closed it
    /// for the model.
    pub fn is_closed(&self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        self.close.iter().any(|close| end.ends_with(close))
    }
}

/// Whether a message is one text with marked parts, or a chain of messages with headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Inline,
    /// Harmony: every part has a header that names its channel and its recipient.
    Channels,
}

/// How a model writes tool calls.
///
/// In whole: `section.open`, `[` if `list`, then calls with `separator` between them, `]`,
/// `section.close`; a call is `call.open`, what the syntax says, `call.close`.
#[derive(Debug)]
pub struct CallFormat {
    pub name: &'static str,
    /// Around all calls of a message.
    pub section: Span,
    /// Other spellings of the first opening that models of this format write.
    pub aliases: &'static [&'static str],
    /// Whether the section's opening is usually left out, so that a call is told by its own first
    /// characters and the name of a tool that exists.
    pub unmarked: bool,
    /// Whether the calls stand in one bracketed list.
    pub list: bool,
    /// Around each call.
    pub call: Span,
    /// Between two calls.
    pub separator: &'static str,
    pub syntax: CallSyntax,
    /// Whether a call begins in the midst of thinking, which ends thereby.
    pub ends_reasoning: bool,
    pub framing: Framing,
    pub signs: Signs,
}

/// How one call is written between its markers.
#[derive(Debug)]
pub enum CallSyntax {
    /// `{"name": "f", "arguments": {…}}`
    Json(JsonFields),
    /// `{"f": {…}}`
    KeyedJson,
    /// A name, some marker, and the arguments as a JSON object.
    NameThenJson(NameThenJson),
    /// Parameters as elements, their values as raw text.
    Tagged(Tagged),
    /// `f(a=1, b="x")`
    Pythonic,
    /// `call:f{a:1,b:<quote>x<quote>}`
    Gemma { quote: &'static str },
}

/// The keys of a call object; the first of each is how the model's template writes it.
#[derive(Debug)]
pub struct JsonFields {
    pub name: &'static [&'static str],
    pub arguments: &'static [&'static str],
    pub id: &'static [&'static str],
}

#[derive(Debug)]
pub struct NameThenJson {
    /// Before the name.
    pub before: &'static str,
    pub id: IdPlace,
    /// Between the name and the arguments.
    pub between: &'static str,
    /// After the arguments.
    pub after: &'static str,
}

/// Where a model writes the identifier that it gives a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdPlace {
    None,
    /// Before the name, with this between the two.
    BeforeName(&'static str),
    /// After the name, behind this, or not at all.
    AfterName(&'static str),
    /// The identifier is this, the name, a colon and a number.
    AroundName(&'static str),
}

#[derive(Debug)]
pub struct Tagged {
    pub name: Span,
    /// Before a parameter's name.
    pub key_open: &'static str,
    /// After it, and what each ending says of the value.
    pub key_close: &'static [(&'static str, Value)],
    /// Between `key_close` and the value.
    pub value_open: &'static str,
    /// After the value.
    pub value_close: &'static str,
    /// Whether a line break stands on either side of the value and is no part of it.
    pub padded: bool,
    /// After the last parameter.
    pub end: &'static str,
}

/// What the raw text of a parameter stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Whatever the tool's schema says of the parameter.
    BySchema,
    Text,
    Json,
}

impl Signs {
    /// Whether a chat template shows this format.
    pub(super) fn shown_by(&self, template: &str) -> bool {
        let shows = |group: &&[&str]| group.iter().all(|sign| template.contains(sign));
        self.template.iter().any(shows)
    }
}

impl ReasoningFormat {
    /// Everything the parser looks for.
    pub(super) fn markers(&self) -> impl Iterator<Item = &'static str> {
        let literals = [self.open, self.close, self.silent, self.signs.tokens];
        literals.into_iter().flatten().copied()
    }
}

impl CallFormat {
    /// Whatever the parser takes for the beginning of a call; nothing for a format without marks.
    pub fn opening_marks(&self) -> Vec<&'static str> {
        let marks = [self.section.open, self.call.open, self.syntax.name_open()];
        let marks = marks.into_iter().chain(self.aliases.iter().copied());
        let marks = marks.map(str::trim).filter(|mark| !mark.is_empty());
        marks.collect()
    }

    /// Everything the parser looks for.
    pub(super) fn markers(&self) -> impl Iterator<Item = &'static str> {
        let spans = [self.section, self.call];
        spans
            .into_iter()
            .flat_map(|span| [span.open, span.close])
            .chain(self.aliases.iter().copied())
            .chain(self.signs.tokens.iter().copied())
            .chain(self.syntax.literals())
            .map(str::trim)
    }
}

impl CallSyntax {
    /// What stands before a call's name, where that alone tells a call.
    pub(super) fn name_open(&self) -> &'static str {
        match self {
            Self::Tagged(tagged) => tagged.name.open,
            _ => "",
        }
    }

    fn literals(&self) -> Vec<&'static str> {
        match self {
            Self::Json(_) | Self::KeyedJson | Self::Pythonic => Vec::new(),
            Self::Gemma { quote } => vec![quote],
            Self::NameThenJson(syntax) => {
                let id = match syntax.id {
                    IdPlace::None => "",
                    IdPlace::BeforeName(mark)
                    | IdPlace::AfterName(mark)
                    | IdPlace::AroundName(mark) => mark,
                };
                vec![syntax.before, id, syntax.between, syntax.after]
            }
            Self::Tagged(syntax) => {
                let mut literals = vec![
                    syntax.name.open,
                    syntax.name.close,
                    syntax.key_open,
                    syntax.value_open,
                    syntax.value_close,
                    syntax.end,
                ];
                literals.extend(syntax.key_close.iter().map(|(close, _)| *close));
                literals
            }
        }
    }
}
