//! The tokenizer, independent of the file it was loaded from.

use std::path::Path;
use std::sync::Arc;

use loquat_weights::gguf::Metadata;
use tokenizers::{AddedVocabulary, Model, OffsetType, PreTokenizer};

use crate::fim::{FimIds, FimTokens};
use crate::interrupt::Interrupt;
use crate::limited_normalizer::NormalizerSteps;
use crate::sentencepiece::SentencePiece;
use crate::tokenizer_limits::without_panics;
use crate::vocabulary::{TokenKind, Vocabulary};
use crate::{Result, TextError, gguf_vocab, huggingface};

/// How special tokens are treated while encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// Add the tokenizer's prefix and suffix (usually BOS, rarely EOS). A text that already starts
    /// with the prefix does not get a second one.
    pub add: bool,
    /// Recognise special tokens written in the text; otherwise they are plain characters.
    pub parse: bool,
}

impl Special {
    /// A prompt as a person writes it for a base model: bounds added, special tokens recognised.
    pub const PROMPT: Self = Self {
        add: true,
        parse: true,
    };
    /// For rendered chat templates, which write every special token themselves.
    pub const RENDERED: Self = Self {
        add: false,
        parse: true,
    };
    /// For text that must stay text, such as user input or a stop string.
    pub const PLAIN: Self = Self {
        add: false,
        parse: false,
    };
}

/// A tokenizer; cloning shares it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<TokenizerData>,
    interrupt: Interrupt,
}

/// The result of a loader.
#[derive(Debug)]
pub(crate) struct TokenizerData {
    pub encoder: Encoder,
    pub vocabulary: Vocabulary,
    /// Added before and after a text.
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
    pub eos_ids: Vec<u32>,
    /// Encoding adds a space before the text, so decoding removes it.
    pub strips_leading_space: bool,
    pub fim: FimIds,
}

#[derive(Debug)]
pub(crate) enum Encoder {
    Library(Box<LibraryEncoder>),
    SentencePiece(Box<SentencePiece>),
}

/// The tokenizer library's pipeline. The library keeps the choice whether special tokens are
/// recognized as state; here it is made per call.
#[derive(Debug)]
pub(crate) struct LibraryEncoder {
    tokenizer: tokenizers::Tokenizer,
    normalizer: Option<NormalizerSteps>,
    without_special: AddedVocabulary,
}

impl LibraryEncoder {
    pub(crate) fn new(tokenizer: tokenizers::Tokenizer) -> tokenizers::Result<Self> {
        let normalizer = tokenizer.get_normalizer().map(NormalizerSteps::new);
        let normalizer = normalizer.transpose()?;
        let mut without_special = tokenizer.get_added_vocabulary().clone();
        without_special.set_encode_special_tokens(true);
        Ok(Self {
            tokenizer,
            normalizer,
            without_special,
        })
    }

    fn encode(&self, text: &str, parse_special: bool, interrupt: &Interrupt) -> Result<Vec<u32>> {
        let encoded = without_panics(|| self.encode_unguarded(text, parse_special, interrupt));
        encoded.map_err(|source| match source.downcast() {
            Ok(interrupted) => *interrupted,
            Err(source) => TextError::Encode { source },
        })
    }

    fn encode_unguarded(
        &self,
        text: &str,
        parse_special: bool,
        interrupt: &Interrupt,
    ) -> tokenizers::Result<Vec<u32>> {
        let added = if parse_special {
            self.tokenizer.get_added_vocabulary()
        } else {
            &self.without_special
        };
        let steps = self.normalizer.as_ref();
        let normalizer = steps.map(|steps| steps.limited(text.len()));
        let mut pieces = added.extract_and_normalize(normalizer.as_ref(), text);
        if let Some(normalizer) = normalizer {
            normalizer.finish()?;
        }
        interrupt.check()?;
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        let model = self.tokenizer.get_model();
        pieces.tokenize(|piece| {
            interrupt.check()?;
            model.tokenize(piece.get())
        })?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        Ok(encoding.get_ids().to_vec())
    }
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, or the one in a folder, with the configuration files next to it.
    pub fn from_huggingface(dir_or_file: &Path) -> Result<Self> {
        huggingface::load(dir_or_file).map(Self::from_parts)
    }

