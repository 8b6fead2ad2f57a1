//! The types of the format tables in [`reasoning`](super::reasoning) and [`calls`](super::calls).
//!
//! Every string is spelled as the model's template writes it, white space included, so that a
//! grammar can be built from it. The parser ignores white space at its ends, because models are not
//! strict about it.

/// Detects a format in a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct FormatSigns {
    /// Strings of the chat template. All strings of any one group must be present.
    pub template: &'static [&'static [&'static str]],
    /// Tokens of the markers. If no template decides, the first one in the vocabulary selects the
    /// format.
    pub tokens: &'static [&'static str],
}

impl FormatSigns {
    /// Detects nothing.
    pub const NONE: Self = Self::new(&[], &[]);

    /// Signs in a template, and tokens.
    pub const fn new(
        template: &'static [&'static [&'static str]],
        tokens: &'static [&'static str],
    ) -> Self {
        Self { template, tokens }
    }
}

/// The text before and after a part of the output.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Before it.
    pub open: &'static str,
    /// After it.
    pub close: &'static str,
}

impl Span {
    /// No markers.
    pub const NONE: Self = Self::new("", "");

    /// A span between two markers.
    pub const fn new(open: &'static str, close: &'static str) -> Self {
        Self { open, close }
    }
}

/// How a model marks its thinking.
#[derive(Debug)]
pub struct ReasoningFormat {
    /// The name on the command line and in configuration files.
    pub name: &'static str,
    /// Texts that start reasoning; the first is the one in [`open_text`](Self::open_text).
    pub open: &'static [&'static str],
    /// Texts that end it.
    pub close: &'static [&'static str],
    /// Markers around the answer that are no part of it.
    pub silent: &'static [&'static str],
    /// Starts reasoning, as the model writes it.
    pub open_text: &'static str,
    /// Ends reasoning, up to the start of an answer or a call.
    pub close_text: &'static str,
    /// Starts an answer, with or without reasoning before it; often empty.
    pub answer_text: &'static str,
    /// How the parts of a message are separated.
    pub framing: Framing,
    /// What detects the format.
    pub signs: FormatSigns,
}

impl ReasoningFormat {
    /// Whether a rendered prompt ends inside reasoning that the template opened.
    ///
    /// Only the very end of the prompt counts: an opening further up may be user input.
    pub fn is_open(&self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        self.open.iter().any(|open| end.ends_with(open))
    }

    /// Whether a rendered prompt ends with reasoning that the template closed.
    pub fn is_closed(&self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        self.close.iter().any(|close| end.ends_with(close))
    }
}

/// Whether a message is one text with marked parts, or a chain of messages with headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// One text with marked parts.
    Inline,
    /// Harmony: every part has a header that names its channel and its recipient.
    Channels,
}

/// How a model writes tool calls.
///
/// The full form is `section.open`, `[` if `list`, calls with `separator` between them, `]`,
/// `section.close`. A call is `call.open`, the syntax's text, `call.close`.
#[derive(Debug)]
pub struct CallFormat {
    /// The name on the command line and in configuration files.
    pub name: &'static str,
    /// Around all calls of a message.
    pub section: Span,
    /// Other spellings of the first opening that models of this format write.
    pub aliases: &'static [&'static str],
    /// Whether models usually omit the section's opening, so that a call is recognized by its first
    /// characters and the name of an existing tool.
    pub unmarked: bool,
    /// Whether the calls form one bracketed list.
    pub list: bool,
    /// Around each call.
    pub call: Span,
    /// Between two calls.
    pub separator: &'static str,
    /// How one call is written.
    pub syntax: CallSyntax,
    /// Whether a call may start within reasoning and so end it.
    pub ends_reasoning: bool,
    /// How the parts of a message are separated.
    pub framing: Framing,
    /// What detects the format.
    pub signs: FormatSigns,
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
    Gemma {
        /// Written before and after a string.
        quote: &'static str,
    },
}

/// The keys of a call object; the first of each is how the model's template writes it.
#[derive(Debug)]
pub struct JsonFields {
    /// Keys of the tool's name.
    pub name: &'static [&'static str],
    /// Keys of the arguments.
    pub arguments: &'static [&'static str],
    /// Keys of the call's identifier.
    pub id: &'static [&'static str],
}

/// [`CallSyntax::NameThenJson`] in detail.
#[derive(Debug)]
pub struct NameThenJson {
    /// Before the name.
    pub before: &'static str,
    /// Where the call's identifier is written.
    pub id: IdPosition,
    /// Between the name and the arguments.
    pub between: &'static str,
    /// After the arguments.
    pub after: &'static str,
}

/// Where a model writes a call's identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdPosition {
    /// There is no identifier.
    None,
    /// Before the name, with this between the two.
    BeforeName(&'static str),
    /// After the name and this mark; optional.
    AfterName(&'static str),
    /// The identifier is this, the name, a colon and a number.
    AroundName(&'static str),
}

/// [`CallSyntax::Tagged`] in detail.
#[derive(Debug)]
pub struct Tagged {
    /// Around the tool's name.
    pub name: Span,
    /// Before a parameter's name.
    pub key_open: &'static str,
    /// After it, with the kind of value that each ending announces.
    pub key_close: &'static [(&'static str, RawValue)],
    /// Between `key_close` and the value.
    pub value_open: &'static str,
    /// After the value.
    pub value_close: &'static str,
    /// Whether a line break on either side of the value is not part of it.
    pub padded: bool,
    /// After the last parameter.
    pub end: &'static str,
}

/// How to interpret the raw text of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawValue {
    /// By the tool's schema.
    BySchema,
    /// A string.
    Text,
    /// A JSON value.
    Json,
}

impl FormatSigns {
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
    /// Texts that the parser recognizes as the start of a call; empty for a format without marks.
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
    /// The text before a call's name, if it alone marks a call.
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
                    IdPosition::None => "",
                    IdPosition::BeforeName(mark)
                    | IdPosition::AfterName(mark)
                    | IdPosition::AroundName(mark) => mark,
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
