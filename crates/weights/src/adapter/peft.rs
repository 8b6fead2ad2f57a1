//! Adapters of Hugging Face's peft: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_spec::Config;
use regex::Regex;
use serde_json::Value;

use super::bind::{Change, ExpertsChange, LowRankChange, Targets};
use super::file::{AdapterFault, AdapterFile};
use super::tensors::{factors, values};
use super::{AdapterBase, AdapterInfo, Factor, LengthsOf};
use crate::{Format, RawTensor};

/// Fields that describe training, or name what the tensors show.
const IGNORED: &[&str] = &[
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    // Read only with `use_qalora`.
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
];

/// Fields that are read.
const READ: &[&str] = &[
    "alpha_pattern",
    "auto_mapping",
    "bias",
    "lora_alpha",
    "peft_type",
    "r",
    "rank_pattern",
    "use_dora",
    "use_rslora",
];

/// Ways to start training that change the base model, which the adapter alone does not fit then.
const CHANGED_BASES: &[&str] = &["pissa", "olora", "loftq", "corda", "lora_ga"];

struct LoraConfig {
    rank: usize,
    alpha: f64,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    /// The scale is `alpha / sqrt(rank)`.
    root: bool,
    dora: bool,
}

impl LoraConfig {
    fn read(config: &Config) -> Result<Self, AdapterFault> {
        let kind = config.str("peft_type")?.unwrap_or("absent");
        if kind != "LORA" {
            return Err(AdapterFault::field("peft_type", kind, "LORA"));
        }
        for field in config.fields() {
            if !IGNORED.contains(&field)
                && !READ.contains(&field)
                && config.get(field).is_some_and(is_set)
            {
                let found = config.get(field).map(Value::to_string).unwrap_or_default();
                return Err(AdapterFault::field(
                    field,
                    shortened(&found),
                    "absent or null; it is not supported",
                ));
            }
        }
        if let Some(Value::String(init)) = config.get("init_lora_weights")
            && CHANGED_BASES.iter().any(|name| init.starts_with(name))
        {
            let expected = "another; it changed the base model in training. Save the adapter with \
                            `path_initial_model_for_weight_conversion`";
            return Err(AdapterFault::field("init_lora_weights", init, expected));
        }
        let bias = config.str("bias")?.unwrap_or("none");
        if !["none", "all", "lora_only"].contains(&bias) {
            return Err(AdapterFault::field("bias", bias, "none, all or lora_only"));
        }
        let rank = config.usize("r")?;
        if rank == 0 {
            return Err(AdapterFault::field("r", 0, "at least 1"));
        }
        let alpha = config.f64("lora_alpha")?;
        if !alpha.is_finite() {
            return Err(AdapterFault::field("lora_alpha", alpha, "a finite number"));
        }
        Ok(Self {
            rank,
            alpha,
            ranks: patterns(config, "rank_pattern")?,
            alphas: patterns(config, "alpha_pattern")?,
            root: config.bool_or("use_rslora", false)?,
            dora: config.bool_or("use_dora", false)?,
        })
    }

    fn rank_of(&self, module: &str) -> usize {
        first_match(&self.ranks, module).map_or(self.rank, |rank| rank as usize)
    }

    fn scale(&self, module: &str, rank: usize) -> f32 {
        let alpha = first_match(&self.alphas, module).unwrap_or(self.alpha);
        let rank = rank as f64;
        (alpha / if self.root { rank.sqrt() } else { rank }) as f32
    }
}

/// Whether a field has a value other than its absence.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Regular expressions that match the end of a module's name from a dot on.
fn patterns(config: &Config, field: &str) -> Result<Vec<(Regex, f64)>, AdapterFault> {
    let Some(table) = config.object(field)? else {
        return Ok(Vec::new());
    };
    let mut patterns = Vec::new();
    for pattern in table.fields() {
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$"));
        let regex = regex.map_err(|_| {
            AdapterFault::field(field, format!("`{pattern}`"), "a regular expression")
        })?;
        let value = table.f64(pattern)?;
        if !value.is_finite() || value <= 0.0 {
            return Err(AdapterFault::field(table.path(pattern), value, "above 0"));
        }
        patterns.push((regex, value));
    }
    Ok(patterns)
}

