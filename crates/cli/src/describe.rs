//! A readable description of a model's blocks.

use loquat_spec::{
    Activation, Attention, Block, Branch, Decay, DeltaOutputGate, DeltaRule, Dense, Experts,
    FeedForward, Inner, KvSource, LatentAttention, Layer, Mamba2, MambaNorm, Mixer, ModelSpec,
    Norm, NormKind, QkNorm, QkSpan, Reach, Rope, RopePairs, RopeScaling, Scores, ShortConv,
    VisionSpec,
};

/// Groups of equal layers: their numbers, and a line for each block.
pub fn layers(spec: &ModelSpec) -> Vec<(String, Vec<String>)> {
    let mut kinds: Vec<(&Layer, Vec<usize>)> = Vec::new();
    for (number, layer) in spec.layers.iter().enumerate() {
        match kinds.iter_mut().find(|(kind, _)| *kind == layer) {
            Some((_, numbers)) => numbers.push(number),
            None => kinds.push((layer, vec![number])),
        }
    }
    let kinds = kinds.into_iter();
    kinds
        .map(|(layer, numbers)| (numbered(&numbers), blocks(layer)))
        .collect()
}

pub fn embedding(spec: &ModelSpec) -> String {
    let mut parts = vec![format!("{} × {}", spec.vocab_size, spec.hidden_size)];
    parts.extend(factor("scaled", spec.embedding.scale));
    let positions = spec.embedding.positions;
    parts.extend(positions.map(|count| format!("{count} learned positions")));
    parts.join(", ")
}

pub fn per_layer_inputs(spec: &ModelSpec) -> Option<String> {
    let inputs = spec.per_layer_inputs?;
    Some(format!(
        "{} per layer, from a table of {} and from the embedding",
        inputs.dim, inputs.vocab_size
    ))
}

pub fn head(spec: &ModelSpec) -> String {
    let head = &spec.head;
    let tied = if head.tied {
        "tied to the embedding"
    } else {
        "separate"
    };
    let mut parts = vec![tied.to_owned()];
    parts.extend(flag(head.bias, "bias"));
    parts.extend(factor("logits", head.scale));
    parts.extend(head.softcap.map(|cap| format!("softcap {cap}")));
    parts.join(", ")
}

