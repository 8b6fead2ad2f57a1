//! The MLX backend: every block kind of the spec on MLX, so that Apple's GPUs (Metal), NVIDIA's
//! (CUDA) and, for correctness, any CPU run the same code.
//!
//! MLX is loaded at run time through a small shim; without it everything else works, and
//! [`Backend::probe`] reports what is missing. Scheduling, sampling and text belong to the engine,
//! files to `weights`.

mod adapted;
mod adapter;
mod ahead;
mod array;
mod blocks;
mod device;
mod draw;
mod error;
mod ffi;
mod kv;
mod kv_batches;
mod layout;
mod library;
mod linear;
mod loader;
mod media;
mod memory;
mod model;
mod norm;
mod pack;
mod pass;
mod places;
mod session;
mod step;
mod storage;
#[cfg(test)]
mod testing;
mod tower;
mod transfer;
mod worker;

use std::sync::Arc;

use loquat_session::limits::{Limits, MediaSizes, Sizes};
use loquat_session::sequences::SequenceLimits;
use loquat_session::transfer::fingerprint;
use loquat_session::{
    Backend, BackendTraits, ModelSource, OpenError, Plan, Probe, Session, SessionOptions,
};
use loquat_spec::{MediaAttention, Role};

use array::{DeviceKind, Ops, Type};
use device::MlxDevice;
use error::LoadError;
use layout::Layout;
use loader::Loader;
use memory::MemoryShare;
use model::Model;
use pack::MatrixNote;
use session::MlxSession;
use storage::{ArrayStorage, MlxSequences, PAGE};
use worker::ThreadedSession;

const REMEDY: &str = "Run `cargo xtask mlx` to fetch MLX and build with `--features mlx`, or put \
                      the shim and the library beside the program.";

/// The backend on MLX's best device: a GPU, or else its CPU.
pub struct MlxBackend {
    /// Tokens of a KV page.
    page: usize,
}

impl MlxBackend {
    pub const AUTO: Self = Self { page: PAGE };

    /// The same with KV pages of so many tokens, for tests: smaller ones are freed earlier behind
    /// short windows, and copied more often.
    pub const fn with_page(page: usize) -> Self {
        Self { page }
    }

    fn device(&self) -> Result<MlxDevice, OpenError> {
        let api = library::api().map_err(|error| unavailable(self.name(), &error))?;
        Ok(MlxDevice::best(api))
    }

    fn draft(&self, source: &ModelSource, options: &SessionOptions) -> Result<Draft, OpenError> {
        if let Some(threads) = options.threads {
            return Err(OpenError::Option {
                option: "threads",
                found: threads.to_string(),
                expected: "absent: MLX chooses its own threads".to_owned(),
            });
        }
        let device = self.device()?;
        let (spec, weights) = (&source.spec, &source.weights);
        // MLX's CPU computes some products only in float32, and sums others in their own type.
        let dtype = match device.kind() {
            DeviceKind::Cpu => Type::F32,
            DeviceKind::Gpu => loader::activation_type(spec, weights, options.precision),
        };
        if let Some(requested) = options
            .kv_format
            .filter(|requested| requested.to_string() != dtype.name())
        {
            return Err(OpenError::Option {
                option: "kv_format",
                found: requested.to_string(),
                expected: if requested.is_float() {
                    format!("{}, the type of this model's activations", dtype.name())
                } else {
                    format!(
                        "{}: this backend has no kernel that attends to codes. For q8 and turbo \
                         formats, use `--backend cpu`",
                        dtype.name()
                    )
                },
            });
        }
        let media = MediaSizes::new(spec, options, dtype.bytes());
        if spec.is_recurrent() && spec.media_attention() != MediaAttention::Causal {
            return Err(OpenError::Unavailable {
                backend: self.name(),
                why: "It saves recurrent states inside of media that attend both ways.".to_owned(),
                remedy: "Use `--backend cpu` for this model.".to_owned(),
            });
        }
        let layout = Layout::new(spec);
        let tower = spec.vision.as_ref().filter(|_| media.positions > 0);
        let is_loaded = |role: &Role| tower.is_some() || !matches!(role, Role::Vision(_));
        let matrices = pack::report(weights, dtype, is_loaded);
        let vectors = weights
            .vectors()
            .filter(|(role, _)| is_loaded(role))
            .map(|(_, vector)| vector.len() * dtype.bytes());
        let weight_bytes =
            matrices.iter().map(|note| note.bytes).sum::<u64>() + vectors.sum::<usize>() as u64;
        let kv_groups = layout.kv_groups(dtype, self.page);
        let extra_positions = (options.max_sequences as u64)
            .saturating_mul(kv::EXTRA_POSITIONS as u64 * kv_groups.bytes_per_token());
        let context = options.context.unwrap_or(spec.max_context);
        let step_tokens = media.step_tokens(options.max_step_tokens, context);
        let buffers = model::buffer_bytes(spec, step_tokens, dtype).saturating_add(
            tower.map_or(0, |tower| {
                tower::buffer_bytes(tower, media.max_patches, dtype)
            }),
        );
        let sizes = Sizes {
            device_bytes: Some(device.memory_bytes()),
            kv_groups,
            granularity: self.page,
            state_bytes: layout.state_bytes(dtype) as u64,
            weight_bytes,
            mapped_bytes: 0,
            buffer_bytes: buffers.saturating_add(extra_positions).saturating_add(
                model::adapter_bytes(spec, step_tokens, dtype, &options.adapters),
            ),
            media,
            adapters: options.adapters,
        };
        let limits = Limits::new(spec.max_context, options, &sizes)?;
        Ok(Draft {
            device,
            dtype,
            layout,
            matrices,
            limits,
        })
    }
}

