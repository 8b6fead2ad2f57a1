//! `loquat inspect`: describes a model and its memory, without loading it.

mod chat_format;

use std::collections::BTreeMap;
use std::fmt::Write;

use loquat::{ModelFiles, OpenAdapters};
use loquat_session::{
    Backend, Capabilities, KvGroup, MemoryBudget, Plan, PrefixCopy, Probe, Reach,
};
use loquat_store::Store;
use loquat_weights::AdapterWeights;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::backends;
use crate::describe;
use crate::error::CliError;
use crate::load::{self, locate, open_store_on};
use crate::terminal::{bytes, print, print_json};
use chat_format::ChatSummary;

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let store = open_store_on(args.source.network)?;
    if args.program {
        return program(&store, args);
    }
    let backend = backends::select(&args.session.backend)?;
    let model = ModelFiles::open(&locate(&store, &args.source.choice(args.model.as_deref()))?)?;
    // With the options of `run`, so that the numbers match.
    let adapters = load::adapters(&store, &model, &args.adapters.files)?;
    let options = adapters.make_room(&args.session.options(1));
    let plan = backend.plan(&model.source, &options)?;
    let limits = MemoryLimits::new(backend, args.session.memory);
    if args.json {
        let mut json = as_json(&model, &plan, &limits, args.tensors);
        if !args.adapters.files.is_empty() {
            json["adapters"] = adapters_json(&adapters);
        }
        return print_json(&json);
    }
    let text = as_text(&model, &plan, &limits, args.tensors);
    let adapters = adapters_text(&adapters);
    print(&format!("{}\n", (text + &adapters).trim_end()))
}

/// Prints the model's program for the CUDA backend, whichever one is selected.
fn program(store: &Store, args: &InspectArgs) -> Result<(), CliError> {
    let model = ModelFiles::open(&locate(store, &args.source.choice(args.model.as_deref()))?)?;
    let adapters = load::adapters(store, &model, &args.adapters.files)?;
    let options = adapters.make_room(&args.session.options(1));
    let listing = loquat::cuda_program(&model.source, &options, args.gpu)?;
    print(&format!("model      {}\n{listing}", model.name))
}

fn adapters_text(adapters: &OpenAdapters) -> String {
    let mut text = String::new();
    for (weights, scale) in adapters.iter() {
        let info = weights.info();
        let base = info.base.as_deref().unwrap_or("not named");
        let (matrices, replaced) = changes(weights);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\nadapter {} ({}), scale {scale}\n  base {base}\n  rank {}, {matrices} matrices \
             adapted, {replaced} weights replaced, at most {} in memory\n",
            info.name,
            info.format,
            weights.rank(),
            bytes(weights.bytes()),
        );
    }
    text
}

fn adapters_json(adapters: &OpenAdapters) -> Value {
    let adapters = adapters.iter().map(|(weights, scale)| {
        let (matrices, replaced) = changes(weights);
        json!({
            "name": weights.info().name,
            "format": weights.info().format,
            "base": weights.info().base,
            "scale": scale,
            "rank": weights.rank(),
            "adapted_matrices": matrices,
            "replaced_weights": replaced,
            "max_bytes": weights.bytes(),
        })
    });
    adapters.collect()
}

/// How many matrices have factors, and how many weights are replaced.
fn changes(weights: &AdapterWeights) -> (usize, usize) {
    let replaced = weights.replaced().roles().count();
    (weights.low_ranks().count(), replaced)
}

/// Available memory in bytes.
struct MemoryLimits {
    machine: Option<u64>,
    /// The `--memory` flag.
    budget: Option<u64>,
}

