//! Opens the models of the configuration.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use loquat::{AdapterFile, MmprojOption, ModelFiles, OpenAdapters};
use loquat_chat::{ChatContext, MediaReader};
use loquat_engine::{DiskOptions, EngineOptions, SpeculationOptions};
use loquat_server::config;
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned, trim_memory};
use loquat_session::{AdapterLimits, Backend, Plan, Probe, SessionOptions};
use loquat_store::{CACHE_VARIABLE, ModelReference, ResolvedReference, Store, reference_path};
use loquat_text::ChatTemplate;
use loquat_text::format::FormatOverrides;
use loquat_weights::Format;

use crate::args::{ModelChoice, RETAINED_SEQUENCES};
use crate::error::CliError;
use crate::fit::{self, OpenAttempt};
use crate::load::{self, LoadOptions, kv_blocks, locate};
use crate::progress::DownloadBar;
use crate::{backends, chat_setup};

/// Models of this machine and of the catalog, on the backends of this program.
pub struct LocalModels {
    store: Store,
}

impl LocalModels {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Downloads the model if needed, and checks that it can be loaded with its options.
    pub fn check(&self, config: &config::ModelConfig) -> Result<(), CliError> {
        self.check_with(config, &|_| true)
    }

    fn check_with(
        &self,
        config: &config::ModelConfig,
        reads: &dyn Fn(&str) -> bool,
    ) -> Result<(), CliError> {
        config.template.as_deref().map(template).transpose()?;
        let planned = PlannedModel::new(&self.store, config)?;
        check_adapters(&self.store, &planned, config, reads)
    }

    /// The same, but checks a model that is not downloaded only by its options, and no adapter that
    /// is not.
    pub fn check_here(&self, config: &config::ModelConfig) -> Result<(), CliError> {
        backends::select(&config.backend)?;
        let named = loquat_store::ModelQuery {
            reference: &config.source,
            kind: config.kind,
            ..loquat_store::ModelQuery::default()
        };
        match self.store.resolve(&named)? {
            ResolvedReference::Local(_) => {
                self.check_with(config, &|source| self.store.has_adapter(source))
            }
            ResolvedReference::Catalog { .. } | ResolvedReference::Hub(_) => config
                .template
                .as_deref()
                .map(template)
                .transpose()
                .map(drop),
        }
    }
}

/// Reads the adapters, of the hub's those that `reads` accepts, and checks that they fit the model
/// and its limits.
fn check_adapters(
    store: &Store,
    planned: &PlannedModel,
    config: &config::ModelConfig,
    reads: &dyn Fn(&str) -> bool,
) -> Result<(), CliError> {
    let limits = planned.plan.capabilities.adapters;
    if config.takes_adapters() && !limits.any() {
        return Err(CliError::Usage {
            what: format!(
                "`adapters` of the model `{}`: the backend `{}` takes none; `backend`",
                config.name,
                planned.backend.name()
            ),
            expected: "another one".to_owned(),
        });
    }
    for (name, adapter) in &config.adapters {
        // One that is nowhere is an error, not a download.
        let is_hub = matches!(
            ModelReference::parse(&adapter.source),
            Ok(ModelReference::Hub(_))
        );
        if is_hub && !reads(&adapter.source) {
            continue;
        }
        let file = AdapterFile {
            path: reference_path(&adapter.source).into_owned(),
            scale: adapter.scale,
        };
        let needed = load::adapters(store, &planned.files, &[file])?.limits();
        for (option, needed, limit) in [
            ("max_adapter_rank", needed.rank as u64, limits.rank as u64),
            ("adapter_memory", needed.bytes, limits.bytes),
        ] {
            if needed > limit {
                return Err(CliError::Usage {
                    what: format!("`{option}` is {limit}; for the adapter `{name}` it"),
                    expected: format!("at least {needed}"),
                });
            }
        }
    }
    Ok(())
}

impl Opener for LocalModels {
    fn plan(&self, config: &config::ModelConfig) -> Result<Planned, OpenFailure> {
        let prepared = ServableModel::new(&self.store, config).map_err(failure)?;
        Ok(Planned {
            info: prepared.info(),
            resident_bytes: prepared.planned.plan.resident_bytes,
        })
    }

    fn locate_adapter(&self, source: &str) -> Result<PathBuf, OpenFailure> {
        let located = self
            .store
            .locate_adapter(source, &mut DownloadBar::default());
        Ok(located.map_err(|error| failure(error.into()))?.path)
    }

    fn open(&self, config: &config::ModelConfig) -> Result<Opened, OpenFailure> {
        let prepared = ServableModel::new(&self.store, config).map_err(failure)?;
        let attempt = prepared.planned.attempt.clone();
        // Memory that was free when planning may be in use by now.
        let opened = prepared.open(config, self.store.cache_dir());
        let opened = opened.map_err(|error| fit::with_advice(&self.store, &attempt, error));
        let opened = opened.map_err(failure)?;
        trim_memory();
        Ok(opened)
    }
}

fn mmproj(config: &config::ModelConfig) -> MmprojOption {
    match config.mmproj.as_deref() {
        None => MmprojOption::Auto,
        Some("none") => MmprojOption::Off,
        Some(reference) => MmprojOption::Reference(reference.to_owned()),
    }
}

fn failure(error: CliError) -> OpenFailure {
    OpenFailure::new(error)
}

/// A model that fits this machine.
struct PlannedModel {
    files: ModelFiles,
    backend: &'static dyn Backend,
    options: SessionOptions,
    plan: Plan,
    attempt: OpenAttempt,
}

