//! How models mark reasoning and tool calls, and the parser for them.
//!
//! A format is constant data ([`ReasoningFormat`], [`CallFormat`]). One interpreter,
//! [`OutputParser`], reads all formats character by character, so the result never depends on how
//! the text is split. A model's template and vocabulary select its format, never its name.

mod calls;
mod data;
mod lark;
mod parse;
mod reasoning;

pub use calls::{CALLS, HERMES};
pub use data::{
    CallFormat, CallSyntax, FormatSigns, Framing, IdPosition, JsonFields, NameThenJson, RawValue,
    ReasoningFormat, Span, Tagged,
};
pub use lark::{CallRules, ToolRule};
pub use parse::{OutputParser, OutputPiece, ParseOptions, ToolSignature};
pub use reasoning::{REASONING, THINK};

use crate::{ChatTemplate, Result, TextError, Tokenizer};

/// The formats that one model speaks.
#[derive(Debug, Clone, Copy)]
pub struct OutputFormat {
    /// How it marks reasoning; `None` if it does not.
    pub reasoning: Option<&'static ReasoningFormat>,
    /// How it writes tool calls; `None` if it does not.
    pub calls: Option<&'static CallFormat>,
}

/// Formats to use instead of the detected ones. `Some(None)` reads everything as plain text.
#[derive(Debug, Clone, Copy, Default)]
pub struct FormatOverrides {
    /// Replaces the detected reasoning format.
    pub reasoning: Option<Option<&'static ReasoningFormat>>,
    /// Replaces the detected tool-call format.
    pub calls: Option<Option<&'static CallFormat>>,
}

impl OutputFormat {
    /// The formats of a model with this chat template and vocabulary.
    ///
    /// If the template cannot describe tools, the prompt describes them in words and asks for
    /// Hermes calls, regardless of the vocabulary.
    pub fn for_model(
        template: Option<&ChatTemplate>,
        tokenizer: &Tokenizer,
        overrides: FormatOverrides,
    ) -> Self {
        let source = template.map_or("", |template| template.source(true));
        let mut format = Self::detect(source, &|text| tokenizer.token_id(text).is_some());
        if template.is_some_and(|template| !template.supports_tools()) {
            format.calls = Some(&HERMES);
        }
        Self {
            reasoning: overrides.reasoning.unwrap_or(format.reasoning),
            calls: overrides.calls.unwrap_or(format.calls),
        }
    }

    /// Detects formats by the markers in a chat template, then by the tokens of the vocabulary.
    ///
    /// A model without a detected tool format gets the most common one: its prompt describes tools
    /// in words, and these can explain the format.
    pub fn detect(template: &str, has_token: &dyn Fn(&str) -> bool) -> Self {
        let shown = |signs: &FormatSigns| signs.shown_by(template);
        let known =
            |signs: &FormatSigns| signs.tokens.first().is_some_and(|token| has_token(token));
        let reasoning = |by: &dyn Fn(&FormatSigns) -> bool| {
            REASONING.iter().copied().find(|format| by(&format.signs))
        };
        let calls = |by: &dyn Fn(&FormatSigns) -> bool| {
            CALLS.iter().copied().find(|format| by(&format.signs))
        };
        Self {
            reasoning: reasoning(&shown).or_else(|| reasoning(&known)),
            calls: calls(&shown).or_else(|| calls(&known)).or(Some(&HERMES)),
        }
    }

    /// The formats with these names.
    pub fn named(reasoning: Option<&str>, calls: Option<&str>) -> Result<Self> {
        let reasoning = reasoning.map(|name| {
            find(REASONING, |format| format.name, name).map_err(|known| {
                TextError::UnknownReasoningFormat {
                    name: name.to_owned(),
                    known,
                }
            })
        });
        let calls = calls.map(|name| {
            find(CALLS, |format| format.name, name).map_err(|known| TextError::UnknownCallFormat {
                name: name.to_owned(),
                known,
            })
        });
        Ok(Self {
            reasoning: reasoning.transpose()?,
            calls: calls.transpose()?,
        })
    }

    /// Strings that must stay visible in the text for the parser, even if they are special tokens.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = Vec::new();
        if let Some(reasoning) = self.reasoning {
            markers.extend(reasoning.markers());
        }
        if let Some(calls) = self.calls {
            markers.extend(calls.markers());
        }
        markers.retain(|marker| !marker.is_empty());
        markers.sort_unstable();
        markers.dedup();
        markers
    }

    /// Whether the output is a chain of messages with headers.
    pub(crate) fn framing(&self) -> Framing {
        let channels = self
            .reasoning
            .is_some_and(|it| it.framing == Framing::Channels)
            || self.calls.is_some_and(|it| it.framing == Framing::Channels);
        if channels {
            Framing::Channels
        } else {
            Framing::Inline
        }
    }
}

/// The format of this name, or the names there are.
fn find<T>(
    table: &[&'static T],
    name_of: impl Fn(&T) -> &'static str,
    name: &str,
) -> std::result::Result<&'static T, String> {
    let found = table.iter().copied().find(|format| name_of(format) == name);
    found.ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|format| name_of(format)).collect();
        names.join(", ")
    })
}
