//! `loquat inspect`: what a model is, and what it will take, without loading it.

use std::collections::BTreeMap;
use std::fmt::Write;

use loquat_session::{Capabilities, Plan, PrefixCopy, Probe};
use loquat_spec::{Activation, FeedForward, Layer, Mixer, ModelSpec, Rope, RopeScaling};
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, locate, open_store};
use crate::terminal::{bytes, print};

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let backend = backends::select(&args.session.backend)?;
    let model = Model::open(&locate(&store, args.model.as_deref())?)?;
    let plan = backend.plan(&model.source, &args.session.options(1))?;
    let memory = match backend.probe() {
        Probe::Available(devices) => devices.first().and_then(|device| device.memory_bytes),
        Probe::Unavailable { .. } => None,
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&as_json(&model, &plan, memory, args.tensors))
            .map_err(|error| CliError::Output(error.into()))?,
        false => as_text(&model, &plan, memory, args.tensors),
    };
    print(&format!("{}\n", text.trim_end()))
}

fn parameters(model: &Model) -> usize {
    let matrices = model.source.weights.matrices();
    matrices
        .map(|(_, matrix)| matrix.rows() * matrix.cols())
        .sum()
}

/// Matrix formats and how many matrices have each.
fn formats(model: &Model) -> BTreeMap<String, usize> {
    let mut formats = BTreeMap::new();
    for (_, matrix) in model.source.weights.matrices() {
        *formats.entry(matrix.format()).or_insert(0) += 1;
    }
    formats
}

/// KV memory of one sequence that fills the context.
fn kv_bytes(plan: &Plan) -> u64 {
    let granularity = plan.memory.kv_granularity.max(1);
    let tokens = plan.capabilities.max_context.next_multiple_of(granularity);
    tokens as u64 * plan.memory.kv_bytes_per_token
}

fn as_text(model: &Model, plan: &Plan, memory: Option<u64>, tensors: bool) -> String {
    let spec = &model.checkpoint.spec;
    let formats: Vec<String> = formats(model)
        .iter()
        .map(|(format, count)| format!("{count} × {format}"))
        .collect();
    let kv = kv_bytes(plan);
    let rows = [
        ("model", model.name.clone()),
        ("format", model.checkpoint.format.name().to_owned()),
        ("family", spec.family.to_owned()),
        (
            "parameters",
            format!("{:.1} M in matrices", parameters(model) as f64 / 1e6),
        ),
        ("vocabulary", spec.vocab_size.to_string()),
        ("hidden size", spec.hidden_size.to_string()),
        (
            "context",
            format!(
                "{} (model: {})",
                plan.capabilities.max_context, spec.max_context
            ),
        ),
        ("head", head(spec)),
        ("matrices", formats.join(", ")),
        ("file weights", bytes(model.source.weights.bytes())),
        ("", String::new()),
        ("device", plan.capabilities.device.clone()),
        ("weights in memory", bytes(plan.memory.weight_bytes)),
        (
            "KV at this context",
            format!(
                "{} ({} per token, {})",
                bytes(kv),
                bytes(plan.memory.kv_bytes_per_token),
                plan.capabilities.kv_format
            ),
        ),
        ("together", together(plan.memory.weight_bytes + kv, memory)),
        ("can", capabilities(&plan.capabilities).join(", ")),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", format!("{name:<19}{value}").trim_end());
    }
    text.push('\n');
    for (range, layer) in runs(&spec.layers) {
        let _ = writeln!(text, "{range:<19}{}", describe(layer));
    }
    if tensors {
        text.push('\n');
        for tensor in model.checkpoint.tensors() {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let _ = writeln!(
                text,
                "{:<48} {:<6} {}",
                tensor.name,
                tensor.dtype.name(),
                shape.join(" × ")
            );
        }
    }
    text
}

fn together(wanted: u64, memory: Option<u64>) -> String {
    match memory {
        None => bytes(wanted),
        Some(memory) if wanted <= memory => format!("{} of {}", bytes(wanted), bytes(memory)),
        Some(memory) => format!(
            "{}, more than this machine's {}",
            bytes(wanted),
            bytes(memory)
        ),
    }
}

