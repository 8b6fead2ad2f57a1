//! From a model of the configuration to one that answers.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use loquat::ModelFiles;
use loquat_chat::ChatContext;
use loquat_engine::EngineOptions;
use loquat_server::config;
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned};
use loquat_session::{Backend, Plan, Probe, SessionOptions};
use loquat_store::{FileKind, ResolvedReference, Store};
use loquat_text::ChatTemplate;
use loquat_text::format::FormatOverrides;
use loquat_weights::Format;

use crate::args::{ModelChoice, RETAINED_SEQUENCES};
use crate::backends;
use crate::error::CliError;
use crate::fit::{self, OpenAttempt};
use crate::load::{self, LoadOptions, locate};
use crate::voice;

use super::trim::trim;

/// Models of this machine and of the catalog, on the backends of this program.
pub struct LocalModels {
    store: Store,
}

impl LocalModels {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Whether the model is there and could be loaded as it is wanted.
    pub fn check(&self, wanted: &config::Model) -> Result<(), CliError> {
        wanted.template.as_deref().map(template).transpose()?;
        Fitting::of(&self.store, wanted).map(|_| ())
    }

    /// The same without a download.
    pub fn check_here(&self, wanted: &config::Model) -> Result<(), CliError> {
        backends::select(&wanted.backend)?;
        let named = loquat_store::ModelQuery {
            reference: &wanted.source,
            kind: wanted.kind.map(file_kind),
        };
        match self.store.resolve(&named)? {
            ResolvedReference::Local(_) => self.check(wanted),
            ResolvedReference::Catalog { .. } | ResolvedReference::Hub(_) => wanted
                .template
                .as_deref()
                .map(template)
                .transpose()
                .map(drop),
        }
    }
}

impl Opener for LocalModels {
    fn plan(&self, wanted: &config::Model) -> Result<Planned, OpenFailure> {
        let found = Found::at(&self.store, wanted).map_err(failure)?;
        Ok(Planned {
            info: found.info(),
            resident_bytes: found.fitting.plan.resident_bytes,
        })
    }

    fn open(&self, wanted: &config::Model) -> Result<Opened, OpenFailure> {
        let found = Found::at(&self.store, wanted).map_err(failure)?;
        let attempt = found.fitting.attempt.clone();
        // What was planned may no longer be free.
        let opened = found.open(wanted);
        let opened = opened.map_err(|error| fit::with_advice(&self.store, &attempt, error));
        let opened = opened.map_err(failure)?;
        trim();
        Ok(opened)
    }
}

fn failure(error: CliError) -> OpenFailure {
    OpenFailure(error.to_string())
}

/// A model that the machine can take.
struct Fitting {
    files: ModelFiles,
    backend: &'static dyn Backend,
    options: SessionOptions,
    plan: Plan,
    attempt: OpenAttempt,
}

impl Fitting {
    fn of(store: &Store, wanted: &config::Model) -> Result<Self, CliError> {
        let backend = backends::select(&wanted.backend)?;
        check_device(backend, wanted.device.as_deref())?;
        let options = session_options(wanted);
        let chosen = ModelChoice {
            reference: Some(wanted.source.clone()),
            kind: wanted.kind.map(file_kind),
        };
        let attempt = OpenAttempt::new(store, &chosen, &wanted.backend, &options);
        fit::refuse_oversized(store, &attempt)?;
        let files = ModelFiles::open(&locate(store, &chosen)?)?;
        let planned = backend.plan(&files.source, &options);
        let plan = planned.map_err(|error| fit::with_advice(store, &attempt, error.into()))?;
        Ok(Self {
            files,
            backend,
            options,
            plan,
            attempt,
        })
    }
}

fn file_kind(kind: config::FileKind) -> FileKind {
    match kind {
        config::FileKind::Gguf => FileKind::Gguf,
        config::FileKind::Mlx => FileKind::Mlx,
        config::FileKind::Safetensors => FileKind::Safetensors,
    }
}

/// A model with everything known about it but its weights loaded.
struct Found {
    fitting: Fitting,
    chat_context: ChatContext,
}

impl Found {
    fn at(store: &Store, wanted: &config::Model) -> Result<Self, CliError> {
        let fitting = Fitting::of(store, wanted)?;
        let template = wanted.template.as_deref().map(template).transpose()?;
        let chat_context = fitting
            .files
            .chat_context(template, FormatOverrides::default())?;
        Ok(Self {
            fitting,
            chat_context,
        })
    }

