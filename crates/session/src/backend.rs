use std::path::PathBuf;
use std::sync::Arc;

use loquat_spec::ModelSpec;
use loquat_weights::Weights;

use crate::{AdapterLimits, KvFormat, OpenError, Plan, Session};

/// A way to compute: one per kind of device or library.
pub trait Backend: Send + Sync {
    /// The value of `--backend`.
    fn name(&self) -> &'static str;

    /// Inspects the machine; changes nothing and must be fast.
    fn probe(&self) -> Probe;

    /// What [`open`](Backend::open) would return, without loading anything.
    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError>;

    /// Loads a model onto the device. The session owns all it needs; `source` may be dropped.
    /// `progress` receives the share that is done, from 0 to 1, on the calling thread.
    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError>;
}

/// Whether a backend can run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// The first is the one that [`open`](Backend::open) uses.
    Available(Vec<Device>),
    /// `why` it cannot run here, and the `remedy`, both whole sentences for display.
    Unavailable {
        /// What is missing.
        why: String,
        /// What to do about it.
        remedy: String,
    },
}

/// A device that a backend can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Whether it is the CPU or an accelerator.
    pub kind: DeviceKind,
    /// Its name, for display.
    pub label: String,
    /// Its memory, if the system reports it.
    pub memory_bytes: Option<u64>,
    /// How fast its memory can be read, if the system reports it.
    pub memory_bytes_per_second: Option<u64>,
}

/// Decides which backend is the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The machine's own cores.
    Cpu,
    /// An accelerator, with or without memory of its own.
    Gpu,
}

/// What a backend opens: the model as data, its weights, and the files they came from (a
/// backend that brings its own graph reads those).
#[derive(Clone)]
pub struct ModelSource {
    /// The model's blocks and sizes.
    pub spec: Arc<ModelSpec>,
    /// The weights, bound to the roles in the spec.
    pub weights: Arc<Weights>,
    /// The checkpoint's files.
    pub paths: Vec<PathBuf>,
}

/// How to open a session. Zero is never a legal value; `None` lets the backend choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// Longest sequence; at most the model's own context.
    pub context: Option<usize>,
    /// All memory the session may use. KV gets what weights and buffers leave.
    pub memory: Option<MemoryBudget>,
    /// KV memory, in tokens over all sequences.
    pub kv_tokens: Option<usize>,
    /// Sequences that may be alive at once.
    pub max_sequences: usize,
    /// Most new tokens over all rows of one step. A session whose media or prompts must enter a step
    /// whole allows as many as those have.
    pub max_step_tokens: usize,
    /// CPU threads; `None` uses one per physical core that this process may use.
    pub threads: Option<usize>,
    /// Which arithmetic the session promises.
    pub precision: Precision,
    /// How KV is stored; a backend refuses a format that it or the model does not support.
    pub kv_format: Option<KvFormat>,
    /// Positions of media that may be encoded at once. By default 8192 if the model reads images,
    /// otherwise 0; a text model needs some for raw embeddings. 0 leaves the tower unloaded.
    pub media_positions: Option<usize>,
    /// Adapters that may be loaded, for which memory is planned. By default none.
    pub adapters: AdapterLimits,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            context: None,
            memory: None,
            kv_tokens: None,
            max_sequences: 64,
            max_step_tokens: 512,
            threads: None,
            precision: Precision::Fast,
            kv_format: None,
            media_positions: None,
            adapters: AdapterLimits::NONE,
        }
    }
}

/// How much of the device's memory a session may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBudget {
    /// This many bytes; at least 1.
    Bytes(u64),
    /// Of the device's memory, from 1 to 100.
    Percent(u8),
}

impl MemoryBudget {
    /// Refuses a budget outside its range.
    pub fn check(self) -> Result<(), OpenError> {
        let (found, expected) = match self {
            Self::Bytes(1..) | Self::Percent(1..=100) => return Ok(()),
            Self::Bytes(bytes) => (format!("{bytes} bytes"), "at least 1 byte"),
            Self::Percent(percent) => (format!("{percent} %"), "from 1 to 100 %"),
        };
        Err(OpenError::Option {
            option: "memory",
            found,
            expected: expected.to_owned(),
        })
    }

    /// On a device that has `device_bytes`.
    pub fn bytes(self, device_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let bytes = u128::from(device_bytes) * u128::from(percent) / 100;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Which arithmetic a session promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// The device's fastest path: activations and KV may be rounded.
    Fast,
    /// fp32 activations and KV over exactly decoded weights: the path judged against
    /// references.
    Reference,
}
