//! Adapters of llama.cpp: GGUF files of the type `adapter`.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_spec::families;

use super::bind::{Change, LowRankChange, Targets};
use super::file::{AdapterFault, AdapterFile};
use super::tensors::factors;
use super::{AdapterBase, AdapterInfo, LengthsOf};
use crate::RawTensor;
use crate::gguf::{Gguf, Metadata};

/// Metadata of adapters that describe it.
const IGNORED: &[&str] = &["adapter.lora.task_name", "adapter.lora.prompt_prefix"];

pub(super) fn read(gguf: Gguf, base: &AdapterBase) -> Result<AdapterFile, AdapterFault> {
    let (metadata, tensors) = gguf.into_parts();
    let alpha = check(&metadata, base)?;
    let architecture = metadata.str("general.architecture").unwrap_or_default();
    let namings = vec![families::gguf_naming(architecture)?];
    let targets = Targets::new(&base.spec, &namings);
    let mut file = AdapterFile {
        info: AdapterInfo {
            name: String::new(),
            format: "GGUF",
            base: metadata.str("general.base_model.0.name").map(str::to_owned),
        },
        namings,
        is_gguf: true,
        changes: Vec::new(),
        faults: Vec::new(),
    };
    let mut pairs: BTreeMap<String, [Option<RawTensor>; 2]> = BTreeMap::new();
    for tensor in tensors {
        let name = tensor.name.clone();
        if let Some(target) = name.strip_suffix(".lora_a") {
            pairs.entry(target.to_owned()).or_default()[0] = Some(tensor);
        } else if let Some(target) = name.strip_suffix(".lora_b") {
            pairs.entry(target.to_owned()).or_default()[1] = Some(tensor);
        } else {
            file.changes.push(Change::Whole(tensor));
        }
    }
    for (target, [a, b]) in pairs {
        let change = match (a, b) {
            (Some(a), Some(b)) => low_rank(&targets, target, &a, &b, alpha),
            (None, _) => Err(format!("`{target}` has no lora_a")),
            (_, None) => Err(format!("`{target}` has no lora_b")),
        };
        match change {
            Ok(change) => file.changes.push(Change::LowRank(change)),
            Err(fault) => file.faults.push(fault),
        }
    }
    Ok(file)
}

/// Checks the metadata and returns alpha.
fn check(metadata: &Metadata, base: &AdapterBase) -> Result<f64, AdapterFault> {
    let expect = |key: &str, expected: &str| match metadata.str(key) {
        Some(found) if found == expected => Ok(()),
        found => Err(AdapterFault::field(
            key,
            found.unwrap_or("absent"),
            expected,
        )),
    };
    expect("general.type", "adapter")?;
    expect("adapter.type", "lora")?;
    let own = ["adapter.type", "adapter.lora.alpha"];
    for (key, _) in metadata.iter() {
        let known = own.contains(&key) || IGNORED.contains(&key);
        if key.starts_with("adapter.") && !known {
            return Err(AdapterFault::field(
                key,
                "set",
                "absent; it is not supported",
            ));
        }
    }
    let architecture = metadata.str("general.architecture").unwrap_or("absent");
    let architectures = base.spec.gguf_architectures();
    if !architectures.contains(&architecture) {
        let expected = match architectures.as_slice() {
            [] => "that of a model which has a GGUF form".to_owned(),
            all => format!("{}, as the model's", all.join(" or ")),
        };
        return Err(AdapterFault::field(
            "general.architecture",
            architecture,
            expected,
        ));
    }
    let key = "adapter.lora.alpha";
    match metadata.get(key) {
        // As llama.cpp: without alpha, the factors are as they are.
        None => Ok(0.0),
        Some(value) => {
            let alpha = value.as_f64().filter(|alpha| alpha.is_finite());
            alpha.ok_or_else(|| AdapterFault::field(key, value.type_name(), "a finite number"))
        }
    }
}

fn low_rank(
    targets: &Targets,
    target: String,
    a: &RawTensor,
    b: &RawTensor,
    alpha: f64,
) -> Result<LowRankChange, String> {
    let (a, b) = (factors(a)?, factors(b)?);
    let (a, b) = if targets.is_embedding(&target) {
        // Rows of `lora_a` are looked up: it has one for each token.
        let turned = b.iter().map(|factor| Arc::new(factor.transposed()));
        (turned.collect(), a.into_iter().map(Arc::new).collect())
    } else {
        let [a, b] = [a, b].map(|factors| factors.into_iter().map(Arc::new).collect::<Vec<_>>());
        (a, b)
    };
    let rank = a.first().map_or(1, |factor| factor.rows());
    Ok(LowRankChange {
        target,
        a,
        b,
        scale: if alpha == 0.0 {
            1.0
        } else {
            (alpha / rank as f64) as f32
        },
        magnitude: None,
        embedding_lengths_of: LengthsOf::Rows,
    })
}