impl PlannedModel {
    fn new(store: &Store, config: &config::ModelConfig) -> Result<Self, CliError> {
        let backend = backends::select(&config.backend)?;
        check_device(backend, config.device.as_deref())?;
        let options = session_options(config);
        let chosen = ModelChoice {
            reference: Some(config.source.clone()),
            kind: config.kind,
            mmproj: mmproj(config),
        };
        let attempt = OpenAttempt::new(store, &chosen, &config.backend, &options);
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

/// A model to serve, before its weights are loaded.
struct ServableModel {
    planned: PlannedModel,
    chat_context: ChatContext,
}

impl ServableModel {
    fn new(store: &Store, config: &config::ModelConfig) -> Result<Self, CliError> {
        let planned = PlannedModel::new(store, config)?;
        let template = config.template.as_deref().map(template).transpose()?;
        let chat_context = planned
            .files
            .chat_context(template, FormatOverrides::default())?;
        Ok(Self {
            planned,
            chat_context,
        })
    }

    fn info(&self) -> ModelInfo {
        let PlannedModel {
            files,
            backend,
            plan,
            ..
        } = &self.planned;
        let template = self.chat_context.template();
        let metadata = FileMetadata::read(files);
        let (reader, media) = (self.chat_context.media_reader(), &plan.capabilities.media);
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
            // Templates without tools get them described in text.
            tools: template.is_some(),
            thinking: self.chat_context.format().reasoning.is_some(),
            embeddings: plan.capabilities.hidden_size.is_some(),
            images: reader.is_some() && media.images,
            videos: reader.is_some_and(MediaReader::takes_video) && media.videos,
            template: template.map(|template| template.source(false).to_owned()),
        }
    }

    fn open(self, config: &config::ModelConfig, cache_dir: &Path) -> Result<Opened, CliError> {
        let info = self.info();
        let PlannedModel {
            files,
            backend,
            options,
            plan,
            ..
        } = self.planned;
        let options = LoadOptions {
            // The server loads them, one by one.
            adapters: OpenAdapters::default(),
            backend,
            session: options,
            engine: engine_options(config, disk_options(cache_dir, config.kv_disk)),
        };
        Ok(Opened {
            model: load::model(&files, self.chat_context, options)?,
            info,
            resident_bytes: plan.resident_bytes,
        })
    }
}

fn session_options(config: &config::ModelConfig) -> SessionOptions {
    SessionOptions {
        context: config.context,
        memory: config.memory,
        media_positions: config.media_positions,
        threads: config.threads,
        max_sequences: config.parallel.saturating_add(RETAINED_SEQUENCES),
        precision: config.precision,
        kv_format: config.kv_format.format(),
        adapters: if config.takes_adapters() {
            AdapterLimits {
                count: config.max_adapters,
                bytes: config.adapter_memory,
                rank: config.max_adapter_rank,
            }
        } else {
            AdapterLimits::NONE
        },
        ..SessionOptions::default()
    }
}

fn engine_options(config: &config::ModelConfig, kv_disk: Option<DiskOptions>) -> EngineOptions {
    EngineOptions {
        max_running: Some(config.parallel),
        max_queue: config.max_queue,
        max_slowdown: config.max_slowdown,
        queue_timeout: config.queue_timeout,
        cache_bytes: config.cache_bytes,
        kv_disk,
        reader_grace: reader_grace(config.threads),
        speculation: SpeculationOptions {
            mode: config.speculative,
            max_tokens: config.draft_max,
        },
        ..EngineOptions::default()
    }
}

/// Without `kv_disk`, only a cache directory that somebody chose is filled.
fn disk_options(cache_dir: &Path, kv_disk: Option<u64>) -> Option<DiskOptions> {
    const DEFAULT: u64 = 10 << 30;
    let chosen = std::env::var_os(CACHE_VARIABLE).is_some_and(|path| !path.is_empty());
    match kv_disk {
        Some(0) => None,
        Some(max_bytes) => Some(kv_blocks(cache_dir, max_bytes)),
        None => chosen.then(|| DiskOptions {
            required: false,
            ..kv_blocks(cache_dir, DEFAULT)
        }),
    }
}

/// If computing uses every core, the server gets one for a moment after each step. Measured with
/// `loquat bench --http`: most tokens of many streams are sent within it.
pub fn reader_grace(threads: Option<usize>) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if threads.unwrap_or(cores) < cores {
        Duration::ZERO
    } else {
        Duration::from_millis(1)
    }
}

/// Backends open models on their first device, so `device` can only name that one.
fn check_device(backend: &dyn Backend, device: Option<&str>) -> Result<(), CliError> {
    let Some(device) = device else {
        return Ok(());
    };
    let first = match backend.probe() {
        Probe::Available(devices) => devices.into_iter().next().map(|device| device.label),
        Probe::Unavailable { .. } => None,
    };
    match first {
        Some(first) if first != device => Err(CliError::Usage {
            what: format!("`device` is {device:?}; on backend `{}` it", backend.name()),
            expected: format!("{first:?}, or left out"),
        }),
        _ => Ok(()),
    }
}

fn template(named: &Path) -> Result<ChatTemplate, CliError> {
    chat_setup::named_template("template", named)
}

/// The format of most parameters.
fn quantization(files: &ModelFiles) -> String {
    let mut formats = std::collections::BTreeMap::new();
    for (_, matrix) in files.source.weights.matrices() {
        *formats.entry(matrix.format()).or_insert(0) += matrix.rows() * matrix.cols();
    }
    let most = formats.into_iter().max_by_key(|(_, numbers)| *numbers);
    most.map(|(format, _)| format).unwrap_or_default()
}

/// Size and time of a model's files.
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
        // The first file of a sharded model is an index.
        let file = metadata.map_or(0, |data| data.len());
        Self {
            bytes: file.max(files.source.weights.bytes()),
            modified: since_1970.map_or(0, |time| time.as_secs()),
        }
    }
}
