//! The native CPU backend, which implements every block kind of the spec.
//!
//! Weights are repacked once at load for the widest kernels the machine has; a sequence's results
//! do not depend on the rest of the batch, bit for bit. Scheduling, sampling and text belong to the
//! engine, files to `weights`.

mod adapted;
mod adapter;
mod affinity;
mod arena;
mod buffers;
mod forward;
mod instruction_set;
mod kv;
mod linear;
mod load;
mod machine;
mod measure;
mod model;
mod pack;
mod page;
mod plain;
mod pool;
mod recurrent_state;
mod scaling;
mod session;
mod shared;
mod tower;

pub use loquat_cpu_kernels::cpu_features;
pub use machine::{MachineCores, MachineMemory, processor_name};
pub use measure::{MachineLimits, measure, measure_quickly};
pub use scaling::{ScalingEstimate, estimate_scaling};

use std::sync::Arc;

use loquat_cpu_kernels::{Bf16Bits, F16Bits, Kernels, KvElement, PAGE, supported};
use loquat_session::limits::{Limits, MediaSizes, Sizes};
use loquat_session::recurrent_state::StateLayout;
use loquat_session::sequences::{SequenceLimits, Sequences, TransferScope};
use loquat_session::{
    Backend, BackendTraits, Device, DeviceKind, KvElementFormat, KvFormat, KvGroups, ModelSource,
    OpenError, Plan, Precision, Probe, Session, SessionOptions,
};
use loquat_spec::{Mixer, ModelSpec};

use buffers::Extent;
use kv::KvStorage;
use model::Model;
use pack::Packer;
use page::PageLayout;
use pool::Pool;
use session::CpuSession;

/// The backend on one instruction set.
pub struct CpuBackend {
    kernels: Option<&'static Kernels>,
}

impl CpuBackend {
    /// On the widest instruction set that the machine has and the variable `LOQUAT_ISA` allows.
    pub const AUTO: Self = Self { kernels: None };

    /// One backend for each instruction set this machine can run, fastest first. They give the
    /// same bits.
    pub fn every_instruction_set() -> Vec<Self> {
        let tables = supported().into_iter();
        tables
            .map(|table| Self {
                kernels: Some(table),
            })
            .collect()
    }

