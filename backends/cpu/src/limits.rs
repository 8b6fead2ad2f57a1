//! Session options, checked against the model and the machine.

use loquat_session::{OpenError, SessionOptions};
use loquat_spec::{FeedForward, Inner, Mixer, ModelSpec};

use crate::kernels::PAGE;
use crate::load::WeightBytes;
use crate::machine;

/// KV memory by default: a quarter of the machine's, which leaves room for weights and others.
const KV_SHARE: u64 = 4;
/// Where the machine's memory cannot be read.
const ASSUMED_MEMORY: u64 = 8 << 30;
const MAX_THREADS: usize = 1024;
/// A sequence's state before a step and after it.
const STATES_TO_STEP: usize = 2;

/// The options with their gaps filled.
pub struct Limits {
    pub threads: usize,
    pub context: usize,
    /// Whole pages.
    pub kv_tokens: usize,
    /// Recurrent states, snapshots among them.
    pub states: usize,
    /// As many as have states to step with.
    pub max_sequences: usize,
    /// Bytes of weights, KV and buffers that will be allocated if all is used.
    pub resident_bytes: u64,
}

impl Limits {
    pub fn new(
        spec: &ModelSpec,
        options: &SessionOptions,
        kv_bytes_per_token: u64,
        state_bytes: u64,
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
        let memory = machine::memory_bytes().unwrap_or(ASSUMED_MEMORY);
        let states = states(options.max_sequences, state_bytes, memory / KV_SHARE);
        let fixed = (weights.packed + scratch_bytes(spec, options.max_step_tokens))
            .saturating_add(state_bytes.saturating_mul(states as u64));
        // A model without attention keeps no keys, and any number of tokens costs nothing.
        let per_token = kv_bytes_per_token.max(1);
        let budget = (memory / KV_SHARE).min(memory.saturating_sub(fixed)) / per_token;
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
            states,
            max_sequences: match state_bytes {
                0 => options.max_sequences,
                _ => options.max_sequences.min(states / STATES_TO_STEP),
            },
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

/// As many states as every sequence can use, within `budget`: those to step with, and as many
/// snapshots.
fn states(max_sequences: usize, state_bytes: u64, budget: u64) -> usize {
    const PER_SEQUENCE: usize = 2 * STATES_TO_STEP;
    if state_bytes == 0 {
        return 0;
    }
    let affordable = usize::try_from(budget / state_bytes).unwrap_or(usize::MAX);
    max_sequences
        .saturating_mul(PER_SEQUENCE)
        .min(affordable.max(PER_SEQUENCE))
}

/// What a step's buffers come to: the rows of `forward::Scratch`, in `f32` and rounded.
fn scratch_bytes(spec: &ModelSpec, tokens: usize) -> u64 {
    let widest = spec.branches().map(|(_, branch)| match &branch.inner {
        Inner::Mixer(Mixer::Attention(a)) => {
            a.query_len() + a.key_len() + a.value_len() + 2 * a.mixed_len()
        }
        Inner::Mixer(Mixer::Latent(a)) => {
            a.query_len() + a.mixed_len() + a.heads * (2 * a.latent_dim + a.cached_len())
        }
        Inner::Mixer(Mixer::ShortConv(conv)) => 4 * conv.channels,
        Inner::Mixer(Mixer::DeltaRule(delta)) => 2 * delta.conv_len() + 2 * delta.value_len(),
        Inner::Mixer(Mixer::Mamba2(mamba)) => mamba.projected_len() + mamba.inner_len(),
        Inner::FeedForward(FeedForward::Dense(dense)) => 2 * dense.size,
        Inner::FeedForward(FeedForward::Experts(experts)) => {
            let shared = experts.shared.map_or(0, |shared| 2 * shared.dense.size);
            experts.top_k * (2 * experts.expert.size + 2 * spec.hidden_size)
                + experts.count
                + shared
                + spec.hidden_size
        }
        Inner::FeedForward(FeedForward::PerLayerInput { dim, .. }) => *dim,
    });
    let per_layer = spec
        .per_layer_inputs
        .map_or(0, |inputs| inputs.dim * spec.layers.len());
    let values = (4 * spec.hidden_size + per_layer + widest.max().unwrap_or(0)) as u64;
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
