//! Session options, checked against the model and the machine.

use loquat_session::{OpenError, SessionOptions};
use loquat_spec::{FeedForward, ModelSpec};

use crate::kernels::PAGE;
use crate::machine;
use crate::model::WeightBytes;

/// KV memory by default: a quarter of the machine's, which leaves room for weights and others.
const KV_SHARE: u64 = 4;
/// Where the machine's memory cannot be read.
const ASSUMED_MEMORY: u64 = 8 << 30;
const MAX_THREADS: usize = 1024;

/// The options with their gaps filled.
pub struct Limits {
    pub threads: usize,
    pub context: usize,
    /// Whole pages.
    pub kv_tokens: usize,
    /// Bytes of weights, KV and buffers that will be allocated if all is used.
    pub resident_bytes: u64,
}

impl Limits {
    pub fn new(
        spec: &ModelSpec,
        options: &SessionOptions,
        kv_bytes_per_token: u64,
        weights: &WeightBytes,
    ) -> Result<Self, OpenError> {
        positive("max_sequences", options.max_sequences)?;
        positive("max_step_tokens", options.max_step_tokens)?;
        let threads = positive("threads", options.threads.unwrap_or_else(machine::threads))?;
        if threads > MAX_THREADS {
            return Err(refuse("threads", threads, format!("at most {MAX_THREADS}")));
        }
        let context = positive("context", options.context.unwrap_or(spec.max_context))?;
        if context > spec.max_context {
            let expected = format!("at most the model's {}", spec.max_context);
            return Err(refuse("context", context, expected));
        }
        let fixed = weights.packed + scratch_bytes(spec, options.max_step_tokens);
        let memory = machine::memory_bytes().unwrap_or(ASSUMED_MEMORY);
        let budget = (memory / KV_SHARE).min(memory.saturating_sub(fixed)) / kv_bytes_per_token;
        let all = context
            .next_multiple_of(PAGE)
            .saturating_mul(options.max_sequences);
        let default = all.min(budget as usize).max(PAGE);
        let kv_tokens = positive("kv_tokens", options.kv_tokens.unwrap_or(default))?;
        let kv_tokens = kv_tokens.div_ceil(PAGE).saturating_mul(PAGE);
        let kv = kv_bytes_per_token.saturating_mul(kv_tokens as u64);
        Ok(Self {
            threads,
            context,
            kv_tokens,
            resident_bytes: fixed.saturating_add(kv),
        })
    }

    /// Refuses what the machine could only answer by killing the process later.
    pub fn check_memory(&self) -> Result<(), OpenError> {
        match machine::memory_bytes() {
            Some(available) if self.resident_bytes > available => Err(OpenError::OutOfMemory {
                what: "model with its KV memory",
                wanted: self.resident_bytes,
                available,
            }),
            _ => Ok(()),
        }
    }
}

/// What a step's buffers come to: the rows of `forward::Scratch`, in `f32` and rounded.
fn scratch_bytes(spec: &ModelSpec, tokens: usize) -> u64 {
    let widest = |sizes: &mut dyn Iterator<Item = usize>| sizes.max().unwrap_or(0);
    let attention = widest(&mut spec.attentions().map(|a| 2 * a.q_dim() + 2 * a.kv_dim()));
    let feed_forward = widest(&mut spec.layers.iter().map(|layer| {
        let FeedForward::Gated { size, .. } = layer.feed_forward.inner;
        2 * size
    }));
    let values = (3 * spec.hidden_size + attention + feed_forward) as u64;
    // A rounded copy takes a byte and a third beside each value's four.
    values.saturating_mul(tokens as u64).saturating_mul(6)
}

fn positive(option: &'static str, value: usize) -> Result<usize, OpenError> {
    match value {
        0 => Err(refuse(option, 0, "at least 1".to_owned())),
        value => Ok(value),
    }
}

fn refuse(option: &'static str, found: usize, expected: String) -> OpenError {
    OpenError::Option {
        option,
        found: found.to_string(),
        expected,
    }
}
