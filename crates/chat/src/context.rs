//! What all chats with one model share.

use std::sync::{Arc, OnceLock};

use loquat_grammar::Grammars;
use loquat_text::format::{FormatOverrides, OutputFormat, ReasoningFormat};
use loquat_text::{ChatTemplate, Tokenizer};

use crate::forbidden_text::{ForbiddenText, Forbids};
use crate::prompt::Quoters;
use crate::quote::Quoter;
use crate::template_traits::TemplateTraits;
use crate::thinking;
use crate::{Effort, Thinking};

/// A model's tokenizer, chat template, output formats and grammars. Clones share them.
#[derive(Debug, Clone)]
pub struct ChatContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    format: OutputFormat,
    grammars: Grammars,
    /// Special tokens that are marks of the format; the parser needs their text.
    shown: Vec<u32>,
    traits: OnceLock<TemplateTraits>,
    others: OnceLock<Quoter>,
    replies: OnceLock<Quoter>,
    without_calls: OnceLock<Option<ForbiddenText>>,
    closing_exactly: OnceLock<ForbiddenText>,
}

impl ChatContext {
    /// `grammars` must use the same tokenizer. A model without a template refuses every chat.
    pub fn new(
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        grammars: Grammars,
        overrides: FormatOverrides,
    ) -> Self {
        let format = OutputFormat::for_model(template.as_ref(), &tokenizer, overrides);
        let shown = shown_special(&tokenizer, format);
        let inner = Inner {
            tokenizer,
            template,
            format,
            grammars,
            shown,
            traits: OnceLock::new(),
            others: OnceLock::new(),
            replies: OnceLock::new(),
            without_calls: OnceLock::new(),
            closing_exactly: OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The chat template; `None` if the model can only continue texts.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.inner.template.as_ref()
    }

    /// How the model marks reasoning and tool calls.
    pub fn format(&self) -> OutputFormat {
        self.inner.format
    }

    /// Whether the template has a variable that sets this effort.
    pub fn supports_effort(&self, effort: Effort) -> bool {
        let thinking = Thinking {
            effort: Some(effort),
            budget: None,
        };
        let sets = |template| thinking::variables(template, thinking).is_ok();
        self.template().is_some_and(sets)
    }

    /// Compiles constraints for the model's vocabulary.
    pub fn grammars(&self) -> &Grammars {
        &self.inner.grammars
    }

    pub(crate) fn shown_special(&self) -> &[u32] {
        &self.inner.shown
    }

    /// Probed once.
    pub(crate) fn template_traits(&self) -> TemplateTraits {
        let template = self.template();
        let probe = || template.map(TemplateTraits::probe).unwrap_or_default();
        *self.inner.traits.get_or_init(probe)
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

    /// Keeps a reply from calling tools; `None` if calls have no mark.
    pub(crate) fn without_calls(&self) -> Option<&ForbiddenText> {
        let make = || {
            let opens = self.format().calls?.opening_marks();
            (!opens.is_empty()).then(|| self.forbidden(&opens, Forbids::Completing))
        };
        self.inner.without_calls.get_or_init(make).as_ref()
    }

    /// Makes thinking end with its closing mark, with nothing after it in the same token.
    pub(crate) fn closing_exactly(&self, reasoning: &ReasoningFormat) -> &ForbiddenText {
        let make = || self.forbidden(reasoning.close, Forbids::Overrunning);
        self.inner.closing_exactly.get_or_init(make)
    }

    fn forbidden(&self, texts: &[&str], forbids: Forbids) -> ForbiddenText {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        ForbiddenText::new(self.tokenizer().clone(), texts, forbids)
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
