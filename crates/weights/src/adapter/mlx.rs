//! Adapters of mlx-lm: `adapters.safetensors` and `adapter_config.json`.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_spec::Config;

use super::bind::{Change, LowRankChange, Targets};
use super::file::{AdapterFault, AdapterFile};
use super::tensors::{factors, values};
use super::{AdapterBase, AdapterInfo, Factor, LengthsOf};
use crate::RawTensor;

#[derive(Default)]
struct Module {
    a: Option<RawTensor>,
    b: Option<RawTensor>,
    magnitude: Option<RawTensor>,
}

pub(super) fn read(
    config: &Config,
    tensors: Vec<RawTensor>,
    base: &AdapterBase,
) -> Result<AdapterFile, AdapterFault> {
    // Older versions write no type, and know only one.
    let kind = config.str("fine_tune_type")?.unwrap_or("lora");
    if !["lora", "dora"].contains(&kind) {
        let expected = "lora or dora; full weights are a model, not an adapter";
        return Err(AdapterFault::field("fine_tune_type", kind, expected));
    }
    let missing = || AdapterFault::field("lora_parameters", "absent", "an object");
    let parameters = config.object("lora_parameters")?.ok_or_else(missing)?;
    let scale = parameters.f64("scale")? as f32;
    if !scale.is_finite() {
        let field = "lora_parameters.scale";
        return Err(AdapterFault::field(field, scale, "a finite number"));
    }
    let mut namings = base.spec.config_namings();
    // mlx-lm's own names first.
    namings.reverse();
    let targets = Targets::new(&base.spec, &namings);
    let mut file = AdapterFile {
        info: AdapterInfo {
            name: String::new(),
            format: "MLX",
            base: config.str("model")?.map(str::to_owned),
        },
        namings,
        is_gguf: false,
        changes: Vec::new(),
        faults: Vec::new(),
    };
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for tensor in tensors {
        let name = tensor.name.clone();
        let Some((module, part)) = name.rsplit_once('.') else {
            file.faults
                .push(format!("`{name}` is not a tensor of an adapter"));
            continue;
        };
        let entry = modules.entry(module.to_owned()).or_default();
        match part {
            "lora_a" => entry.a = Some(tensor),
            "lora_b" => entry.b = Some(tensor),
            "m" => entry.magnitude = Some(tensor),
            _ => file
                .faults
                .push(format!("`{name}` is not a tensor of an adapter")),
        }
    }
    let context = Context {
        first_layer: first_layer(config, base)?,
        rank: parameters.usize_opt("rank")?,
        dora: kind == "dora",
        scale,
        targets: &targets,
        tied: base.spec.head.tied,
    };
    for (module, parts) in modules {
        match context.low_ranks(&module, &parts) {
            Ok(changes) => file
                .changes
                .extend(changes.into_iter().map(Change::LowRank)),
            Err(fault) => file.faults.push(fault),
        }
    }
    Ok(file)
}

/// The first layer that may be adapted: `num_layers` counts from the last, and none or less is all.
fn first_layer(config: &Config, base: &AdapterBase) -> Result<usize, AdapterFault> {
    let all = base.spec.layers.len();
    let field = ["num_layers", "lora_layers"];
    let value = field
        .iter()
        .find_map(|field| Some((*field, config.get(field)?)));
    let Some((field, value)) = value else {
        return Ok(0);
    };
    match value.as_i64() {
        Some(count) if count <= 0 => Ok(0),
        Some(count) if count as usize <= all => Ok(all - count as usize),
        _ => Err(AdapterFault::field(
            field,
            value,
            format!("at most {all}, the model's layers"),
        )),
    }
}

struct Context<'a> {
    first_layer: usize,
    rank: Option<usize>,
    dora: bool,
    scale: f32,
    targets: &'a Targets,
    tied: bool,
}

impl Context<'_> {
    fn low_ranks(&self, module: &str, parts: &Module) -> Result<Vec<LowRankChange>, String> {
        let missing = |which: &str| format!("`{module}` has no {which}");
        let a = parts.a.as_ref().ok_or_else(|| missing("lora_a"))?;
        let b = parts.b.as_ref().ok_or_else(|| missing("lora_b"))?;
        let magnitude = parts.magnitude.as_ref().map(values).transpose()?;
        if self.dora != magnitude.is_some() && a.shape.len() == 2 {
            return Err(if self.dora {
                missing("m, which the type dora requires")
            } else {
                format!("`{module}` has magnitudes, but the type is lora")
            });
        }
        let layer = module
            .split('.')
            .find_map(|part| part.parse::<usize>().ok());
        if layer.is_some_and(|layer| layer < self.first_layer) {
            let first = self.first_layer;
            return Err(format!(
                "`{module}` is before layer {first}, the first by `num_layers`"
            ));
        }
        let target = format!("{module}.weight");
        let is_embedding = self.targets.is_embedding(&target);
        // Of experts, one for each, not transposed.
        let is_stack = a.shape.len() == 3;
        let turned = |factor: Factor| {
            if is_stack {
                Arc::new(factor)
            } else {
                Arc::new(factor.transposed())
            }
        };
        let (a, b) = (factors(a)?, factors(b)?);
        let (a, b): (Vec<_>, Vec<_>) = if is_embedding {
            let kept = |factors: Vec<Factor>| factors.into_iter().map(Arc::new).collect();
            (kept(b), kept(a))
        } else {
            let turned = |factors: Vec<Factor>| factors.into_iter().map(turned).collect();
            (turned(a), turned(b))
        };
        let rank = a.first().map_or(0, |factor| factor.rows());
        if let Some(expected) = self.rank
            && rank != expected
        {
            return Err(format!(
                "`{module}` has rank {rank}, but the config says {expected}"
            ));
        }
        let change = |target: String| LowRankChange {
            target,
            a: a.clone(),
            b: b.clone(),
            scale: self.scale,
            magnitude: magnitude.clone(),
            embedding_lengths_of: LengthsOf::Rows,
        };
        let mut changes = vec![change(target)];
        // The module is also the head.
        if is_embedding && self.tied {
            changes.push(change("lm_head.weight".to_owned()));
        }
        Ok(changes)
    }
}
