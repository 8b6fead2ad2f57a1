//! MLX compared with the output of mlx-lm.

use std::collections::BTreeMap;
use std::path::Path;

use loquat_convert::{ConvertError, Target};
use loquat_testkit::goldens;
use loquat_weights::{Dtype, RawTensor};
use serde_json::Value;

use crate::support::{tensors, to};

#[test]
fn bytes_match_mlx_lm() {
    for name in ["gemma3_text", "qwen2"] {
        let converted = to(Target::Mlx, "q4-g32", &goldens::family(name)).unwrap();
        let folder = goldens::fixtures().join(format!("goldens-mlx/{name}__affine4_g32"));
        let (ours, theirs) = (tensors(&converted.path), tensors(&folder));
        assert_eq!(summary(&ours), summary(&theirs), "{name}");
        for (tensor, our) in &ours {
            assert_eq!(*our.data, *theirs[tensor].data, "{name} {tensor}");
        }
    }
}

/// Everything but the values.
fn summary(tensors: &BTreeMap<String, RawTensor>) -> Vec<(String, Dtype, Vec<usize>)> {
    let all = tensors.values();
    all.map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone()))
        .collect()
}

fn config(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// How mlx-lm quantized a golden, as we name it.
fn quant(mode: &str) -> Option<String> {
    match mode.strip_prefix("affine") {
        Some(rest) => Some(format!("q{}", rest.replace('_', "-"))),
        None => (mode != "mixed").then(|| mode.to_owned()),
    }
}

/// The same tensors under the same names, in the same types, and the same exceptions.
#[test]
fn layout_matches_mlx_lm() {
    let mut judged = 0;
    for folder in goldens::mlx().unwrap() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let (_, mode) = name.split_once("__").unwrap();
        let Some(quant) = quant(mode) else { continue };
        let converted = match to(Target::Mlx, &quant, &folder) {
            Ok(converted) => converted,
            Err(error @ ConvertError::Family { .. }) => panic!("{name}: {error}"),
            Err(error) => panic!("{name}: {error}"),
        };
        let (ours, theirs) = (tensors(&converted.path), tensors(&folder));
        assert_eq!(summary(&ours), summary(&theirs), "{name}");
        let (ours, theirs) = (config(&converted.path), config(&folder));
        let modules = |config: &Value| -> BTreeMap<String, (u64, u64)> {
            let table = config["quantization"].as_object().unwrap().iter();
            let own = table.filter(|(_, value)| value.is_object());
            let number = |value: &Value, field: &str| value[field].as_u64().unwrap();
            own.map(|(module, own)| {
                (
                    module.clone(),
                    (number(own, "bits"), number(own, "group_size")),
                )
            })
            .collect()
        };
        assert_eq!(modules(&ours), modules(&theirs), "{name}");
        assert_eq!(ours["quantization"], ours["quantization_config"], "{name}");
        judged += 1;
    }
    assert!(judged > 40, "only {judged} goldens were judged");
}

/// Plain checkpoints of every family.
#[test]
fn unsupported_goldens_are_refused_by_name() {
    for golden in goldens::all().unwrap() {
        let name = golden.file_name().unwrap().to_string_lossy().into_owned();
        match to(Target::Mlx, "q8-g32", &golden) {
            Ok(converted) => drop(tensors(&converted.path)),
            Err(ConvertError::Family { family, .. }) => {
                let refused = [
                    "falcon_h1",
                    "ernie4_5_moe",
                    "llama4_text",
                    // Their published configs have more fields.
                    "gemma4_text",
                    "kimi_linear",
                    "mimo_v2_flash",
                    "minimax_m2",
                ];
                assert!(refused.contains(&family.as_str()), "{name}");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// `rope_parameters` is repeated in the older fields that mlx-lm reads.
#[test]
fn configs_have_the_older_fields() {
    let fields = [
        "rope_theta",
        "rope_scaling",
        "partial_rotary_factor",
        "rope_local_base_freq",
        "rotary_pct",
        "rotary_emb_base",
        "num_experts",
        "block_dim",
        "layer_types",
        "sliding_window_pattern",
    ];
    let mut judged = 0;
    for golden in goldens::all().unwrap() {
        let name = golden.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(converted) = to(Target::Mlx, "bf16", &golden) else {
            continue;
        };
        let ours = config(&converted.path);
        let text = std::fs::read_to_string(golden.join("config.hub_style.json")).unwrap();
        let older: Value = serde_json::from_str(&text).unwrap();
        for field in fields {
            if let Some(value) = older.get(field) {
                assert_eq!(ours.get(field), Some(value), "{name} {field}");
                judged += 1;
            }
        }
        if older.get("text_config").is_some() {
            assert_eq!(ours["model_type"], older["model_type"], "{name}");
            let (ours, older) = (&ours["text_config"], &older["text_config"]);
            assert_eq!(ours["model_type"], older["model_type"], "{name}");
            judged += 1;
        }
    }
    assert!(judged > 90, "only {judged} fields were judged");
}

/// Heads stay stacked if the source stacks them.
#[test]
fn matrices_keep_their_shape() {
    for name in ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear"] {
        let golden = goldens::family(name);
        let converted = to(Target::Safetensors, "bf16", &golden).unwrap();
        let (was, is) = (tensors(&golden), tensors(&converted.path));
        let mut judged = 0;
        for (tensor, was) in was.iter().filter(|(name, _)| name.contains("kv_b_proj")) {
            assert_eq!(is[tensor].shape, was.shape, "{name} {tensor}");
            judged += 1;
        }
        assert!(judged > 0, "{name}");
    }
}
