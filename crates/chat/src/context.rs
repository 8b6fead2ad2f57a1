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
use crate::{Effort, MediaReader, Thinking};

/// A model's tokenizer, chat template, output formats and grammars. Clones share them.
#[derive(Debug, Clone)]
pub struct ChatContext {
    inner: Arc<Inner>,
}

/// What a model makes of media.
#[derive(Debug, Clone)]
enum MediaSupport {
    Reads(Box<MediaReader>),
    /// Why not.
    Refuses(String),
}

#[derive(Debug)]
struct Inner {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    format: OutputFormat,
    overrides: FormatOverrides,
    grammars: Grammars,
    media: MediaSupport,
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
        let media = MediaSupport::Refuses("this model reads text only".to_owned());
        Self::build(tokenizer, template, grammars, overrides, media)
    }

    /// The same context for a model that reads media.
    pub fn with_media(&self, reader: MediaReader) -> Self {
        self.with_media_support(MediaSupport::Reads(Box::new(reader)))
    }

    /// The same context, which refuses media for this reason.
    pub fn without_media(&self, why: impl Into<String>) -> Self {
        self.with_media_support(MediaSupport::Refuses(why.into()))
    }

    fn with_media_support(&self, media: MediaSupport) -> Self {
        let Inner {
            tokenizer,
            template,
            grammars,
            overrides,
            ..
        } = &*self.inner;
        let (tokenizer, template) = (tokenizer.clone(), template.clone());
        Self::build(tokenizer, template, grammars.clone(), *overrides, media)
    }

    fn build(
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        grammars: Grammars,
        overrides: FormatOverrides,
        media: MediaSupport,
    ) -> Self {
        let format = OutputFormat::for_model(template.as_ref(), &tokenizer, overrides);
        let shown = shown_special(&tokenizer, format);
        let inner = Inner {
            tokenizer,
            template,
            format,
            overrides,
            grammars,
            media,
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

    /// How media are read, if the model reads any.
    pub fn media_reader(&self) -> Option<&MediaReader> {
        match &self.inner.media {
            MediaSupport::Reads(reader) => Some(reader),
            MediaSupport::Refuses(_) => None,
        }
    }

    /// Why media are refused, if they are.
    pub fn media_refusal(&self) -> Option<&str> {
        match &self.inner.media {
            MediaSupport::Reads(_) => None,
            MediaSupport::Refuses(why) => Some(why),
        }
    }

    fn media_markers(&self) -> Vec<&str> {
        let markers = self.media_reader().map(MediaReader::markers);
        let markers = markers.map(|markers| [markers.image, markers.video]);
        let markers = markers.into_iter().flatten();
        markers.filter(|marker| !marker.is_empty()).collect()
    }

    pub(crate) fn shown_special(&self) -> &[u32] {
        &self.inner.shown
    }

    /// Probed once.
    pub(crate) fn template_traits(&self) -> TemplateTraits {
        let template = self.template();
        let image = self.media_reader().map(|reader| reader.markers().image);
        let probe = || {
            let traits = template.map(|template| TemplateTraits::probe(template, image));
            traits.unwrap_or_default()
        };
        *self.inner.traits.get_or_init(probe)
    }

    pub(crate) fn quoters(&self) -> Quoters<'_> {
        let inner = &*self.inner;
        let markers = self.media_markers();
        let others = || Quoter::new(&inner.tokenizer, &markers);
        let replies = || Quoter::for_replies(&inner.tokenizer, &inner.shown, &markers);
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