    /// Rebuilds the tokenizer a GGUF file describes.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        gguf_vocab::load(metadata).map(Self::from_parts)
    }

    pub(crate) fn from_parts(parts: TokenizerData) -> Self {
        Self {
            inner: Arc::new(parts),
            interrupt: Interrupt::default(),
        }
    }

    /// The same tokenizer, whose encoding fails with [`TextError::Interrupted`] once this is true. It
    /// is asked between the steps of an encoding and before each word, or each merge of
    /// SentencePiece.
    pub fn interruptible(&self, is_unwanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            interrupt: Interrupt::new(is_unwanted),
        }
    }

    /// Turns text into token ids.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        let parts = &*self.inner;
        let mut ids = match &parts.encoder {
            Encoder::Library(library) => library.encode(text, special.parse, &self.interrupt)?,
            Encoder::SentencePiece(model) => model.encode(text, special.parse, &self.interrupt)?,
        };
        if special.add {
            if !ids.starts_with(&parts.prefix) {
                ids.splice(0..0, parts.prefix.iter().copied());
            }
            if !ids.ends_with(&parts.suffix) {
                ids.extend(&parts.suffix);
            }
        }
        Ok(ids)
    }

    /// Encodes text from the middle of another, without the tokenizer's leading space.
    pub fn encode_inner(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        // Vocabularies have this character by itself only, so it leaves the text's tokens alone.
        const LEAD: &str = "\u{2}";
        if !self.inner.strips_leading_space {
            return self.encode(text, special);
        }
        let lead = self.encode(LEAD, Special::PLAIN)?;
        let both = self.encode(&format!("{LEAD}{text}"), special)?;
        match both.strip_prefix(lead.as_slice()) {
            Some(ids) => Ok(ids.to_vec()),
            None => self.encode(text, special),
        }
    }

    /// Decodes token ids. Bytes that are not UTF-8 become U+FFFD. An id without a token (models pad
    /// their vocabulary) adds nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let shown = ids.iter().filter_map(|id| self.shown(*id, skip_special));
        let bytes = shown.collect::<Vec<_>>().concat();
        let text = match bytes.strip_prefix(b" ") {
            Some(rest) if self.inner.strips_leading_space => rest,
            _ => &bytes,
        };
        String::from_utf8_lossy(text).into_owned()
    }

    /// The bytes a token adds to a decoded text.
    pub(crate) fn shown(&self, id: u32, skip_special: bool) -> Option<&[u8]> {
        if skip_special && self.is_special(id) {
            return None;
        }
        self.token_bytes(id)
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.inner.strips_leading_space
    }

    /// The raw bytes of one token, which may be partial characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.inner.vocabulary.bytes(id)
    }

    /// One past the highest token id. A model's output may be wider: those ids have no token.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocabulary.len()
    }

    /// The BOS token.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// The EOS token the tokenizer names. Use [`eos_ids`](Self::eos_ids) to decide when to stop.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// The padding token.
    pub fn pad(&self) -> Option<u32> {
        self.inner.pad
    }

    /// Every token that ends a reply, in no particular order and each once.
    pub fn eos_ids(&self) -> &[u32] {
        &self.inner.eos_ids
    }

    /// Added before a text.
    pub(crate) fn prefix(&self) -> &[u32] {
        &self.inner.prefix
    }

    /// The tokens of fill-in-the-middle prompts, if the vocabulary has them.
    pub fn fim(&self) -> Option<FimTokens> {
        FimTokens::find(self.inner.fim, |name| self.token_id(name))
    }

    /// Whether this is a control token, hidden from text by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.vocabulary.kind(id) == TokenKind::Special
    }

    /// Whether this token is matched as a unit in text, special or not.
    pub fn is_added(&self, id: u32) -> bool {
        self.inner.vocabulary.kind(id) == TokenKind::Added
    }

    /// The id of a token by its text as the vocabulary spells it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.inner.encoder {
            Encoder::Library(library) => library.tokenizer.token_to_id(text),
            Encoder::SentencePiece(model) => model.token_id(text),
        }
    }

    /// A token as text, for templates that name `bos_token` and `eos_token`.
    pub fn token_text(&self, id: u32) -> Option<String> {
        let bytes = self.token_bytes(id)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
