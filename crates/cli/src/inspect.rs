//! `loquat inspect`: what a model is, and what it will take, without loading it.

use std::collections::BTreeMap;
use std::fmt::Write;

use loquat_session::{Capabilities, Plan, PrefixCopy, Probe};
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::backends;
use crate::describe;
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

/// All that the device holds for one such sequence.
fn total_bytes(plan: &Plan) -> u64 {
    plan.memory.weight_bytes + kv_bytes(plan) + plan.memory.state_bytes
}

/// An empty row between the model and the machine.
const GAP: &str = "";

fn as_text(model: &Model, plan: &Plan, memory: Option<u64>, tensors: bool) -> String {
    let spec = &model.checkpoint.spec;
    let formats: Vec<String> = formats(model)
        .iter()
        .map(|(format, count)| format!("{count} × {format}"))
        .collect();
    let rows = [
        ("model", model.name.clone()),
        ("format", model.checkpoint.format.name().to_owned()),
        ("family", spec.family.to_owned()),
        (
            "parameters",
            format!("{:.1} M in matrices", parameters(model) as f64 / 1e6),
        ),
        ("embedding", describe::embedding(spec)),
        (
            "layer inputs",
            describe::per_layer_inputs(spec).unwrap_or_default(),
        ),
        (
            "context",
            format!(
                "{} (model: {})",
                plan.capabilities.max_context, spec.max_context
            ),
        ),
        ("head", describe::head(spec)),
        ("matrices", formats.join(", ")),
        ("file weights", bytes(model.source.weights.bytes())),
        (GAP, String::new()),
        ("device", plan.capabilities.device.clone()),
        ("weights in memory", bytes(plan.memory.weight_bytes)),
        (
            "KV at this context",
            format!(
                "{} ({} per token, {})",
                bytes(kv_bytes(plan)),
                bytes(plan.memory.kv_bytes_per_token),
                plan.capabilities.kv_format
            ),
        ),
        ("recurrent state", state(plan.memory.state_bytes)),
        ("together", together(total_bytes(plan), memory)),
        ("can", capabilities(&plan.capabilities).join(", ")),
    ];
    let mut text = String::new();
    let told = |(name, value): &(&str, String)| *name == GAP || !value.is_empty();
    for (name, value) in rows.iter().filter(|row| told(row)) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", format!("{name:<19}{value}").trim_end());
    }
    for (numbers, blocks) in describe::layers(spec) {
        let _ = write!(text, "\n{numbers}\n");
        for block in blocks {
            let _ = writeln!(text, "  {block}");
        }
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

fn state(state_bytes: u64) -> String {
    match state_bytes {
        0 => String::new(),
        _ => format!("{} per sequence, and per snapshot", bytes(state_bytes)),
    }
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
    let layers: Vec<Value> = describe::layers(spec)
        .into_iter()
        .map(|(numbers, blocks)| json!({ "layers": numbers, "blocks": blocks }))
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
        "embedding": describe::embedding(spec),
        "layer_inputs": describe::per_layer_inputs(spec),
        "head": describe::head(spec),
        "tied_head": spec.head.tied,
        "matrices": formats(model),
        "file_weight_bytes": model.source.weights.bytes(),
        "device": plan.capabilities.device,
        "weight_bytes": plan.memory.weight_bytes,
        "kv_bytes_per_token": plan.memory.kv_bytes_per_token,
        "kv_bytes_at_context": kv_bytes(plan),
        "state_bytes": plan.memory.state_bytes,
        "total_bytes": total_bytes(plan),
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
