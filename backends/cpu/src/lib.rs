//! The native CPU backend: every block kind of the spec on the machine's own cores.
//!
//! Weights are repacked once at load for the widest kernels the machine has; a sequence's
//! results are bit-identical whatever else runs beside it. Scheduling, sampling and text are
//! the engine's; files are `weights`'.

mod affinity;
mod arena;
mod buffers;
mod forward;
mod kernels;
mod kv;
mod linear;
mod load;
mod machine;
mod marks;
mod model;
mod pack;
mod pool;
mod session;
mod shared;
mod state;

use loquat_session::limits::{Limits, Sizes};
use loquat_session::transfer::fingerprint;
use loquat_session::{
    Backend, Capabilities, Device, DeviceKind, Memory, ModelSource, OpenError, Plan, Precision,
    PrefixCopy, Probe, Session, SessionOptions,
};

use kernels::{Half, Kernels, KvElement, PAGE};
use kv::{Cache, PageLayout};
use model::Model;
use pack::Packer;
use pool::Pool;
use session::CpuSession;
use state::StateLayout;

/// The backend on one instruction set.
pub struct CpuBackend {
    kernels: Option<&'static Kernels>,
}

impl CpuBackend {
    /// On the widest instruction set the machine has.
    pub const AUTO: Self = Self { kernels: None };

    /// One backend for each instruction set this machine can run, fastest first. They give the
    /// same bits.
    pub fn every_instruction_set() -> Vec<Self> {
        let tables = kernels::supported().into_iter();
        tables
            .map(|table| Self {
                kernels: Some(table),
            })
            .collect()
    }

    fn kernels(&self) -> &'static Kernels {
        self.kernels.unwrap_or_else(|| kernels::supported()[0])
    }

    fn label(&self, threads: usize) -> String {
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu ({threads} thread{plural}, {})", self.kernels().name)
    }

    fn plan<T: KvElement>(
        &self,
        source: &ModelSource,
        options: &SessionOptions,
    ) -> Result<(Plan, Limits), OpenError> {
        let spec = &source.spec;
        let threads = machine::wanted_threads(options)?;
        let kv_bytes_per_token = (PageLayout::new(spec).token_len() * T::BYTES) as u64;
        let state_bytes = StateLayout::new(spec).bytes();
        let weights = Model::predict_bytes(spec, &source.weights, options.precision);
        let buffers = buffers::predict_bytes(spec, options.max_step_tokens);
        let sizes = Sizes {
            device_bytes: machine::memory_bytes(),
            kv_bytes_per_token,
            granularity: PAGE,
            state_bytes,
            own_bytes: buffers.saturating_add(weights.packed),
            mapped_bytes: weights.mapped,
        };
        let limits = Limits::new(spec.max_context, options, &sizes)?;
        let recurrent = spec.is_recurrent();
        let plan = Plan {
            capabilities: Capabilities {
                device: self.label(threads),
                vocab_size: spec.vocab_size,
                max_context: limits.context,
                max_sequences: limits.max_sequences,
                max_step_tokens: options.max_step_tokens,
                structured_output: true,
                hidden_size: Some(spec.hidden_size),
                draws: false,
                speculative_decoding: !recurrent,
                prefix_copy: match recurrent {
                    true => PrefixCopy::AtSnapshots,
                    false => PrefixCopy::AnyLength,
                },
                multimodal: false,
                batched_serving: true,
                export: true,
                kv_format: T::NAME,
                batch_invariant: true,
            },
            memory: Memory {
                weight_bytes: weights.packed + weights.mapped,
                kv_bytes_per_token,
                kv_capacity: limits.kv_tokens,
                kv_in_use: 0,
                kv_granularity: PAGE,
                state_bytes,
                states_in_use: 0,
            },
            resident_bytes: limits.resident_bytes,
            notes: Vec::new(),
        };
        Ok((plan, limits))
    }

    fn open<T: KvElement>(
        &self,
        source: &ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        let (plan, limits) = self.plan::<T>(source, options)?;
        limits.check_memory()?;
        let threads = machine::wanted_threads(options)?;
        let mut pool = Pool::new(threads).map_err(|error| OpenError::Option {
            option: "threads",
            found: threads.to_string(),
            expected: format!("as many as the system can start ({error})"),
        })?;
        let model = Model::load(
            &source.spec,
            &source.weights,
            options.precision,
            limits.context,
            Packer::new(&mut pool),
            progress,
        )?;
        let cache = Cache::<T>::new(
            &source.spec,
            limits.kv_tokens,
            limits.states,
            limits.max_sequences,
        );
        Ok(Box::new(CpuSession {
            model,
            kernels: self.kernels(),
            pool,
            cache,
            capabilities: plan.capabilities,
            weight_bytes: plan.memory.weight_bytes,
            fingerprint: fingerprint(source, T::NAME),
            plan: Default::default(),
            scratch: Default::default(),
            logits: Vec::new(),
            notes: Default::default(),
        }))
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn probe(&self) -> Probe {
        Probe::Available(vec![Device {
            kind: DeviceKind::Cpu,
            label: self.label(machine::threads()),
            memory_bytes: machine::memory_bytes(),
        }])
    }

    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
        let (plan, _) = match options.precision {
            Precision::Fast => self.plan::<Half>(source, options)?,
            Precision::Reference => self.plan::<f32>(source, options)?,
        };
        Ok(plan)
    }

    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        match options.precision {
            Precision::Fast => self.open::<Half>(&source, options, progress),
            Precision::Reference => self.open::<f32>(&source, options, progress),
        }
    }
}