impl MemoryLimits {
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
fn formats(model: &ModelFiles) -> BTreeMap<String, usize> {
    let mut formats = BTreeMap::new();
    for (_, matrix) in model.source.weights.matrices() {
        *formats.entry(matrix.format()).or_insert(0) += 1;
    }
    formats
}

/// Tokens' worth of KV that a sequence of the full context occupies.
fn full_sequence(plan: &Plan) -> usize {
    plan.memory.sequence_tokens(plan.capabilities.max_context)
}

fn kv_bytes(plan: &Plan, tokens: usize) -> u64 {
    (tokens as u64).saturating_mul(plan.memory.kv_bytes_per_token)
}

/// Weights and one full sequence.
fn total_bytes(plan: &Plan) -> u64 {
    let kv = kv_bytes(plan, full_sequence(plan));
    plan.memory.weight_bytes + kv + plan.memory.state_bytes
}

fn kv_capacity_bytes(plan: &Plan) -> u64 {
    kv_bytes(plan, plan.memory.kv_capacity)
}

/// Everything except weights and KV: work buffers and recurrent states.
fn buffer_bytes(plan: &Plan) -> u64 {
    let (weights, kv) = (plan.memory.weight_bytes, kv_capacity_bytes(plan));
    plan.resident_bytes
        .saturating_sub(weights)
        .saturating_sub(kv)
}

/// An empty row between sections.
const GAP: &str = "";

fn as_text(model: &ModelFiles, plan: &Plan, limits: &MemoryLimits, tensors: bool) -> String {
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
    rows.extend(vision_rows(model, plan));
    rows.extend(ChatSummary::new(model).rows());
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
        ("KV by layers", kv_groups(plan)),
        ("recurrent state", state(plan.memory.state_bytes)),
        ("weights and KV", bytes(total_bytes(plan))),
        ("KV capacity", kv_capacity(plan)),
        (buffers_name(plan), bytes(buffer_bytes(plan))),
        ("total memory", total_memory(plan.resident_bytes, limits)),
        ("capabilities", capabilities(&plan.capabilities).join(", ")),
    ]);
    rows.extend(plan.notes.iter().map(|note| ("note", note.clone())));
    let mut text = String::new();
    let is_shown = |(name, value): &(&str, String)| *name == GAP || !value.is_empty();
    for (name, value) in rows.iter().filter(|row| is_shown(row)) {
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
        _ => format!("{} per sequence and snapshot", bytes(state_bytes)),
    }
}

/// How far layers reach, and what a token takes in them. Empty if all keep everything.
fn kv_groups(plan: &Plan) -> String {
    let groups = &plan.memory.kv_groups;
    if !groups.free_within(usize::MAX) {
        return String::new();
    }
    let group = |group: &KvGroup| {
        let size = bytes(group.bytes_per_token);
        match group.reach {
            Reach::All => format!("{size} per token of the context"),
            Reach::Window(window) => format!("{size} per token of the last {window}"),
            Reach::Chunk(chunk) => format!("{size} per token of a chunk of {chunk}"),
        }
    };
    let groups: Vec<String> = groups.iter().map(group).collect();
    groups.join(", ")
}

fn kv_groups_json(plan: &Plan) -> Vec<Value> {
    let group = |group: &KvGroup| {
        let (kind, tokens) = match group.reach {
            Reach::All => ("all", None),
            Reach::Window(window) => ("window", Some(window)),
            Reach::Chunk(chunk) => ("chunk", Some(chunk)),
        };
        json!({
            "bytes_per_token": group.bytes_per_token,
            "reach": kind,
            "reach_tokens": tokens,
        })
    };
    plan.memory.kv_groups.iter().map(group).collect()
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

/// The memory that is needed, against what is available.
fn total_memory(needed: u64, limits: &MemoryLimits) -> String {
    let size = bytes(needed);
    match (limits.budget, limits.machine) {
        (Some(budget), _) => format!("{size} of {} allowed", bytes(budget)),
        (None, Some(machine)) if needed > machine => {
            format!("{size}, more than this machine's {}", bytes(machine))
        }
        (None, Some(machine)) => format!("{size} of {}", bytes(machine)),
        (None, None) => size,
    }
}

fn capabilities(capabilities: &Capabilities) -> Vec<&'static str> {
    let prefix = match capabilities.prefix_copy {
        PrefixCopy::AnyLength => Some("prefix sharing at any length"),
        PrefixCopy::AtSnapshots => Some("prefix sharing at snapshots"),
        PrefixCopy::None => None,
    };
    let flags = [
        (capabilities.logits, "structured output"),
        (capabilities.export, "sequence export"),
        (capabilities.batch_invariant, "bit-identical in any batch"),
        (capabilities.chunk_invariant, "bit-identical in any chunks"),
    ];
    let flags = flags.iter().filter(|(can, _)| *can).map(|(_, name)| *name);
    flags.chain(prefix).collect()
}