fn first_match(patterns: &[(Regex, f64)], module: &str) -> Option<f64> {
    let mut patterns = patterns.iter();
    let found = patterns.find(|(regex, _)| regex.is_match(module));
    found.map(|(_, value)| *value)
}

/// The tensors of one module.
#[derive(Default)]
struct Module {
    a: Option<RawTensor>,
    b: Option<RawTensor>,
    magnitude: Option<RawTensor>,
    is_embedding: bool,
}

/// What a tensor's name says.
enum Part {
    A,
    B,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
}

/// Endings that follow a module's name; an adapter's own name may be between.
fn split(name: &str) -> Option<(&str, Part)> {
    let parts = [
        (".lora_A", Part::A),
        (".lora_B", Part::B),
        (".lora_embedding_A", Part::EmbeddingA),
        (".lora_embedding_B", Part::EmbeddingB),
        (".lora_magnitude_vector", Part::Magnitude),
    ];
    for (ending, part) in parts {
        if let Some(at) = name.rfind(ending) {
            let rest = &name[at + ending.len()..];
            let known = ["", ".weight", ".default", ".default.weight"];
            return known.contains(&rest).then_some((&name[..at], part));
        }
    }
    None
}

pub(super) fn read(
    config: &Config,
    tensors: Vec<RawTensor>,
    base: &AdapterBase,
) -> Result<AdapterFile, AdapterFault> {
    let lora = Arc::new(LoraConfig::read(config)?);
    check_base(config, base)?;
    let namings = base.spec.config_namings();
    let targets = Targets::new(&base.spec, &namings);
    let mut file = AdapterFile {
        info: AdapterInfo {
            name: String::new(),
            format: "PEFT",
            base: config.str("base_model_name_or_path")?.map(str::to_owned),
        },
        namings,
        is_gguf: false,
        changes: Vec::new(),
        faults: Vec::new(),
    };
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for tensor in tensors {
        let name = tensor.name.as_str();
        let name = name.strip_prefix("base_model.model.").unwrap_or(name);
        if let Some((module, part)) = split(name) {
            let entry = modules.entry(module.to_owned()).or_default();
            entry.is_embedding |= matches!(part, Part::EmbeddingA | Part::EmbeddingB);
            let place = match part {
                Part::A | Part::EmbeddingA => &mut entry.a,
                Part::B | Part::EmbeddingB => &mut entry.b,
                Part::Magnitude => &mut entry.magnitude,
            };
            if place.replace(tensor.clone()).is_some() {
                file.faults.push(format!("`{}` appears twice", tensor.name));
            }
        } else if name.contains(".lora_") {
            let name = &tensor.name;
            file.faults
                .push(format!("`{name}` is not a tensor of a supported adapter"));
        } else {
            whole(name.to_owned(), tensor, &targets, &mut file);
        }
    }
    for (module, parts) in modules {
        match low_rank(&lora, &module, &parts) {
            Ok(change) => file.changes.push(change),
            Err(fault) => file.faults.push(fault),
        }
    }
    Ok(file)
}

