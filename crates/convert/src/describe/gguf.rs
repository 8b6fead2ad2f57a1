//! A spec as GGUF metadata.

use loquat_spec::{
    Activation, Experts, FeedForward, GgufExport, GgufHeader, GgufKeys, Inner, ModelSpec, NormKind,
    Reach, RopeScaling, Scores,
};
use loquat_weights::TensorInfo;
use loquat_weights::gguf::{Array, Metadata, Value};

use super::summary::Summary;

/// The window that llama.cpp would ignore, if any.
pub(crate) fn ignored_window(spec: &ModelSpec, export: &GgufExport) -> Option<usize> {
    let window = Summary::from_spec(spec)?.window()?;
    let ignored = !export.windowed && window < spec.max_context;
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

/// The metadata of `spec`; `None` if it has layers without attention.
pub(crate) fn metadata(spec: &ModelSpec, export: &GgufExport) -> Option<Metadata> {
    let summary = Summary::from_spec(spec)?;
    let mut keys = Keys {
        architecture: export.architecture,
        metadata: Metadata::default(),
    };
    let name = Value::String(export.architecture.to_owned());
    keys.metadata.insert("general.architecture", name);
    // ggml's block layout since 2023.
    keys.metadata
        .insert("general.quantization_version", Value::U32(2));
    sizes(&summary, &mut keys);
    rope(&summary, &mut keys);
    if let Some(experts) = summary.experts {
        experts_keys(&summary, experts, &mut keys);
    }
    for group in export.keys {
        match group {
            GgufKeys::Softcaps => softcaps(&summary, &mut keys),
            GgufKeys::LocalRope => local_rope(&summary, &mut keys),
            GgufKeys::Multipliers => multipliers(&summary, &mut keys),
        }
    }
    Some(keys.metadata)
}

fn sizes(summary: &Summary<'_>, keys: &mut Keys) {
    let Summary {
        spec, attention, ..
    } = summary;
    keys.count("vocab_size", spec.vocab_size);
    keys.count("context_length", spec.max_context);
    keys.count("embedding_length", spec.hidden_size);
    keys.count("block_count", spec.layers.len());
    let expert_size = summary.experts.map(|experts| experts.expert.size);
    if let Some(size) = summary.dense.map(|dense| dense.size).or(expert_size) {
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
    if let Some(window) = summary.window() {
        keys.count("attention.sliding_window", window);
    }
}

fn rope(summary: &Summary<'_>, keys: &mut Keys) {
    let Some(rope) = &summary.attention.rope else {
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

fn experts_keys(summary: &Summary<'_>, experts: &Experts, keys: &mut Keys) {
    keys.count("expert_count", experts.count);
    keys.count("expert_used_count", experts.top_k);
    keys.count("expert_feed_forward_length", experts.expert.size);
    let dense = summary.spec.layers.iter().take_while(|layer| {
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

fn softcaps(summary: &Summary<'_>, keys: &mut Keys) {
    if let Some(cap) = summary.attention.softcap {
        keys.number("attn_logit_softcapping", cap);
    }
    if let Some(cap) = summary.spec.head.softcap {
        keys.number("final_logit_softcapping", cap);
    }
}

/// Windowed layers have their own rope base; flags list them unless the pattern is the usual one.
fn local_rope(summary: &Summary<'_>, keys: &mut Keys) {
    if let Some(rope) = summary.local.and_then(|local| local.rope.as_ref()) {
        keys.number("rope.freq_base_swa", rope.theta);
    }
    let windowed = summary
        .attentions
        .iter()
        .map(|attention| attention.reach != Reach::All);
    let flags: Vec<bool> = windowed.collect();
    // llama.cpp assumes the usual pattern and reads no other.
    let usual = flags
        .iter()
        .enumerate()
        .all(|(layer, flag)| *flag == ((layer + 1) % 6 != 0));
    if !usual {
        let flags = Value::Array(Array::Bool(flags));
        keys.put("attention.sliding_window_pattern", flags);
    }
}

fn multipliers(summary: &Summary<'_>, keys: &mut Keys) {
    keys.number("attention.scale", summary.attention.scale);
    keys.number("embedding_scale", summary.spec.embedding.scale);
    keys.number("logit_scale", 1.0 / summary.spec.head.scale);
    keys.number("residual_scale", summary.residual_scale());
}

/// A file's header for its reader: metadata, tensor names and shapes.
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

/// Names of activations in configs.
pub(crate) fn activation_name(activation: Activation) -> Option<&'static str> {
    Some(match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::QuickGelu => "quick_gelu",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
        Activation::ClampedSwiglu { .. } => return None,
    })
}
