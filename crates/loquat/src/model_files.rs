//! A model's files, before its weights are loaded.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use loquat_chat::{ChatContext, MediaReader};
use loquat_engine::{EngineOptions, SamplingParams};
use loquat_grammar::Grammars;
use loquat_media::{Limits, MediaError, Processor, ProcessorFiles};
use loquat_session::{Backend, ModelSource, Session, SessionOptions};
use loquat_store::{LocatedMmproj, ResolvedModel, reference_path};
use loquat_text::format::FormatOverrides;
use loquat_text::{ChatTemplate, GenerationConfig, TextError, Tokenizer};
use loquat_weights::{Checkpoint, Format, MmprojChoice};

use crate::{Error, Model, RequestDefaults, sampling};

/// A checkpoint with its weights bound: enough to describe it, to plan memory and to open
/// sessions. Its files are memory-mapped, not read.
///
/// [`ModelOptions::load`](crate::ModelOptions::load) goes through this type. Use it directly to
/// inspect a model, or to check a request, before loading the weights.
pub struct ModelFiles {
    /// The catalog's or hub's name, or the file's name.
    pub name: String,
    /// The checkpoint's metadata and tensors.
    pub checkpoint: Checkpoint,
    /// What a backend opens.
    pub source: ModelSource,
}

impl ModelFiles {
    /// Opens a model that the store located. A model given by path is named after its file.
    pub fn open(located: &ResolvedModel) -> Result<Self, Error> {
        let ResolvedModel { path, name, mmproj } = located;
        let name = if reference_path(name) == *path {
            path.file_name()
                .unwrap_or(path.as_os_str())
                .to_string_lossy()
        } else {
            name.into()
        };
        let mmproj = match mmproj {
            LocatedMmproj::Beside => MmprojChoice::Beside,
            LocatedMmproj::Off => MmprojChoice::Off,
            LocatedMmproj::At(path) => MmprojChoice::At(path),
        };
        let checkpoint = Checkpoint::open_with(path, mmproj)?;
        Self::from_checkpoint(name.into_owned(), checkpoint)
    }

    /// Binds the weights of an open checkpoint.
    pub fn from_checkpoint(name: String, checkpoint: Checkpoint) -> Result<Self, Error> {
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

    /// The number of parameters in matrices, which are nearly all.
    pub fn parameters(&self) -> usize {
        let matrices = self.source.weights.matrices();
        matrices
            .map(|(_, matrix)| matrix.rows() * matrix.cols())
            .sum()
    }

    /// The checkpoint's tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => Tokenizer::from_gguf(metadata)?,
            None => Tokenizer::from_huggingface(self.checkpoint.directory())?,
        })
    }

    /// The checkpoint's own chat template, or a built-in one that fits its family and vocabulary;
    /// `None` if there is neither. A broken template is an error.
    pub fn template(
        &self,
        tokenizer: &Tokenizer,
    ) -> Result<Option<(TemplateOrigin, ChatTemplate)>, Error> {
        if let Some(own) = self.own_template()? {
            return Ok(Some((TemplateOrigin::Checkpoint, own)));
        }
        let has_token = |text: &str| tokenizer.token_id(text).is_some();
        let builtin = ChatTemplate::builtin(self.source.spec.facts().templates, &has_token);
        Ok(builtin.map(|(name, template)| (TemplateOrigin::BuiltIn(name), template)))
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

    /// Compiles constraints for this model's vocabulary.
    pub fn grammars(&self, tokenizer: Tokenizer) -> Grammars {
        Grammars::new(tokenizer, self.source.spec.vocab_size)
    }

    /// The tokenizer, chat template, output formats and grammars. `template` replaces the model's
    /// own; a model without one can only continue texts.
    pub fn chat_context(
        &self,
        template: Option<ChatTemplate>,
        overrides: FormatOverrides,
    ) -> Result<ChatContext, Error> {
        let tokenizer = self.tokenizer()?;
        let template = match template {
            Some(template) => Some(template),
            None => self.template(&tokenizer)?.map(|(_, template)| template),
        };
        let grammars = self.grammars(tokenizer.clone());
        let context = ChatContext::new(tokenizer, template, grammars, overrides);
        Ok(self.with_media(context))
    }

    /// How the checkpoint's processor files prepare media; `None` for models that read text only.
    pub fn processor(&self) -> Option<Result<Processor, MediaError>> {
        self.source.spec.vision.as_ref()?;
        let files = match self.checkpoint.mmproj_processor() {
            Some(fields) => Ok(ProcessorFiles {
                processor: Some(fields.clone()),
                ..ProcessorFiles::default()
            }),
            None => ProcessorFiles::read(self.checkpoint.directory(), &Limits::default()),
        };
        Some(files.and_then(|files| Processor::from_files(&files)))
    }

    /// The context with what the model reads besides text. A model whose media part cannot be used
    /// still answers texts.
    pub fn with_media(&self, context: ChatContext) -> ChatContext {
        let spec = &self.source.spec;
        match (self.processor(), &spec.vision, &spec.vision_refusal) {
            (Some(Ok(processor)), Some(vision), _) => {
                context.with_media(MediaReader::new(processor, vision, Limits::default()))
            }
            (Some(Err(error)), ..) => {
                tracing::warn!("{} refuses images: {error}", self.name);
                context.without_media(format!(
                    "the model's processor files cannot be used: {error}"
                ))
            }
            (_, _, Some(why)) => {
                tracing::warn!("{} refuses images: {why}", self.name);
                context.without_media(format!("the model's vision part is not supported: {why}"))
            }
            _ => context,
        }
    }

    /// The checkpoint's own sampling defaults.
    pub fn generation_config(&self) -> Result<GenerationConfig, Error> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => GenerationConfig::from_gguf(metadata)?,
            None => GenerationConfig::from_huggingface(self.checkpoint.directory())?,
        })
    }

    /// The sampling parameters of requests that set none: the checkpoint's, or Loquat's.
    pub fn sampling(&self) -> Result<SamplingParams, Error> {
        sampling::defaults(&self.generation_config()?).map(|(params, _)| params)
    }

    /// Loads the weights. `progress` receives the fraction done, from 0 to 1.
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
        self.checkpoint.files().check()?;
        tracing::info!(
            "loaded {} on {} in {:.2} s",
            self.name,
            session.capabilities().device,
            started.elapsed().as_secs_f64()
        );
        Ok(session)
    }

    /// Starts an engine on a session of this model, with the model's own sampling defaults.
    pub fn start(
        &self,
        session: Box<dyn Session>,
        chat_context: ChatContext,
        options: EngineOptions,
    ) -> Result<Model, Error> {
        let defaults = RequestDefaults {
            sampling: self.sampling()?,
            ..RequestDefaults::default()
        };
        let model = Model::from_session(&self.name, session, chat_context, options)?;
        let model = model.for_adapters(self.checkpoint.adapter_base());
        Ok(model.with_defaults(defaults))
    }
}

/// Where a chat template comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The checkpoint's files.
    Checkpoint,
    /// Loquat's built-in template of this name.
    BuiltIn(&'static str),
}

impl fmt::Display for TemplateOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint => f.write_str("its own"),
            Self::BuiltIn(name) => write!(f, "built-in {name}"),
        }
    }
}