/// Refuses an adapter whose base model's class is of another family. GGUF files are not checked:
/// they store several families as one.
fn check_base(config: &Config, base: &AdapterBase) -> Result<(), AdapterFault> {
    let Some(mapping) = config.object("auto_mapping")? else {
        return Ok(());
    };
    let library = mapping.str("parent_library")?.unwrap_or_default();
    let model_type = library.strip_prefix("transformers.models.");
    let model_type = model_type.and_then(|rest| rest.split('.').next());
    match model_type {
        Some(found) if base.format != Format::Gguf && base.spec.contradicts_model_type(found) => {
            let class = mapping.str("base_model_class")?.unwrap_or(found);
            Err(AdapterFault::OtherBase {
                adapter: format!("{class} ({found})"),
                model: base.spec.family.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// A tensor that takes the place of the model's: of `modules_to_save`, or a trained bias.
fn whole(name: String, tensor: RawTensor, targets: &Targets, file: &mut AdapterFile) {
    let name = name.replace(".modules_to_save.default.", ".");
    let name = name.replace(".modules_to_save.", ".");
    if let Some(module) = name.strip_suffix(".base_layer.weight") {
        // A frozen copy of the table that an embedding's factors change.
        let target = format!("{module}.weight");
        let slots = targets.find(&target).unwrap_or_default();
        let is_same = |rows: usize, cols: usize| tensor.shape == [rows, cols];
        if !slots
            .iter()
            .any(|(slot, _)| is_same(slot.kind.rows(), slot.kind.cols()))
        {
            let (name, shape) = (&tensor.name, &tensor.shape);
            file.faults.push(match slots.first() {
                Some((slot, _)) => format!(
                    "`{name}` is {shape:?}, must be {:?}",
                    [slot.kind.rows(), slot.kind.cols()]
                ),
                None => format!("`{name}` fits no weight of the model"),
            });
        }
        return;
    }
    let name = name.replace(".base_layer.bias", ".bias");
    file.changes
        .push(Change::Whole(RawTensor { name, ..tensor }));
}

fn low_rank(lora: &Arc<LoraConfig>, module: &str, parts: &Module) -> Result<Change, String> {
    let missing = |which: &str| format!("`{module}` has no {which}");
    let a = parts.a.as_ref().ok_or_else(|| missing("lora_A"))?;
    let b = parts.b.as_ref().ok_or_else(|| missing("lora_B"))?;
    let magnitude = parts.magnitude.as_ref().map(values).transpose()?;
    let (a, b) = (one(a)?, one(b)?);
    let experts = module.strip_suffix(".base_layer").unwrap_or(module);
    if experts.ends_with(".experts") {
        if magnitude.is_some() {
            return Err(format!("`{module}`: DoRA of experts is not supported"));
        }
        let (lora, name) = (Arc::clone(lora), experts.to_owned());
        let expected = lora.rank_of(experts);
        if a.rows() % expected != 0 {
            let found = a.rows();
            return Err(format!(
                "`{module}`: {found} rows are not a multiple of rank {expected}"
            ));
        }
        return Ok(Change::Experts(ExpertsChange {
            module: experts.to_owned(),
            a,
            b,
            scale: Box::new(move |rank| lora.scale(&name, rank)),
        }));
    }
    let (rank, expected) = (a.rows(), lora.rank_of(module));
    if rank != expected {
        return Err(format!(
            "`{module}` has rank {rank}, but the config says {expected}"
        ));
    }
    if lora.dora != magnitude.is_some() {
        return Err(if lora.dora {
            missing("lora_magnitude_vector, which `use_dora` requires")
        } else {
            format!("`{module}` has magnitudes, but `use_dora` is false")
        });
    }
    // An embedding's factors are those of its transposed table.
    let (a, b) = if parts.is_embedding {
        (b.transposed(), a.transposed())
    } else {
        (a, b)
    };
    Ok(Change::LowRank(LowRankChange {
        target: format!("{module}.weight"),
        a: vec![Arc::new(a)],
        b: vec![Arc::new(b)],
        scale: lora.scale(module, rank),
        magnitude,
        embedding_lengths_of: LengthsOf::Columns,
    }))
}

/// The tensor's only matrix.
fn one(tensor: &RawTensor) -> Result<Factor, String> {
    let mut parts = factors(tensor)?;
    match (parts.pop(), parts.is_empty()) {
        (Some(factor), true) => Ok(factor),
        _ => {
            let (name, shape) = (&tensor.name, &tensor.shape);
            Err(format!("`{name}` is {shape:?}, must have 2 dimensions"))
        }
    }
}