    /// The instruction sets of this machine that `LOQUAT_ISA` allows, fastest first;
    /// [`CpuBackend::AUTO`] uses the first. Empty if the variable names none of this machine's.
    pub fn instruction_sets() -> Vec<&'static str> {
        let tables = instruction_set::allowed().unwrap_or_default();
        tables.iter().map(|table| table.name).collect()
    }

    /// The instruction set of one of [`CpuBackend::every_instruction_set`], or `auto`.
    pub fn instruction_set(&self) -> &'static str {
        self.kernels.map_or("auto", |kernels| kernels.name)
    }

    fn kernels(&self) -> Result<&'static Kernels, OpenError> {
        match self.kernels {
            Some(kernels) => Ok(kernels),
            None => Ok(instruction_set::allowed()?[0]),
        }
    }

    fn plan<T: KvElement>(
        &self,
        source: &ModelSource,
        options: &SessionOptions,
    ) -> Result<(Plan, Limits), OpenError> {
        let spec = &source.spec;
        let format = kv_format(source, options)?;
        let threads = machine::resolve_threads(options)?;
        let media = MediaSizes::new(spec, options, size_of::<f32>());
        let runs_tower = media.positions > 0;
        let weights = Model::predict_bytes(spec, &source.weights, (options.precision, runs_tower));
        let context = options.context.unwrap_or(spec.max_context);
        let extent = Extent {
            tokens: media.step_tokens(options.max_step_tokens, context),
            context,
            threads,
        };
        let sizes = Sizes {
            device_bytes: machine::memory_bytes(),
            kv_groups: PageLayout::new(spec, &format).kv_groups::<T>(),
            granularity: PAGE,
            state_bytes: StateLayout::new(spec).bytes(),
            weight_bytes: weights.packed,
            mapped_bytes: weights.mapped,
            buffer_bytes: buffers::predict_bytes(spec, extent)
                .saturating_add(adapted::predict_bytes(
                    spec,
                    extent.tokens,
                    &options.adapters,
                ))
                .saturating_add(tower_buffer_bytes(spec, &media)),
            media,
            adapters: options.adapters,
        };
        let limits = Limits::new(spec.max_context, options, &sizes)?;
        let traits = BackendTraits {
            device: label(self.kernels()?, threads),
            kv_format: format.to_string(),
            draws: false,
            batch_invariant: true,
            chunk_invariant: true,
        };
        Ok((Plan::new(spec, &limits, traits), limits))
    }

    fn open<T: KvElement>(
        &self,
        source: &ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        let (plan, limits) = self.plan::<T>(source, options)?;
        limits.check_memory()?;
        let threads = machine::resolve_threads(options)?;
        let mut pool = Pool::new(threads).map_err(|error| OpenError::Option {
            option: "threads",
            found: threads.to_string(),
            expected: format!("as many as the system can start ({error})"),
        })?;
        let packed = usize::try_from(limits.sizes.weight_bytes).unwrap_or(usize::MAX);
        let model = Model::load(
            &source.spec,
            &source.weights,
            (options.precision, limits.sizes.media.positions > 0),
            limits.context,
            Packer::new(packed, &mut pool),
            progress,
        )?;
        let format = kv_format(source, options)?;
        let storage = KvStorage::<T>::new(&source.spec, &format, limits.kv_tokens);
        let numbers = (options.precision, &limits);
        let transfers = TransferScope::new(source, "cpu", &format.to_string(), numbers);
        Ok(Box::new(CpuSession {
            model,
            kernels: self.kernels()?,
            pool,
            sequences: Sequences::new(storage, SequenceLimits::from(&limits)),
            capabilities: plan.capabilities,
            memory: plan.memory,
            transfers,
            spec: Arc::clone(&source.spec),
            plan: Default::default(),
            scratch: Default::default(),
            logits: Default::default(),
            largest: Default::default(),
            rows: Default::default(),
            adapters: Default::default(),
        }))
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn probe(&self) -> Probe {
        match self.kernels() {
            Ok(kernels) => Probe::Available(vec![Device {
                kind: DeviceKind::Cpu,
                label: label(kernels, machine::threads()),
                memory_bytes: machine::memory_bytes(),
                memory_bytes_per_second: None,
            }]),
            Err(error) => Probe::Unavailable {
                why: format!("{error}."),
                remedy: "Unset LOQUAT_ISA to use the fastest.".to_owned(),
            },
        }
    }

    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
        let (plan, _) = match kv_format(source, options)?.element() {
            KvElementFormat::F32 => self.plan::<f32>(source, options)?,
            KvElementFormat::F16 => self.plan::<F16Bits>(source, options)?,
            KvElementFormat::Bf16 => self.plan::<Bf16Bits>(source, options)?,
            _ => self.plan::<u8>(source, options)?,
        };
        Ok(plan)
    }

    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        match kv_format(&source, options)?.element() {
            KvElementFormat::F32 => self.open::<f32>(&source, options, progress),
            KvElementFormat::F16 => self.open::<F16Bits>(&source, options, progress),
            KvElementFormat::Bf16 => self.open::<Bf16Bits>(&source, options, progress),
            _ => self.open::<u8>(&source, options, progress),
        }
    }
}

/// What a token's keys and values take in this backend, by the reach of layers.
pub fn kv_groups(spec: &ModelSpec, format: &KvFormat) -> KvGroups {
    let layout = PageLayout::new(spec, format);
    match format.element() {
        KvElementFormat::F32 => layout.kv_groups::<f32>(),
        KvElementFormat::F16 => layout.kv_groups::<F16Bits>(),
        KvElementFormat::Bf16 => layout.kv_groups::<Bf16Bits>(),
        _ => layout.kv_groups::<u8>(),
    }
}

/// Bytes of the tower's buffers, if it runs.
fn tower_buffer_bytes(spec: &ModelSpec, media: &MediaSizes) -> u64 {
    let vision = spec.vision.as_ref().filter(|_| media.positions > 0);
    vision.map_or(0, |vision| {
        tower::predict_buffer_bytes(vision, media.max_patches)
    })
}

fn label(kernels: &Kernels, threads: usize) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("cpu ({threads} thread{plural}, {})", kernels.name)
}

/// The requested format, or the default of the precision.
fn kv_format(source: &ModelSource, options: &SessionOptions) -> Result<KvFormat, OpenError> {
    let format = options.kv_format.unwrap_or(match options.precision {
        Precision::Fast => KvFormat::F16,
        Precision::Reference => KvFormat::F32,
    });
    let mut mixers = source.spec.mixers();
    let latent = mixers.any(|(_, mixer)| matches!(mixer, Mixer::Latent(_)));
    if latent && !format.is_float() {
        // Its values are a part of its keys, so that one code would have to serve both.
        return Err(OpenError::Option {
            option: "kv_format",
            found: format.to_string(),
            expected: "f16, bf16 or f32 for a model with latent attention".to_owned(),
        });
    }
    Ok(format)
}
