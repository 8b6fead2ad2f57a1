//! `loquat inspect`: what a model is, and what it will take, without loading it.

mod manner;

use std::collections::BTreeMap;
use std::fmt::Write;

use loquat_session::{Backend, Capabilities, MemoryBudget, Plan, PrefixCopy, Probe};
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::backends;
use crate::describe;
use crate::error::CliError;
use crate::load::{Model, locate, open_store_on};
use crate::terminal::{bytes, print};
use manner::Manner;

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let store = open_store_on(args.source.network)?;
    let backend = backends::select(&args.session.backend)?;
    let model = Model::open(&locate(&store, &args.source.chosen(args.model.as_deref()))?)?;
    // As `run` opens it, so that the numbers are those it will live with.
    let plan = backend.plan(&model.source, &args.session.options(1))?;
    let bounds = Bounds::new(backend, args.session.memory);
    let text = if args.json {
        serde_json::to_string_pretty(&as_json(&model, &plan, &bounds, args.tensors))
            .map_err(|error| CliError::Output(error.into()))?
    } else {
        as_text(&model, &plan, &bounds, args.tensors)
    };
    print(&format!("{}\n", text.trim_end()))
}

/// What memory there is, in bytes.
struct Bounds {
    machine: Option<u64>,
    /// Where one was given.
    budget: Option<u64>,
}

impl Bounds {
    fn new(backend: &dyn Backend, budget: Option<MemoryBudget>) -> Self {
        let machine = match backend.probe() {
            Probe::Available(devices) => devices.first().and_then(|device| device.memory_bytes),
            Probe::Unavailable { .. } => None,
        };
        let budget = match (budget, machine) {
            (Some(budget), Some(machine)) => Some(budget.bytes(machine).min(machine)),
            (Some(MemoryBudget::Bytes(bytes)), None) => Some(bytes),
            (Some(MemoryBudget::Percent(_)) | None, _) => None,
        };
        Self { machine, budget }
    }
}

/// Matrix formats and how many matrices have each.
fn formats(model: &Model) -> BTreeMap<String, usize> {
    let mut formats = BTreeMap::new();
    for (_, matrix) in model.source.weights.matrices() {
        *formats.entry(matrix.format()).or_insert(0) += 1;
    }
    formats
}

/// Tokens of KV that one sequence which fills the context takes.
fn full_sequence(plan: &Plan) -> usize {
    let granularity = plan.memory.kv_granularity.max(1);
    plan.capabilities.max_context.next_multiple_of(granularity)
}

fn kv_bytes(plan: &Plan, tokens: usize) -> u64 {
    (tokens as u64).saturating_mul(plan.memory.kv_bytes_per_token)
}

/// Weights and one such sequence.
fn total_bytes(plan: &Plan) -> u64 {
    let kv = kv_bytes(plan, full_sequence(plan));
    plan.memory.weight_bytes + kv + plan.memory.state_bytes
}

fn kv_capacity_bytes(plan: &Plan) -> u64 {
    kv_bytes(plan, plan.memory.kv_capacity)
}

/// All that is neither weights nor KV: what a step works in, and recurrent states.
fn buffer_bytes(plan: &Plan) -> u64 {
    let (weights, kv) = (plan.memory.weight_bytes, kv_capacity_bytes(plan));
    plan.resident_bytes
        .saturating_sub(weights)
        .saturating_sub(kv)
}

/// An empty row between the model, its manner and the machine.
const GAP: &str = "";

