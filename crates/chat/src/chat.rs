//! A model's way of writing conversations down and of saying things.

use std::sync::{Arc, OnceLock};

use loquat_grammar::Grammars;
use loquat_text::format::{HERMES, OutputFormat, ReasoningFormat};
use loquat_text::{ChatTemplate, Tokenizer};

use crate::prompt::{Quoters, Taste};
use crate::quote::Quoter;
use crate::thinking;
use crate::without::{Forbids, Without};
use crate::{Effort, Thinking};

/// What one model's chats have in common; cloning shares it.
#[derive(Debug, Clone)]
pub struct Chat {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    format: OutputFormat,
    grammars: Grammars,
    /// Special tokens that are marks of the format, which its parser has to see.
    shown: Vec<u32>,
    taste: OnceLock<Taste>,
    others: OnceLock<Quoter>,
    replies: OnceLock<Quoter>,
    without_calls: OnceLock<Option<Without>>,
    closing_exactly: OnceLock<Without>,
}

impl Chat {
    /// A model without a template refuses every chat. `grammars` are those of the same tokenizer.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, grammars: Grammars) -> Self {
        let source = template
            .as_ref()
            .map_or("", |template| template.source(true));
        let mut format = OutputFormat::detect(source, &|text| tokenizer.token_id(text).is_some());
        if template
            .as_ref()
            .is_some_and(|template| !template.supports_tools())
        {
            // Tools are told in the words of this format, whatever else the vocabulary has.
            format.calls = Some(&HERMES);
        }
        Self::with_format(tokenizer, template, grammars, format)
    }

    /// The same where the model speaks otherwise than its template and vocabulary tell.
    pub fn with_format(
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        grammars: Grammars,
        format: OutputFormat,
    ) -> Self {
        let shown = shown_special(&tokenizer, format);
        let inner = Inner {
            tokenizer,
            template,
            format,
            grammars,
            shown,
            taste: OnceLock::new(),
            others: OnceLock::new(),
            replies: OnceLock::new(),
            without_calls: OnceLock::new(),
            closing_exactly: OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    pub fn template(&self) -> Option<&ChatTemplate> {
        self.inner.template.as_ref()
    }

    /// How the model marks its thinking and its tool calls.
    pub fn format(&self) -> OutputFormat {
        self.inner.format
    }

    /// Whether the template has a variable that makes the model think so.
    pub fn takes_effort(&self, effort: Effort) -> bool {
        let thinking = Thinking {
            effort: Some(effort),
            budget: None,
        };
        let said = |template| thinking::variables(template, thinking).is_ok();
        self.template().is_some_and(said)
    }

    pub fn grammars(&self) -> &Grammars {
        &self.inner.grammars
    }

    pub(crate) fn shown_special(&self) -> &[u32] {
        &self.inner.shown
    }

    /// What the template likes; found out once, by trying.
    pub(crate) fn taste(&self) -> Taste {
        let template = self.template();
        let found = || template.map(Taste::of).unwrap_or_default();
        *self.inner.taste.get_or_init(found)
    }

    pub(crate) fn quoters(&self) -> Quoters<'_> {
        let inner = &*self.inner;
        let others = || Quoter::new(&inner.tokenizer);
        let replies = || Quoter::for_replies(&inner.tokenizer, &inner.shown);
        Quoters {
            others: inner.others.get_or_init(others),
            replies: inner.replies.get_or_init(replies),
        }
    }

    /// Rules that keep a reply from calling tools; `None` where calls have no mark.
    pub(crate) fn without_calls(&self) -> Option<&Without> {
        let make = || {
            let opens = self.format().calls?.opening_marks();
            (!opens.is_empty()).then(|| self.without(&opens, Forbids::Completing))
        };
        self.inner.without_calls.get_or_init(make).as_ref()
    }

    /// Rules by which thinking ends with the mark that closes it, and not behind it.
    pub(crate) fn closing_exactly(&self, reasoning: &ReasoningFormat) -> &Without {
        let make = || self.without(reasoning.close, Forbids::Overrunning);
        self.inner.closing_exactly.get_or_init(make)
    }

    fn without(&self, texts: &[&str], forbids: Forbids) -> Without {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        Without::new(self.tokenizer().clone(), texts, forbids)
    }
}

/// A mark may be made of several tokens.
fn shown_special(tokenizer: &Tokenizer, format: OutputFormat) -> Vec<u32> {
    let markers = format.markers();
    let is_mark = |id: &u32| {
        let text = tokenizer.token_text(*id).filter(|text| !text.is_empty());
        text.is_some_and(|text| markers.iter().any(|marker| marker.contains(&text)))
    };
    let ids = 0..tokenizer.vocab_size() as u32;
    ids.filter(|id| tokenizer.is_special(*id))
        .filter(is_mark)
        .collect()
}
