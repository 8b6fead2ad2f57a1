//! Plans and opens sessions on any [`Device`].

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_session::limits::{Limits, MediaSizes, Sizes as LimitSizes};
use loquat_session::sequences::{SequenceLimits, Sequences, TransferScope};
use loquat_session::{
    BackendTraits, KvElementFormat, KvFormat, MediaInputs, ModelSource, OpenError, Plan, Precision,
    SessionOptions,
};
use loquat_spec::{ModelSpec, Role};
use loquat_weights::Weights;

use crate::adapter::AdapterTargets;
use crate::decode::can_record;
use crate::device::{Device, DeviceError};
use crate::fused_launch::TILE_TOKENS;
use crate::listing::ProgramListing;
use crate::lower::{
    Buffers, KvLayout, Program, Sizes, WeightLoader, check_fast, lower, lower_fast,
};
use crate::ops::{Format, PAGE};
use crate::session::CudaSession;
use crate::storage::DeviceStorage;
use crate::tables::{StepSizes, StepTables};
use crate::tower::Tower;

/// A device to plan for.
pub struct DeviceTraits {
    /// For display.
    pub label: String,
    pub memory_bytes: Option<u64>,
    /// It has the kernels of the fast path.
    pub has_fast_path: bool,
}

/// One of the ways to lower a model.
type Lower = fn(
    &ModelSpec,
    &mut WeightLoader<'_>,
    &mut Buffers,
    &KvLayout,
    Sizes,
) -> Result<Program, OpenError>;

/// A session that is not opened yet.
pub struct Draft {
    format: Format,
    kv: KvLayout,
    kv_format: KvFormat,
    sizes: Sizes,
    limits: Limits,
    traits: DeviceTraits,
    lower: Lower,
    /// Why the fast path does not run the model, if it does not.
    not_fast: Option<&'static str>,
}

impl Draft {
    pub fn new(
        source: &ModelSource,
        options: &SessionOptions,
        traits: DeviceTraits,
    ) -> Result<Self, OpenError> {
        let spec = &source.spec;
        let kv_format = kv_format(options)?;
        if let Some(threads) = options.threads {
            return Err(OpenError::Option {
                option: "threads",
                found: threads.to_string(),
                expected: "absent: a GPU has no threads to choose".to_owned(),
            });
        }
        let format = match options.precision {
            Precision::Fast => Format::Bf16,
            Precision::Reference => Format::F32,
        };
        let kv_element = match kv_format.element() {
            KvElementFormat::F32 => Format::F32,
            _ => Format::Bf16,
        };
        let kv = KvLayout::new(spec, kv_element);
        let media = media_sizes(spec, options);
        let context = options.context.unwrap_or(spec.max_context);
        let step_tokens = media.step_tokens(options.max_step_tokens, context);
        let sizes = Sizes {
            tokens: step_tokens,
            context,
        };
        let not_fast = if format != Format::Bf16 {
            Some("it computes in f32")
        } else if kv_element != Format::Bf16 {
            Some("keys and values are not in bf16")
        } else if options.adapters.any() {
            // Its matrices are packed together, where adapters cannot change them by role.
            Some("the session allows adapters")
        } else if !traits.has_fast_path {
            Some("no fast kernels run on the GPU")
        } else {
            check_fast(spec).err()
        };
        let (lower, sizes): (Lower, Sizes) = if not_fast.is_none() {
            let tokens = step_tokens.next_multiple_of(TILE_TOKENS);
            (lower_fast, Sizes { tokens, ..sizes })
        } else {
            (lower, sizes)
        };
        let bytes = measure(lower, (spec, &source.weights), format, &kv, (sizes, &media))?;
        let (weight_bytes, buffer_bytes) = bytes;
        let table_bytes = StepTables::max_bytes(&StepSizes {
            tokens: step_tokens,
            rows: options.max_sequences.min(step_tokens),
            groups: kv.groups(),
            levels: levels(spec),
            row_pages: context / PAGE + 2,
        });
        let limit_sizes = LimitSizes {
            device_bytes: traits.memory_bytes,
            kv_groups: kv.kv_groups(),
            granularity: PAGE,
            state_bytes: kv.state_bytes() as u64,
            weight_bytes,
            mapped_bytes: 0,
            buffer_bytes: buffer_bytes.saturating_add(table_bytes),
            media,
            adapters: options.adapters,
        };
        let limits = Limits::new(spec.max_context, options, &limit_sizes)?;
        Ok(Self {
            format,
            kv,
            kv_format,
            sizes,
            limits,
            traits,
            lower,
            not_fast,
        })
    }

