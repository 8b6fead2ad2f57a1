//! A spec as GGUF metadata.

use loquat_spec::{
    Activation, Experts, FeedForward, GgufHeader, Inner, ModelSpec, NormKind, Reach, RopeScaling,
    Scores,
};
use loquat_weights::TensorInfo;
use loquat_weights::gguf::{Array, Metadata, Value};

use super::parts::Parts;

/// A family that can be written.
pub(crate) struct Writer {
    pub family: &'static str,
    pub architecture: &'static str,
    /// What is said of this architecture beyond the sizes.
    extra: fn(&Parts<'_>, &mut Keys),
}

const fn plain(family: &'static str, architecture: &'static str) -> Writer {
    with(family, architecture, |_, _| {})
}

const fn with(
    family: &'static str,
    architecture: &'static str,
    extra: fn(&Parts<'_>, &mut Keys),
) -> Writer {
    Writer {
        family,
        architecture,
        extra,
    }
}

/// Tested against files that llama.cpp's own converter wrote.
pub(crate) const WRITERS: &[Writer] = &[
    plain("ernie4_5", "ernie4_5"),
    plain("gemma", "gemma"),
    with("gemma2", "gemma2", softcaps),
    with("gemma3_text", "gemma3", local_rope),
    with("granite", "granite", multipliers),
    with("granitemoe", "granitemoe", multipliers),
    plain("llama", "llama"),
    plain("mistral", "llama"),
    plain("mixtral", "llama"),
    plain("olmo2", "olmo2"),
    plain("olmoe", "olmoe"),
    plain("phi3", "phi3"),
    plain("qwen2", "qwen2"),
    plain("qwen3", "qwen3"),
    plain("qwen3_moe", "qwen3moe"),
    plain("seed_oss", "seed_oss"),
    plain("smollm3", "smollm3"),
    plain("starcoder2", "starcoder2"),
];

/// Architectures whose windows llama.cpp keeps to; in the others it attends to everything.
const WINDOWED: &[&str] = &["gemma2", "gemma3"];

/// The window that llama.cpp would look beyond, if there is one.
pub(crate) fn ignored_window(spec: &ModelSpec, writer: &Writer) -> Option<usize> {
    let window = Parts::of(spec)?.window()?;
    let ignored = !WINDOWED.contains(&writer.architecture) && window < spec.max_context;
    ignored.then_some(window)
}

/// Metadata under an architecture's name.
pub(crate) struct Keys {
    architecture: &'static str,
    metadata: Metadata,
}

impl Keys {
    fn put(&mut self, key: &str, value: Value) {
        let key = format!("{}.{key}", self.architecture);
        self.metadata.insert(key, value);
    }

    fn count(&mut self, key: &str, count: usize) {
        self.put(key, Value::U32(count as u32));
    }

    fn number(&mut self, key: &str, number: f32) {
        self.put(key, Value::F32(number));
    }
}

/// The sizes and numbers of `spec`, or `None` for a spec that is not attention throughout.
pub(crate) fn metadata(spec: &ModelSpec, writer: &Writer) -> Option<Metadata> {
    let parts = Parts::of(spec)?;
    let mut keys = Keys {
        architecture: writer.architecture,
        metadata: Metadata::default(),
    };
    let name = Value::String(writer.architecture.to_owned());
    keys.metadata.insert("general.architecture", name);
    // The layout of blocks that ggml has had since 2023.
    keys.metadata
        .insert("general.quantization_version", Value::U32(2));
    sizes(&parts, &mut keys);
    rope(&parts, &mut keys);
    if let Some(experts) = parts.experts {
        experts_keys(&parts, experts, &mut keys);
    }
    (writer.extra)(&parts, &mut keys);
    Some(keys.metadata)
}

fn sizes(parts: &Parts<'_>, keys: &mut Keys) {
    let Parts {
        spec, attention, ..
    } = parts;
    keys.count("vocab_size", spec.vocab_size);
    keys.count("context_length", spec.max_context);
    keys.count("embedding_length", spec.hidden_size);
    keys.count("block_count", spec.layers.len());
    let expert_size = parts.experts.map(|experts| experts.expert.size);
    if let Some(size) = parts.dense.map(|dense| dense.size).or(expert_size) {
        keys.count("feed_forward_length", size);
    }
    keys.count("attention.head_count", attention.heads);
    keys.count("attention.head_count_kv", attention.kv_heads);
    keys.count("attention.key_length", attention.head_dim);
    keys.count("attention.value_length", attention.value_dim);
    let epsilon = match spec.final_norm.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    keys.number(epsilon, spec.final_norm.eps);
    if let Some(window) = parts.window() {
        keys.count("attention.sliding_window", window);
    }
}

fn rope(parts: &Parts<'_>, keys: &mut Keys) {
    let Some(rope) = &parts.attention.rope else {
        return;
    };
    keys.count("rope.dimension_count", rope.dims);
    keys.number("rope.freq_base", rope.theta);
    let kind = |keys: &mut Keys, name: &str| {
        keys.put("rope.scaling.type", Value::String(name.to_owned()));
    };
    match &rope.scaling {
        RopeScaling::Linear { factor } => {
            kind(keys, "linear");
            keys.number("rope.scaling.factor", *factor);
        }
        RopeScaling::Yarn(yarn) => {
            kind(keys, "yarn");
            keys.number("rope.scaling.factor", yarn.factor);
            keys.count(
                "rope.scaling.original_context_length",
                yarn.original_context,
            );
            if (yarn.beta_fast, yarn.beta_slow) != (32.0, 1.0) {
                keys.number("rope.scaling.yarn_beta_fast", yarn.beta_fast);
                keys.number("rope.scaling.yarn_beta_slow", yarn.beta_slow);
            }
        }
        RopeScaling::LongTensor {
            original_context,
            attention_factor,
        } => {
            keys.count("rope.scaling.original_context_length", *original_context);
            keys.number("rope.scaling.attn_factor", *attention_factor);
        }
        _ => {}
    }
}

fn experts_keys(parts: &Parts<'_>, experts: &Experts, keys: &mut Keys) {
    keys.count("expert_count", experts.count);
    keys.count("expert_used_count", experts.top_k);
    keys.count("expert_feed_forward_length", experts.expert.size);
    let dense = parts.spec.layers.iter().take_while(|layer| {
        let mut branches = layer.blocks.iter().flat_map(|block| &block.branches);
        branches.all(|branch| !matches!(branch.inner, Inner::FeedForward(FeedForward::Experts(_))))
    });
    match dense.count() {
        0 => {}
        count => keys.count("leading_dense_block_count", count),
    }
    if let Some(shared) = &experts.shared {
        let together = shared.dense.size / experts.expert.size.max(1);
        keys.count("expert_shared_count", together);
        keys.count("expert_shared_feed_forward_length", shared.dense.size);
    }
    if experts.router.scores == Scores::Sigmoid {
        keys.count("expert_gating_func", 2);
    }
}

fn softcaps(parts: &Parts<'_>, keys: &mut Keys) {
    if let Some(cap) = parts.attention.softcap {
        keys.number("attn_logit_softcapping", cap);
    }
    if let Some(cap) = parts.spec.head.softcap {
        keys.number("final_logit_softcapping", cap);
    }
}

/// Layers that look through a window turn at another pace, and stand where their flags say.
fn local_rope(parts: &Parts<'_>, keys: &mut Keys) {
    softcaps(parts, keys);
    if let Some(rope) = parts.local.and_then(|local| local.rope.as_ref()) {
        keys.number("rope.freq_base_swa", rope.theta);
    }
    let windowed = parts
        .attentions
        .iter()
        .map(|attention| attention.reach != Reach::All);
    let flags: Vec<bool> = windowed.collect();
    // llama.cpp knows the usual pattern by itself, and reads no other.
    let usual = flags
        .iter()
        .enumerate()
        .all(|(layer, flag)| *flag == ((layer + 1) % 6 != 0));
    if !usual {
        let flags = Value::Array(Array::Bool(flags));
        keys.put("attention.sliding_window_pattern", flags);
    }
}

fn multipliers(parts: &Parts<'_>, keys: &mut Keys) {
    keys.number("attention.scale", parts.attention.scale);
    keys.number("embedding_scale", parts.spec.embedding.scale);
    keys.number("logit_scale", 1.0 / parts.spec.head.scale);
    keys.number("residual_scale", parts.residual_scale());
}

/// A file's header as its reader will see it: the metadata, and its tensors' names and shapes.
pub(crate) struct Header<'a> {
    pub metadata: &'a Metadata,
    pub tensors: &'a [TensorInfo],
}

impl GgufHeader for Header<'_> {
    fn contains(&self, key: &str) -> bool {
        self.metadata.get(key).is_some()
    }

    fn str(&self, key: &str) -> Option<&str> {
        self.metadata.str(key)
    }

    fn bool(&self, key: &str) -> Option<bool> {
        self.metadata.bool(key)
    }

    fn u64(&self, key: &str) -> Option<u64> {
        self.metadata.u64(key)
    }

    fn f64(&self, key: &str) -> Option<f64> {
        self.metadata.f64(key)
    }

    fn u64s(&self, key: &str) -> Option<Vec<u64>> {
        let bools = || {
            let bools = self.metadata.bools(key)?;
            Some(bools.iter().map(|flag| u64::from(*flag)).collect())
        };
        self.metadata.u64s(key).or_else(bools)
    }

    fn f64s(&self, key: &str) -> Option<Vec<f64>> {
        let list = self.metadata.f32s(key)?;
        Some(list.iter().map(|value| f64::from(*value)).collect())
    }

    fn tensor_shape(&self, name: &str) -> Option<&[usize]> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name)?;
        Some(&tensor.shape)
    }
}

/// Activations by the name configs give them.
pub(crate) fn activation_name(activation: Activation) -> Option<&'static str> {
    Some(match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
        Activation::ClampedSwiglu { .. } => return None,
    })
}
