//! A model's way of writing conversations down and of saying things.

use std::sync::{Arc, OnceLock};

use loquat_engine::Constrained;
use loquat_grammar::Grammars;
use loquat_text::format::{HERMES, OutputFormat};
use loquat_text::{ChatTemplate, Tokenizer};

use crate::prompt::Taste;
use crate::quote::Quoter;
use crate::without::Without;

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
    quoter: OnceLock<Quoter>,
    without_calls: OnceLock<Option<Without>>,
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
            quoter: OnceLock::new(),
            without_calls: OnceLock::new(),
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

    pub(crate) fn quoter(&self) -> &Quoter {
        let make = || Quoter::new(self.tokenizer());
        self.inner.quoter.get_or_init(make)
    }

    /// Rules that keep a reply from calling tools; `None` where calls have no mark.
    pub(crate) fn without_calls(&self) -> Option<Constrained> {
        let make = || {
            let opens = self.format().calls?.opening_marks();
            let opens = opens.into_iter().map(str::to_owned).collect::<Vec<_>>();
            (!opens.is_empty()).then(|| Without::new(self.tokenizer().clone(), opens))
        };
        let without = self.inner.without_calls.get_or_init(make);
        without.clone().map(Constrained::new)
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