/// A session that is not opened yet.
struct Draft {
    device: MlxDevice,
    dtype: Type,
    layout: Layout,
    /// How the matrices will be stored.
    matrices: Vec<MatrixNote>,
    limits: Limits,
}

impl Draft {
    fn plan(&self, source: &ModelSource) -> Plan {
        let traits = BackendTraits {
            device: self.device.label(),
            kv_format: self.dtype.name().to_owned(),
            draws: true,
            batch_invariant: false,
            chunk_invariant: false,
        };
        Plan {
            notes: self.matrices.iter().map(MatrixNote::to_string).collect(),
            ..Plan::new(&source.spec, &self.limits, traits)
        }
    }
}

/// MLX's memory on its device, for all sessions of the process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In live arrays.
    pub active: u64,
    /// Cached for new arrays.
    pub cached: u64,
    /// The most that was active so far.
    pub peak: u64,
}

/// `None` if MLX is not available.
pub fn device_memory() -> Option<DeviceMemory> {
    let api = library::api().ok()?;
    let (mut active, mut cached, mut peak) = (0, 0, 0);
    // SAFETY: the shim writes one number to each.
    unsafe { (api.memory)(&mut active, &mut cached, &mut peak) };
    Some(DeviceMemory {
        active,
        cached,
        peak,
    })
}

impl Draft {
    fn open(
        self,
        plan: Plan,
        source: &ModelSource,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        let api = self.device.api();
        let share = MemoryShare::reserve(api, plan.resident_bytes);
        let ops = Ops::new(api, self.device.kind())?;
        self.device.prepare(&ops);
        let loader = Loader::new(&ops, &source.weights, self.dtype, self.limits.context);
        let runs_tower = self.limits.sizes.media.positions > 0;
        let model = Model::load(loader, &source.spec, runs_tower, progress)?;
        // Buffers of the upload.
        share.clear_cache();
        let storage = ArrayStorage::new(&self.layout);
        let sequences = MlxSequences::new(storage, SequenceLimits::from(&self.limits));
        Ok(Box::new(MlxSession {
            fingerprint: fingerprint(source, self.dtype.name()),
            spec: Arc::clone(&source.spec),
            ops,
            model,
            layout: self.layout,
            sequences,
            capabilities: plan.capabilities,
            memory: plan.memory,
            ahead: None,
            split_off: Vec::new(),
            share,
        }))
    }
}

fn unavailable(backend: &'static str, error: &LoadError) -> OpenError {
    OpenError::Unavailable {
        backend,
        why: format!("{error}."),
        remedy: REMEDY.to_owned(),
    }
}

impl Backend for MlxBackend {
    fn name(&self) -> &'static str {
        "mlx"
    }

    fn probe(&self) -> Probe {
        match library::api() {
            Ok(api) => Probe::Available(vec![MlxDevice::best(api).describe()]),
            Err(error) => Probe::Unavailable {
                why: format!("{error}."),
                remedy: REMEDY.to_owned(),
            },
        }
    }

    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
        Ok(self.draft(source, options)?.plan(source))
    }

    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        let draft = self.draft(&source, options)?;
        draft.limits.check_memory()?;
        let plan = draft.plan(&source);
        let open = move |progress: &mut dyn FnMut(f32)| draft.open(plan, &source, progress);
        Ok(Box::new(ThreadedSession::open(open, progress)?))
    }
}