/// What the model reads besides text, and its tower.
fn vision_rows(model: &ModelFiles, plan: &Plan) -> Vec<(&'static str, String)> {
    let spec = &model.checkpoint.spec;
    if let Some(why) = &spec.vision_refusal {
        return vec![("images", format!("refused: {why}")), (GAP, String::new())];
    }
    let Some(vision) = &spec.vision else {
        return Vec::new();
    };
    let processor = match model.processor() {
        Some(Ok(processor)) => processor.prompt.class.to_owned(),
        Some(Err(error)) => format!("unusable, so images are refused: {error}"),
        None => String::new(),
    };
    let positions = plan.memory.media_capacity;
    let media = plan.memory.media_bytes_per_position * positions as u64;
    let file = model.checkpoint.mmproj();
    let file = file.map(|path| path.display().to_string());
    vec![
        ("vision tower", describe::vision(vision)),
        ("tower's file", file.unwrap_or_default()),
        ("processor", processor),
        (
            "encoded media",
            format!("{} ({positions} positions)", bytes(media)),
        ),
        (GAP, String::new()),
    ]
}

fn vision_json(model: &ModelFiles, plan: &Plan) -> Value {
    let spec = &model.checkpoint.spec;
    let Some(vision) = &spec.vision else {
        return spec
            .vision_refusal
            .as_ref()
            .map_or(Value::Null, |why| json!({ "error": why }));
    };
    let (processor, error) = match model.processor() {
        Some(Ok(processor)) => (Some(processor.prompt.class), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    json!({
        "tower": describe::vision(vision),
        "file": model.checkpoint.mmproj(),
        "layers": vision.layers.len(),
        "hidden_size": vision.hidden_size,
        "patch_size": vision.patch.side,
        "video": vision.video,
        "processor": processor,
        "error": error,
        "media_positions": plan.memory.media_capacity,
        "media_bytes_per_position": plan.memory.media_bytes_per_position,
    })
}

fn as_json(model: &ModelFiles, plan: &Plan, limits: &MemoryLimits, tensors: bool) -> Value {
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
        "kv_groups": kv_groups_json(plan),
        "kv_bytes_at_context": kv_bytes(plan, full_sequence(plan)),
        "state_bytes": plan.memory.state_bytes,
        "total_bytes": total_bytes(plan),
        "kv_capacity": plan.memory.kv_capacity,
        "kv_capacity_bytes": kv_capacity_bytes(plan),
        "buffer_bytes": buffer_bytes(plan),
        "resident_bytes": plan.resident_bytes,
        "memory_budget_bytes": limits.budget,
        "device_memory_bytes": limits.machine,
        "kv_format": plan.capabilities.kv_format,
        "capabilities": capabilities(&plan.capabilities),
        "notes": plan.notes,
        "vision": vision_json(model, plan),
        "layers": layers,
    });
    if let (Value::Object(value), Value::Object(chat)) =
        (&mut value, ChatSummary::new(model).to_json())
    {
        value.extend(chat);
    }
    if tensors {
        let tensors = model.checkpoint.tensors().iter().map(|tensor| {
            json!({ "name": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape })
        });
        value["tensors"] = tensors.collect();
    }
    value
}
