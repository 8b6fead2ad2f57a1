//! The native CPU backend: every block kind of the spec on the machine's own cores.
//!
//! Weights are repacked once at load for the widest kernels the machine has; a sequence's
//! results are bit-identical whatever else runs beside it. Scheduling, sampling and text are
//! the engine's; files are `weights`'.

mod forward;
mod kernels;
mod kv;
mod linear;
mod model;
mod pack;
mod pool;
mod session;
mod shared;
mod transfer;

use loquat_session::{
    Backend, Capabilities, Device, Memory, ModelSource, OpenError, Plan, Precision, PrefixCopy,
    Probe, Session, SessionOptions,
};

use kernels::{Half, Kernels, KvElement, PAGE};
use kv::{Cache, PageLayout};
use model::Model;
use pool::Pool;
use session::CpuSession;

pub struct CpuBackend;

/// KV memory by default: a quarter of the machine's, which leaves room for weights and others.
const KV_SHARE: u64 = 4;
/// Where the machine's memory cannot be read.
const ASSUMED_MEMORY: u64 = 8 << 30;

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn probe(&self) -> Probe {
        Probe::Available(vec![Device {
            label: label(threads(), kernels::kernels()),
            memory_bytes: memory_bytes(),
        }])
    }

    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
        match options.precision {
            Precision::Fast => plan::<Half>(source, options),
            Precision::Reference => plan::<f32>(source, options),
        }
    }

    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        match options.precision {
            Precision::Fast => open::<Half>(source, options, progress),
            Precision::Reference => open::<f32>(source, options, progress),
        }
    }
}

fn plan<T: KvElement>(source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
    let spec = &source.spec;
    let layout = PageLayout::new(spec);
    let limits = Limits::new::<T>(spec.max_context, &layout, options)?;
    let weight_bytes = Model::predict_bytes(spec, &source.weights, options.precision);
    let kv_bytes_per_token = (layout.token_len() * T::BYTES) as u64;
    check_memory(weight_bytes, kv_bytes_per_token, &limits, options.precision)?;
    Ok(Plan {
        capabilities: Capabilities {
            device: label(limits.threads, kernels::kernels()),
            vocab_size: spec.vocab_size,
            max_context: limits.context,
            max_sequences: options.max_sequences,
            max_step_tokens: options.max_step_tokens,
            structured_output: true,
            speculative_decoding: true,
            prefix_copy: PrefixCopy::AnyLength,
            multimodal: false,
            batched_serving: true,
            export: true,
            kv_format: T::NAME,
            batch_invariant: true,
        },
        memory: Memory {
            weight_bytes,
            kv_bytes_per_token,
            kv_capacity: limits.kv_tokens,
            kv_in_use: 0,
            kv_granularity: PAGE,
        },
    })
}

fn open<T: KvElement>(
    source: ModelSource,
    options: &SessionOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Session>, OpenError> {
    let Plan {
        capabilities,
        memory,
    } = plan::<T>(&source, options)?;
    let spec = &source.spec;
    let threads = options.threads.unwrap_or_else(threads);
    let pool = Pool::new(threads).map_err(|error| OpenError::Option {
        option: "threads",
        found: threads.to_string(),
        expected: format!("as many as the system can start ({error})"),
    })?;
    let model = Model::load(spec, &source.weights, options.precision, progress)?;
    let fingerprint = transfer::fingerprint(&source, T::NAME);
    let layout = PageLayout::new(spec);
    let cache = Cache::<T>::new(layout, memory.kv_capacity, options.max_sequences);
    Ok(Box::new(CpuSession::new(
        model,
        kernels::kernels(),
        pool,
        cache,
        capabilities,
        fingerprint,
    )))
}

/// The options, checked and with their gaps filled.
struct Limits {
    threads: usize,
    context: usize,
    kv_tokens: usize,
}

impl Limits {
    fn new<T: KvElement>(
        model_context: usize,
        layout: &PageLayout,
        options: &SessionOptions,
    ) -> Result<Self, OpenError> {
        let positive = |option, value| match value {
            0 => Err(refuse(option, 0, "at least 1")),
            value => Ok(value),
        };
        positive("max_sequences", options.max_sequences)?;
        positive("max_step_tokens", options.max_step_tokens)?;
        let threads = positive("threads", options.threads.unwrap_or_else(threads))?;
        if threads > 1024 {
            return Err(refuse("threads", threads, "at most 1024"));
        }
        let context = positive("context", options.context.unwrap_or(model_context))?;
        if context > model_context {
            let expected = format!("at most the model's {model_context}");
            return Err(refuse("context", context, &expected));
        }
        let token_bytes = (layout.token_len() * T::BYTES) as u64;
        let budget = memory_bytes().unwrap_or(ASSUMED_MEMORY) / KV_SHARE / token_bytes;
        let all = context
            .next_multiple_of(PAGE)
            .saturating_mul(options.max_sequences);
        let default = all.min(budget as usize).max(PAGE);
        let kv_tokens = positive("kv_tokens", options.kv_tokens.unwrap_or(default))?;
        Ok(Self {
            threads,
            context,
            kv_tokens: kv_tokens.div_ceil(PAGE).saturating_mul(PAGE),
        })
    }
}

/// Refuses what the machine could only answer by killing the process later.
fn check_memory(
    weight_bytes: u64,
    kv_bytes_per_token: u64,
    limits: &Limits,
    precision: Precision,
) -> Result<(), OpenError> {
    let packed = match precision {
        Precision::Fast => weight_bytes,
        // Read from the mapped file as needed.
        Precision::Reference => 0,
    };
    let kv = kv_bytes_per_token.saturating_mul(limits.kv_tokens as u64);
    let wanted = packed.saturating_add(kv);
    match memory_bytes() {
        Some(memory) if wanted > memory => Err(OpenError::OutOfMemory {
            what: "model with its KV memory",
            wanted,
            available: memory,
        }),
        _ => Ok(()),
    }
}

fn refuse(option: &'static str, found: usize, expected: &str) -> OpenError {
    OpenError::Option {
        option,
        found: found.to_string(),
        expected: expected.to_owned(),
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn label(threads: usize, kernels: &Kernels) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    format!("cpu ({threads} thread{plural}, {})", kernels.name)
}

/// The machine's memory, where the system tells.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}