    fn info(&self) -> ModelInfo {
        let Fitting {
            files,
            backend,
            plan,
            ..
        } = &self.fitting;
        let template = self.chat_context.template();
        let metadata = FileMetadata::read(files);
        ModelInfo {
            family: files.checkpoint.spec.family.to_owned(),
            format: match files.checkpoint.format {
                Format::Gguf => "gguf",
                Format::Safetensors => "safetensors",
                Format::Mlx => "mlx",
            }
            .to_owned(),
            quantization: quantization(files),
            parameters: files.parameters() as u64,
            size_bytes: metadata.bytes,
            modified: metadata.modified,
            backend: backend.name().to_owned(),
            device: plan.capabilities.device.clone(),
            on_gpu: backends::has_gpu(*backend),
            context: plan.capabilities.max_context,
            has_template: template.is_some(),
            // A template that knows no tools gets them in words.
            tools: template.is_some(),
            thinking: self.chat_context.format().reasoning.is_some(),
            embeddings: plan.capabilities.hidden_size.is_some(),
            template: template.map(|template| template.source(false).to_owned()),
        }
    }

    fn open(self, wanted: &config::Model) -> Result<Opened, CliError> {
        let info = self.info();
        let Fitting {
            files,
            backend,
            options,
            plan,
            ..
        } = self.fitting;
        let options = LoadOptions {
            backend,
            session: options,
            engine: engine_options(wanted),
        };
        Ok(Opened {
            model: load::model(&files, self.chat_context, options)?,
            info,
            resident_bytes: plan.resident_bytes,
        })
    }
}

fn session_options(wanted: &config::Model) -> SessionOptions {
    SessionOptions {
        context: wanted.context,
        memory: wanted.memory,
        threads: wanted.threads,
        max_sequences: wanted.parallel.saturating_add(RETAINED_SEQUENCES),
        precision: wanted.precision,
        kv_format: wanted.kv_format.format(),
        ..SessionOptions::default()
    }
}

fn engine_options(wanted: &config::Model) -> EngineOptions {
    EngineOptions {
        max_running: Some(wanted.parallel),
        max_queue: wanted.max_queue,
        max_slowdown: wanted.max_slowdown,
        queue_timeout: wanted.queue_timeout,
        cache_bytes: wanted.cache_bytes,
        reader_grace: reader_grace(wanted.threads),
        ..EngineOptions::default()
    }
}

/// Where computing leaves the server no core of its own, it gets one for a moment after a step.
/// Measured by `loquat bench --http`: most of a crowd's tokens are on their way within it.
pub fn reader_grace(threads: Option<usize>) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if threads.unwrap_or(cores) < cores {
        Duration::ZERO
    } else {
        Duration::from_millis(1)
    }
}

/// Backends open models on their first device.
fn check_device(backend: &dyn Backend, wanted: Option<&str>) -> Result<(), CliError> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let first = match backend.probe() {
        Probe::Available(devices) => devices.into_iter().next().map(|device| device.label),
        Probe::Unavailable { .. } => None,
    };
    match first {
        Some(first) if first != wanted => Err(CliError::Usage {
            what: format!("`device` is {wanted:?}; on backend `{}` it", backend.name()),
            expected: format!("{first:?}, or left out"),
        }),
        _ => Ok(()),
    }
}

fn template(named: &str) -> Result<ChatTemplate, CliError> {
    voice::named_template("template", Path::new(named))
}

/// The format that most of the numbers are kept in.
fn quantization(files: &ModelFiles) -> String {
    let mut formats = std::collections::BTreeMap::new();
    for (_, matrix) in files.source.weights.matrices() {
        *formats.entry(matrix.format()).or_insert(0) += matrix.rows() * matrix.cols();
    }
    let most = formats.into_iter().max_by_key(|(_, numbers)| *numbers);
    most.map(|(format, _)| format).unwrap_or_default()
}

/// What the file system says of a model.
struct FileMetadata {
    bytes: u64,
    modified: u64,
}

impl FileMetadata {
    fn read(files: &ModelFiles) -> Self {
        let metadata = files.checkpoint.paths.first().map(std::fs::metadata);
        let metadata = metadata.and_then(Result::ok);
        let modified = metadata.as_ref().and_then(|data| data.modified().ok());
        let since_1970 = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        // The file of a model in several is an index of them.
        let file = metadata.map_or(0, |data| data.len());
        Self {
            bytes: file.max(files.source.weights.bytes()),
            modified: since_1970.map_or(0, |time| time.as_secs()),
        }
    }
}