/// `layers 0-2, 4-6`; a long regular pattern is shortened.
/// A vision tower, in one line.
pub fn vision(vision: &VisionSpec) -> String {
    let VisionSpec {
        hidden_size,
        patch,
        block,
        layers,
        projector,
        ..
    } = vision;
    let merged = projector.merged_side();
    let parts = [
        Some(plural(layers.len(), "layer")),
        Some(format!("width {hidden_size}")),
        Some(plural(block.heads, "head")),
        Some(format!("patches of {0} × {0} pixels", patch.side)),
        (merged > 1).then(|| format!("{merged} × {merged} patches per position")),
        Some(
            if vision.video {
                "images and video"
            } else {
                "images"
            }
            .to_owned(),
        ),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

fn numbered(numbers: &[usize]) -> String {
    let runs: Vec<&[usize]> = numbers.chunk_by(|a, b| a + 1 == *b).collect();
    let mut names: Vec<String> = runs.iter().map(|run| range(run)).collect();
    let regular = runs
        .windows(2)
        .all(|pair| pair[0].len() == pair[1].len() && pair[1][0] - pair[0][0] == period(&runs));
    if regular && names.len() > 4 {
        names.splice(2..names.len() - 1, ["…".to_owned()]);
    }
    let layers = match numbers {
        [_] => "layer",
        _ => "layers",
    };
    format!("{layers} {}", names.join(", "))
}

/// The distance between the starts of the first two runs.
fn period(runs: &[&[usize]]) -> usize {
    match runs {
        [first, second, ..] => second[0] - first[0],
        _ => 0,
    }
}

fn range(run: &[usize]) -> String {
    match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    }
}

fn blocks(layer: &Layer) -> Vec<String> {
    let mut lines: Vec<String> = layer.blocks.iter().flat_map(block).collect();
    lines.extend(flag(layer.scaled, "output × a learned factor"));
    lines
}

/// A line for each branch of the block.
fn block(block: &Block) -> Vec<String> {
    let mut lines: Vec<String> = block.branches.iter().map(branch).collect();
    for line in lines.iter_mut().skip(1) {
        line.insert_str(0, "in parallel: ");
    }
    let whole = match lines.len() {
        1 => "after",
        _ => "after the sum",
    };
    let norm = block.post_norm.as_ref();
    let norm = norm.map(|norm| format!("{} norm {whole}", kind(norm)));
    if let Some(last) = lines.last_mut() {
        for part in norm
            .into_iter()
            .chain(factor("added", block.residual_scale))
        {
            *last += &format!(", {part}");
        }
    }
    lines
}

fn branch(branch: &Branch) -> String {
    let mut parts = match &branch.inner {
        Inner::Mixer(Mixer::Attention(inner)) => attention(inner),
        Inner::Mixer(Mixer::Latent(inner)) => latent(inner),
        Inner::Mixer(Mixer::ShortConv(inner)) => short_conv(inner),
        Inner::Mixer(Mixer::DeltaRule(inner)) => delta_rule(inner),
        Inner::Mixer(Mixer::Mamba2(inner)) => mamba2(inner),
        Inner::FeedForward(FeedForward::Dense(inner)) => dense(inner),
        Inner::FeedForward(FeedForward::Experts(inner)) => experts(inner),
        Inner::FeedForward(FeedForward::PerLayerInput { dim, activation }) => {
            vec![format!(
                "gate by per-layer input of {dim}, {}",
                named(activation)
            )]
        }
    };
    parts.extend(factor("input", branch.input_scale));
    parts.extend(factor("output", branch.output_scale));
    parts.extend(match (&branch.pre_norm, &branch.post_norm) {
        (None, None) => None,
        (Some(norm), None) => Some(format!("{} norm before", kind(norm))),
        (None, Some(norm)) => Some(format!("{} norm after", kind(norm))),
        (Some(norm), Some(_)) => Some(format!("{} norms before and after", kind(norm))),
    });
    parts.join(", ")
}

fn attention(attention: &Attention) -> Vec<String> {
    let mut parts = vec![
        format!("attention {} heads", attention.heads),
        format!("{} kv", attention.kv_heads),
        format!("dim {}", attention.head_dim),
    ];
    if attention.value_dim != attention.head_dim {
        parts.push(format!("values {}", attention.value_dim));
    }
    parts.push(positions(attention.rope.as_ref(), attention.head_dim));
    parts.extend(match attention.reach {
        Reach::All => None,
        Reach::Window(tokens) => Some(format!("window {tokens}")),
        Reach::Chunk(tokens) => Some(format!("chunks of {tokens}")),
    });
    parts.extend(score_scale(attention.scale, attention.head_dim));
    parts.extend(
        attention
            .softcap
            .map(|cap| format!("scores capped at {cap}")),
    );
    if let Some(temperature) = &attention.temperature {
        parts.push(format!(
            "query temperature every {} tokens",
            temperature.span
        ));
    }
    parts.extend(flag(attention.sinks, "attention sinks"));
    parts.extend(attention.qk_norm.as_ref().map(qk_norm));
    parts.extend(flag(attention.value_norm.is_some(), "value norm"));
    parts.extend(factor("values", attention.value_scale));
    parts.extend(flag(attention.qkv_bias, "QKV bias"));
    parts.extend(flag(attention.output_bias, "output bias"));
    parts.extend(flag(attention.output_gate, "gated output"));
    parts.extend(match attention.kv {
        KvSource::Own => None,
        KvSource::KeyIsValue => Some("keys shared as values".to_owned()),
        KvSource::Layer(layer) => Some(format!("KV of layer {layer}")),
    });
    parts
}

fn qk_norm(norm: &QkNorm) -> String {
    let span = match norm.span {
        QkSpan::Head => "",
        QkSpan::HeadWeights => " with weights per head",
        QkSpan::AllHeads => " over all heads",
    };
    let order = if norm.after_rope { " after RoPE" } else { "" };
    format!("QK norm{span}{order}")
}

/// Only if it is not the default for the head size.
fn score_scale(scale: f32, query_dim: usize) -> Option<String> {
    let usual = 1.0 / (query_dim as f32).sqrt();
    (scale != usual).then(|| format!("scores × {scale}"))
}

fn latent(latent: &LatentAttention) -> Vec<String> {
    let (nope, rope) = (latent.nope_dim, latent.rope_dim);
    let mut parts = vec![format!("latent attention {} heads", latent.heads)];
    parts.extend(latent.query_rank.map(|rank| format!("query rank {rank}")));
    parts.push(format!("latent {} + {rope}", latent.latent_dim));
    parts.push(format!("dim {nope} + {rope}"));
    parts.push(format!("values {}", latent.value_dim));
    parts.push(positions(latent.rope.as_ref(), rope));
    parts.extend(score_scale(latent.scale, nope + rope));
    parts.extend(flag(latent.down_bias, "latent bias"));
    parts.extend(flag(latent.output_bias, "output bias"));
    parts
}

fn short_conv(conv: &ShortConv) -> Vec<String> {
    let mut parts = vec![
        format!("short convolution over {}", conv.kernel),
        format!("{} channels", conv.channels),
    ];
    parts.extend(flag(conv.bias, "bias"));
    parts
}

fn delta_rule(delta: &DeltaRule) -> Vec<String> {
    let decay = match delta.decay {
        Decay::PerHead => "decay per head".to_owned(),
        Decay::PerChannel { rank } => format!("decay per channel through {rank}"),
    };
    let gate = match delta.gate {
        DeltaOutputGate::Silu => "silu gate".to_owned(),
        DeltaOutputGate::LowRankSigmoid { rank } => format!("sigmoid gate through {rank}"),
    };
    vec![
        format!(
            "gated delta rule {} key heads of {}",
            delta.key_heads, delta.key_dim
        ),
        format!("{} value heads of {}", delta.value_heads, delta.value_dim),
        format!("convolution over {}", delta.kernel),
        decay,
        gate,
    ]
}

fn mamba2(mamba: &Mamba2) -> Vec<String> {
    let mut parts = vec![
        format!("Mamba-2 {} heads of {}", mamba.heads, mamba.head_dim),
        format!("state {}", mamba.state),
        plural(mamba.groups, "group"),
        format!("convolution over {}", mamba.kernel),
    ];
    parts.extend(match mamba.norm {
        MambaNorm::None => None,
        MambaNorm::AfterGate { groups, .. } => Some(normed("after", groups)),
        MambaNorm::BeforeGate { groups, .. } => Some(normed("before", groups)),
    });
    let (least, most) = mamba.step_limits;
    if least > 0.0 || most < f32::INFINITY {
        parts.push(format!("steps from {least} to {most}"));
    }
    parts.extend(flag(mamba.projection_bias, "bias"));
    if mamba.scales != [1.0; 5] {
        let [gate, x, b, c, step] = mamba.scales;
        parts.push(format!(
            "gate × {gate}, x × {x}, B × {b}, C × {c}, step × {step}"
        ));
    }
    parts
}

fn normed(order: &str, groups: usize) -> String {
    match groups {
        1 => format!("norm {order} the gate"),
        _ => format!("norm {order} the gate in {groups} groups"),
    }
}

fn dense(dense: &Dense) -> Vec<String> {
    let name = if dense.gated {
        "gated feed-forward"
    } else {
        "feed-forward"
    };
    let mut parts = vec![
        format!("{name} {}", dense.size),
        named(&dense.activation).to_owned(),
    ];
    parts.extend(flag(dense.bias, "bias"));
    parts.extend(factor("gate", dense.gate_scale));
    parts
}

fn experts(experts: &Experts) -> Vec<String> {
    let (expert, router) = (&experts.expert, &experts.router);
    let scores = match router.scores {
        Scores::Softmax => "softmax router",
        Scores::Sigmoid => "sigmoid router",
    };
    let mut parts = vec![
        format!("{} experts of {}", experts.count, expert.size),
        format!("top {}", experts.top_k),
        named(&expert.activation).to_owned(),
        scores.to_owned(),
    ];
    parts.extend(flag(expert.bias, "expert bias"));
    parts.extend(flag(router.bias, "router bias"));
    parts.extend(flag(router.correction, "score correction"));
    if let Some(groups) = &router.groups {
        parts.push(format!("from {} of {} groups", groups.keep, groups.count));
    }
    parts.extend(flag(router.normalise.is_some(), "normalised"));
    parts.extend(factor("weights", router.scale));
    parts.extend(flag(router.expert_scale, "learned scale per expert"));
    parts.extend(flag(router.input.is_some(), "router norm"));
    parts.extend(flag(experts.weigh_input, "weighted inputs"));
    if let Some(shared) = &experts.shared {
        let gated = if shared.gated { ", gated" } else { "" };
        parts.push(format!("1 shared of {}{gated}", shared.dense.size));
    }
    parts
}

fn positions(rope: Option<&Rope>, head_dim: usize) -> String {
    let Some(rope) = rope else {
        return "no position encoding".to_owned();
    };
    let mut words = vec![format!("RoPE base {}", rope.theta)];
    if rope.dims != head_dim {
        words.push(format!("{} dims", rope.dims));
    }
    words.extend(flag(rope.pairs == RopePairs::Interleaved, "interleaved"));
    words.extend(match &rope.scaling {
        RopeScaling::None => None,
        RopeScaling::Linear { factor } => Some(format!("linear × {factor}")),
        RopeScaling::Llama3 { factor, .. } => Some(format!("llama3 × {factor}")),
        RopeScaling::Yarn(yarn) => {
            let (factor, from) = (yarn.factor, yarn.original_context);
            Some(format!("yarn × {factor} from {from}"))
        }
        RopeScaling::LongRope {
            original_context, ..
        } => Some(format!("longrope from {original_context}")),
        RopeScaling::Proportional { rotating, .. } => {
            Some(format!("on {rotating} of {} pairs", rope.dims / 2))
        }
        RopeScaling::Tensor => Some("scaled by a tensor".to_owned()),
        RopeScaling::LongTensor {
            original_context, ..
        } => Some(format!("longrope (tensors) from {original_context}")),
    });
    words.join(", ")
}

fn named(activation: &Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu (tanh)",
        Activation::Relu => "relu",
        Activation::QuickGelu => "quick gelu",
        Activation::Relu2 => "squared relu",
        Activation::ClampedSwiglu { .. } => "clamped swiglu",
    }
}

fn kind(norm: &Norm) -> &'static str {
    match norm.kind {
        NormKind::Rms => "RMS",
        NormKind::Layer => "layer",
    }
}

fn plural(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Only if it is not 1.
fn factor(what: &str, by: f32) -> Option<String> {
    (by != 1.0).then(|| format!("{what} × {by}"))
}

fn flag(set: bool, words: &str) -> Option<String> {
    set.then(|| words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn equal_layers_are_grouped_in_ranges() {
        let table: [(&[usize], &str); 7] = [
            (&[0], "layer 0"),
            (&[0, 1], "layers 0-1"),
            (&[0, 1, 2, 4, 5, 6], "layers 0-2, 4-6"),
            (&[0, 2, 4, 6], "layers 0, 2, 4, 6"),
            (&[1, 3, 5, 7, 9], "layers 1, 3, …, 9"),
            (
                &[0, 1, 3, 4, 6, 7, 9, 10, 12, 13],
                "layers 0-1, 3-4, …, 12-13",
            ),
            // An irregular pattern is not shortened.
            (&[1, 3, 5, 7, 8], "layers 1, 3, 5, 7-8"),
        ];
        for (numbers, expected) in table {
            assert_eq!(numbered(numbers), expected);
        }
    }
}