    /// What a session's steps launch.
    pub fn listing(&self, source: &ModelSource) -> Result<ProgramListing, OpenError> {
        let spec = &source.spec;
        let mut buffers = Buffers::default();
        let mut program = Program::default();
        // The first pass finds the buffers, which the second one refers to by their numbers.
        for _ in 0..2 {
            buffers.number();
            let mut ignored = |_: f32| {};
            let mut counting = WeightLoader::new(&source.weights, None, self.format, &mut ignored);
            program = (self.lower)(spec, &mut counting, &mut buffers, &self.kv, self.sizes)?;
        }
        Ok(ProgramListing {
            device: self.traits.label.clone(),
            format: self.format,
            kv_format: self.kv_format,
            not_fast: self.not_fast,
            sizes: self.sizes,
            weight_bytes: self.limits.sizes.weight_bytes,
            kv: self.kv.clone(),
            tower: runs_tower(spec, &self.limits.sizes.media),
            program,
            buffers,
        })
    }

    pub fn plan(&self, source: &ModelSource) -> Plan {
        let traits = BackendTraits {
            device: self.traits.label.clone(),
            kv_format: self.kv_format.to_string(),
            draws: true,
            batch_invariant: true,
            // On the fast path rows of one token attend in another kernel than longer ones.
            chunk_invariant: self.not_fast.is_some(),
        };
        let mut plan = Plan::new(&source.spec, &self.limits, traits);
        let runs_tower = runs_tower(&source.spec, &self.limits.sizes.media);
        if !runs_tower {
            plan.capabilities.media = MediaInputs {
                images: false,
                videos: false,
                ..plan.capabilities.media
            };
        }
        plan.notes = notes(&source.weights, self.format, runs_tower);
        plan
    }

    pub fn check_memory(&self) -> Result<(), OpenError> {
        self.limits.check_memory()
    }

