//! A model as its files describe it, before its weights are loaded.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use loquat_chat::ChatContext;
use loquat_engine::SamplingParams;
use loquat_grammar::Grammars;
use loquat_session::{Backend, ModelSource, Session, SessionOptions};
use loquat_store::Located;
use loquat_text::format::FormatOverrides;
use loquat_text::{ChatTemplate, GenerationConfig, TextError, Tokenizer};
use loquat_weights::{Checkpoint, Format};

use crate::Error;

/// A checkpoint with its weights bound: enough to describe it, to plan with, and to open sessions.
/// Its files are mapped, not read.
pub struct ModelFiles {
    pub name: String,
    pub checkpoint: Checkpoint,
    pub source: ModelSource,
}

impl ModelFiles {
    /// What the store found, under the name it has there, or under the file's own where it was
    /// found by its path.
    pub fn open(located: &Located) -> Result<Self, Error> {
        let Located { path, name } = located;
        let name = if Path::new(name) == path {
            path.file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
        } else {
            name.into()
        };
        Self::of(name.into_owned(), Checkpoint::open(path)?)
    }

    pub fn of(name: String, checkpoint: Checkpoint) -> Result<Self, Error> {
        let source = ModelSource {
            spec: Arc::new(checkpoint.spec.clone()),
            weights: Arc::new(checkpoint.bind()?),
            paths: checkpoint.paths.clone(),
        };
        Ok(Self {
            name,
            checkpoint,
            source,
        })
    }

    /// In matrices, which are all but all of them.
    pub fn parameters(&self) -> usize {
        let matrices = self.source.weights.matrices();
        matrices
            .map(|(_, matrix)| matrix.rows() * matrix.cols())
            .sum()
    }

    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => Tokenizer::from_gguf(metadata)?,
            None => Tokenizer::from_huggingface(self.checkpoint.directory())?,
        })
    }

    /// The checkpoint's own template, or a built-in one that fits its family and vocabulary;
    /// `None` where neither is there. A broken one is an error.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<Option<(Origin, ChatTemplate)>, Error> {
        if let Some(own) = self.own_template()? {
            return Ok(Some((Origin::Checkpoint, own)));
        }
        let has_token = |text: &str| tokenizer.token_id(text).is_some();
        let builtin = ChatTemplate::builtin(self.source.spec.facts().templates, &has_token);
        Ok(builtin.map(|(name, template)| (Origin::BuiltIn(name), template)))
    }

    fn own_template(&self) -> Result<Option<ChatTemplate>, Error> {
        let template = match (self.checkpoint.format, self.checkpoint.gguf_metadata()) {
            (Format::Gguf, Some(metadata)) => ChatTemplate::from_gguf(metadata),
            _ => ChatTemplate::from_huggingface(self.checkpoint.directory()),
        };
        match template {
            Ok(template) => Ok(Some(template)),
            Err(TextError::NoChatTemplate) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What holds this model's answers to a form.
    pub fn grammars(&self, tokenizer: Tokenizer) -> Grammars {
        Grammars::new(tokenizer, self.source.spec.vocab_size)
    }

    /// How the model is spoken to. Without a template it can only complete texts.
    pub fn chat(&self, template: Option<ChatTemplate>) -> Result<ChatContext, Error> {
        let tokenizer = self.tokenizer()?;
        let template = match template {
            Some(template) => Some(template),
            None => self.template(&tokenizer)?.map(|(_, template)| template),
        };
        let grammars = self.grammars(tokenizer.clone());
        let overrides = FormatOverrides::default();
        Ok(ChatContext::new(tokenizer, template, grammars, overrides))
    }

    /// How the checkpoint's authors want it sampled.
    pub fn generation_config(&self) -> Result<GenerationConfig, Error> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => GenerationConfig::from_gguf(metadata)?,
            None => GenerationConfig::from_huggingface(self.checkpoint.directory())?,
        })
    }

    /// How it is sampled where nobody says.
    pub fn sampling(&self) -> Result<SamplingParams, Error> {
        crate::sampling::defaults(&self.generation_config()?).map(|(params, _)| params)
    }

    /// Loads the weights; `progress` hears which share of them is there.
    pub fn session(
        &self,
        backend: &dyn Backend,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, Error> {
        for note in backend.plan(&self.source, options)?.notes {
            tracing::info!("{note}");
        }
        let started = Instant::now();
        let session = backend.open(self.source.clone(), options, progress)?;
        tracing::info!(
            "loaded {} on {} in {:.2} s",
            self.name,
            session.capabilities().device,
            started.elapsed().as_secs_f64()
        );
        Ok(session)
    }
}

/// Whose template it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Checkpoint,
    BuiltIn(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint => f.write_str("its own"),
            Self::BuiltIn(name) => write!(f, "built-in {name}"),
        }
    }
}