fn head(spec: &ModelSpec) -> String {
    let tied = if spec.head.tied {
        "tied to the embedding"
    } else {
        "its own"
    };
    let cap = spec
        .head
        .softcap
        .map(|cap| format!(", softcap {cap}"))
        .unwrap_or_default();
    format!("{tied}{cap}")
}

/// Neighbouring layers that are alike, as `layers 0-4`.
fn runs(layers: &[Layer]) -> Vec<(String, &Layer)> {
    let mut runs = Vec::new();
    let mut first = 0;
    for run in layers.chunk_by(|a, b| a == b) {
        let last = first + run.len() - 1;
        let name = match run.len() {
            1 => format!("layer {first}"),
            _ => format!("layers {first}-{last}"),
        };
        runs.push((name, &run[0]));
        first = last + 1;
    }
    runs
}

fn describe(layer: &Layer) -> String {
    let Mixer::Attention(attention) = &layer.mixer.inner;
    let mut parts = vec![format!(
        "attention {} heads, {} kv, dim {}",
        attention.heads, attention.kv_heads, attention.head_dim
    )];
    parts.push(
        attention
            .rope
            .as_ref()
            .map_or("no positions".to_owned(), rope),
    );
    parts.extend(attention.window.map(|window| format!("window {window}")));
    parts.extend(attention.qk_norm.map(|_| "normed q and k".to_owned()));
    parts.extend(attention.qkv_bias.then(|| "biased q, k, v".to_owned()));
    let FeedForward::Gated {
        size, activation, ..
    } = layer.feed_forward.inner;
    let activation = match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu",
    };
    let norms = match layer.mixer.post_norm {
        Some(_) => "; sandwich norms",
        None => "",
    };
    format!(
        "{}; gated feed-forward {size}, {activation}{norms}",
        parts.join(", ")
    )
}

fn rope(rope: &Rope) -> String {
    let scaling = match rope.scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(" linear × {factor}"),
        RopeScaling::Llama3 { factor, .. } => format!(" llama3 × {factor}"),
        RopeScaling::Tensor => " scaled by tensor".to_owned(),
    };
    format!("rope {}{scaling}", rope.theta)
}

fn capabilities(capabilities: &Capabilities) -> Vec<&'static str> {
    let prefix = match capabilities.prefix_copy {
        PrefixCopy::AnyLength => Some("share prefixes at any length"),
        PrefixCopy::AtSnapshots => Some("share prefixes at snapshots"),
        PrefixCopy::None => None,
    };
    let flags = [
        (capabilities.structured_output, "structured output"),
        (capabilities.speculative_decoding, "speculative decoding"),
        (capabilities.batched_serving, "batched serving"),
        (capabilities.export, "export sequences"),
        (capabilities.multimodal, "images"),
        (capabilities.batch_invariant, "bit-identical rows"),
    ];
    let flags = flags.iter().filter(|(can, _)| *can).map(|(_, name)| *name);
    flags.chain(prefix).collect()
}

fn as_json(model: &Model, plan: &Plan, memory: Option<u64>, tensors: bool) -> Value {
    let spec = &model.checkpoint.spec;
    let layers: Vec<Value> = runs(&spec.layers)
        .into_iter()
        .map(|(range, layer)| json!({ "layers": range, "blocks": describe(layer) }))
        .collect();
    let mut value = json!({
        "model": model.name,
        "format": model.checkpoint.format.name(),
        "family": spec.family,
        "parameters": parameters(model),
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "model_context": spec.max_context,
        "context": plan.capabilities.max_context,
        "tied_head": spec.head.tied,
        "matrices": formats(model),
        "file_weight_bytes": model.source.weights.bytes(),
        "device": plan.capabilities.device,
        "weight_bytes": plan.memory.weight_bytes,
        "kv_bytes_per_token": plan.memory.kv_bytes_per_token,
        "kv_bytes_at_context": kv_bytes(plan),
        "total_bytes": plan.memory.weight_bytes + kv_bytes(plan),
        "device_memory_bytes": memory,
        "kv_format": plan.capabilities.kv_format,
        "capabilities": capabilities(&plan.capabilities),
        "layers": layers,
    });
    if tensors {
        let tensors = model.checkpoint.tensors().iter().map(|tensor| {
            json!({ "name": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape })
        });
        value["tensors"] = tensors.collect();
    }
    value
}