    pub fn open(
        mut self,
        mut device: Box<dyn Device>,
        source: &ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<CudaSession, OpenError> {
        let plan = self.plan(source);
        let spec = &source.spec;
        let mut buffers = Buffers::default();
        let mut ignored = |_: f32| {};
        let mut counting = WeightLoader::new(&source.weights, None, self.format, &mut ignored);
        (self.lower)(spec, &mut counting, &mut buffers, &self.kv, self.sizes)?;
        buffers.allocate(&mut *device, self.sizes.tokens)?;
        let kv_tokens = self.limits.kv_tokens;
        let storage = DeviceStorage::new(device, &mut self.kv, kv_tokens)?;
        let (tower, program) = {
            let mut device = storage.device();
            let device: &mut dyn Device = &mut **device;
            let weights = &source.weights;
            let mut loader = WeightLoader::new(weights, Some(device), self.format, progress);
            let tower = load_tower(spec, &self.limits.sizes.media, &mut loader)?;
            let program = (self.lower)(spec, &mut loader, &mut buffers, &self.kv, self.sizes)?;
            (tower, program)
        };
        let kv_format = self.kv_format.to_string();
        let numbers = (options.precision, &self.limits);
        let transfers = TransferScope::new(source, "cuda", &kv_format, numbers);
        let records = can_record(&program);
        Ok(CudaSession {
            adapter_targets: AdapterTargets::new(spec, &program, self.format),
            adapters: BTreeMap::new(),
            step_adapters: Default::default(),
            program,
            tower,
            sequences: Sequences::new(storage, SequenceLimits::from(&self.limits)),
            transfers,
            capabilities: plan.capabilities,
            memory: plan.memory,
            spec: Arc::clone(spec),
            tables: StepTables::new(levels(spec)),
            records,
            decoding: Default::default(),
            rows: Default::default(),
        })
    }
}

/// Levels of media features.
fn levels(spec: &ModelSpec) -> usize {
    1 + spec
        .vision
        .as_ref()
        .map_or(0, |vision| vision.deepstack.len())
}

/// Without a tower that runs, only raw embeddings are taken, and only if they are asked for.
fn media_sizes(spec: &ModelSpec, options: &SessionOptions) -> MediaSizes {
    let mut options = options.clone();
    if !spec.vision.as_ref().is_some_and(Tower::supports) {
        options.media_positions.get_or_insert(0);
    }
    MediaSizes::new(spec, &options, size_of::<f32>())
}

fn runs_tower(spec: &ModelSpec, media: &MediaSizes) -> bool {
    media.positions > 0 && spec.vision.as_ref().is_some_and(Tower::supports)
}

/// The tower, if it runs.
fn load_tower(
    spec: &ModelSpec,
    media: &MediaSizes,
    loader: &mut WeightLoader<'_>,
) -> Result<Option<Tower>, OpenError> {
    if !runs_tower(spec, media) {
        return Ok(None);
    }
    Tower::load(spec, media.max_patches, loader)
}

/// Bytes of weights and of buffers.
fn measure(
    lower: Lower,
    (spec, weights): (&ModelSpec, &Weights),
    format: Format,
    kv: &KvLayout,
    (sizes, media): (Sizes, &MediaSizes),
) -> Result<(u64, u64), OpenError> {
    let mut ignored = |_: f32| {};
    let mut loader = WeightLoader::new(weights, None, format, &mut ignored);
    let mut buffers = Buffers::default();
    lower(spec, &mut loader, &mut buffers, kv, sizes)?;
    load_tower(spec, media, &mut loader)?;
    let vision = spec.vision.as_ref().filter(|_| runs_tower(spec, media));
    let of_tower = vision.map_or(0, |vision| Tower::buffer_bytes(vision, media.max_patches));
    let of_steps = buffers.bytes(sizes.tokens).0;
    Ok((loader.bytes().0, of_steps.saturating_add(of_tower)))
}

/// The requested format, or the default of the precision.
fn kv_format(options: &SessionOptions) -> Result<KvFormat, OpenError> {
    let format = options.kv_format.unwrap_or(match options.precision {
        Precision::Fast => KvFormat::BF16,
        Precision::Reference => KvFormat::F32,
    });
    match format.element() {
        KvElementFormat::F32 | KvElementFormat::Bf16 => Ok(format),
        _ => Err(OpenError::Option {
            option: "kv_format",
            found: format.to_string(),
            expected: "bf16 or f32 on this backend".to_owned(),
        }),
    }
}

/// What matrices are stored as, by their format in the file.
fn notes(weights: &Weights, format: Format, runs_tower: bool) -> Vec<String> {
    let stored = match format {
        Format::F32 => "f32",
        Format::Bf16 => "bf16",
    };
    let mut formats: Vec<String> = weights
        .matrices()
        .filter(|(role, _)| runs_tower || !matches!(role, Role::Vision(_)))
        .map(|(_, matrix)| matrix.format())
        .collect();
    formats.sort();
    formats.dedup();
    formats
        .iter()
        .filter(|own| own.to_lowercase() != stored)
        .map(|own| format!("{own} weights are decoded to {stored}"))
        .collect()
}

impl DeviceError {
    pub fn into_open_error(self) -> OpenError {
        match self {
            DeviceError::OutOfMemory { wanted, available } => OpenError::OutOfMemory {
                what: "model",
                wanted,
                bound: loquat_session::MemoryBound::Machine,
                available,
            },
            other => OpenError::Device(other.to_string()),
        }
    }
}