fn as_text(model: &Model, plan: &Plan, bounds: &Bounds, tensors: bool) -> String {
    let spec = &model.checkpoint.spec;
    let formats: Vec<String> = formats(model)
        .iter()
        .map(|(format, count)| format!("{count} × {format}"))
        .collect();
    let mut rows = vec![
        ("model", model.name.clone()),
        ("format", model.checkpoint.format.name().to_owned()),
        ("family", spec.family.to_owned()),
        (
            "parameters",
            format!("{:.1} M in matrices", model.parameters() as f64 / 1e6),
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
    ];
    rows.extend(Manner::of(model).rows());
    rows.extend([
        (GAP, String::new()),
        ("device", plan.capabilities.device.clone()),
        ("weights in memory", bytes(plan.memory.weight_bytes)),
        (
            "KV at this context",
            format!(
                "{} ({} per token, {})",
                bytes(kv_bytes(plan, full_sequence(plan))),
                bytes(plan.memory.kv_bytes_per_token),
                plan.capabilities.kv_format
            ),
        ),
        ("recurrent state", state(plan.memory.state_bytes)),
        ("together", bytes(total_bytes(plan))),
        ("KV capacity", kv_capacity(plan)),
        (buffers_name(plan), bytes(buffer_bytes(plan))),
        ("at most", at_most(plan.resident_bytes, bounds)),
        ("can", capabilities(&plan.capabilities).join(", ")),
    ]);
    rows.extend(plan.notes.iter().map(|note| ("note", note.clone())));
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

fn kv_capacity(plan: &Plan) -> String {
    let tokens = plan.memory.kv_capacity;
    let sequences = match tokens / full_sequence(plan).max(1) {
        0 => "less than one full context".to_owned(),
        1 => "1 full context".to_owned(),
        count => format!("{count} full contexts"),
    };
    let size = bytes(kv_capacity_bytes(plan));
    format!("{size} ({tokens} tokens, {sequences})")
}

fn buffers_name(plan: &Plan) -> &'static str {
    match plan.memory.state_bytes {
        0 => "buffers",
        _ => "buffers and states",
    }
}

/// All that will be taken, beside what there is.
fn at_most(wanted: u64, bounds: &Bounds) -> String {
    let size = bytes(wanted);
    match (bounds.budget, bounds.machine) {
        (Some(budget), _) => format!("{size} of {} allowed", bytes(budget)),
        (None, Some(machine)) if wanted > machine => {
            format!("{size}, more than this machine's {}", bytes(machine))
        }
        (None, Some(machine)) => format!("{size} of {}", bytes(machine)),
        (None, None) => size,
    }
}

fn capabilities(capabilities: &Capabilities) -> Vec<&'static str> {
    let prefix = match capabilities.prefix_copy {
        PrefixCopy::AnyLength => Some("share prefixes at any length"),
        PrefixCopy::AtSnapshots => Some("share prefixes at snapshots"),
        PrefixCopy::None => None,
    };
    let flags = [
        (capabilities.logits, "structured output"),
        (capabilities.export, "export sequences"),
        (capabilities.batch_invariant, "bit-identical rows"),
    ];
    let flags = flags.iter().filter(|(can, _)| *can).map(|(_, name)| *name);
    flags.chain(prefix).collect()
}

fn as_json(model: &Model, plan: &Plan, bounds: &Bounds, tensors: bool) -> Value {
    let spec = &model.checkpoint.spec;
    let layers: Vec<Value> = describe::layers(spec)
        .into_iter()
        .map(|(numbers, blocks)| json!({ "layers": numbers, "blocks": blocks }))
        .collect();
    let mut value = json!({
        "model": model.name,
        "format": model.checkpoint.format.name(),
        "family": spec.family,
        "parameters": model.parameters(),
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
        "kv_bytes_at_context": kv_bytes(plan, full_sequence(plan)),
        "state_bytes": plan.memory.state_bytes,
        "total_bytes": total_bytes(plan),
        "kv_capacity": plan.memory.kv_capacity,
        "kv_capacity_bytes": kv_capacity_bytes(plan),
        "buffer_bytes": buffer_bytes(plan),
        "resident_bytes": plan.resident_bytes,
        "memory_budget_bytes": bounds.budget,
        "device_memory_bytes": bounds.machine,
        "kv_format": plan.capabilities.kv_format,
        "capabilities": capabilities(&plan.capabilities),
        "notes": plan.notes,
        "layers": layers,
    });
    if let (Value::Object(value), Value::Object(manner)) = (&mut value, Manner::of(model).to_json())
    {
        value.extend(manner);
    }
    if tensors {
        let tensors = model.checkpoint.tensors().iter().map(|tensor| {
            json!({ "name": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape })
        });
        value["tensors"] = tensors.collect();
    }
    value
}
