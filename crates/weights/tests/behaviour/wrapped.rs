//! Text models inside larger ones.

use crate::bound::values;
use crate::folder::Folder;
use loquat_weights::{Blob, Dtype, RawTensor};
use serde_json::json;

/// The golden as part of a vision model, its tensors renamed by `rename`.
fn wrapped(rename: impl Fn(&str) -> String) -> Folder {
    let mut folder = Folder::golden("gemma3_text");
    let text = folder.config.clone();
    folder.config = json!({
        "model_type": "unlisted_vision_model", "text_config": text,
        "vision_config": {"hidden_size": 1152},
    });
    for tensor in &mut folder.tensors {
        tensor.name = rename(&tensor.name);
    }
    folder
}

fn add_zeros(folder: &mut Folder, name: &str) {
    let data = Blob::from_vec(vec![0; 8]);
    let tensor = RawTensor::new(name, Dtype::BF16, vec![4], data);
    folder.tensors.push(tensor.unwrap());
}

#[test]
fn wrapped_text_model_is_found_by_any_prefix() {
    let expected = Folder::golden("gemma3_text").open().unwrap();
    let expected_values = values(&expected.bind().unwrap());
    let older = |name: &str| format!("language_model.{name}");
    let newer = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    };
    // mlx-vlm writes some families so.
    let bare = |name: &str| {
        let rest = name.strip_prefix("model.").unwrap_or(name);
        format!("language_model.{rest}")
    };
    type Rename = fn(&str) -> String;
    let table: [(Rename, &[&str]); 3] = [
        (
            older,
            &[
                "vision_tower.encoder.weight",
                "multi_modal_projector.weight",
            ],
        ),
        (
            newer,
            &["model.vision_tower.encoder.weight", "model.visual.weight"],
        ),
        (bare, &["vision_model.encoder.weight", "connector.weight"]),
    ];
    for (rename, others) in table {
        let mut folder = wrapped(rename);
        for name in others {
            add_zeros(&mut folder, name);
        }
        let checkpoint = folder.open().unwrap();
        assert_eq!(checkpoint.spec, expected.spec);
        assert_eq!(values(&checkpoint.bind().unwrap()), expected_values);
    }
    // The text model alone, with the config of the larger model.
    let alone = wrapped(str::to_owned).open().unwrap();
    assert_eq!(values(&alone.bind().unwrap()), expected_values);
}

#[test]
fn wrapped_model_reports_missing_tensors() {
    let mut folder = wrapped(|name| format!("language_model.{name}"));
    folder
        .tensors
        .retain(|tensor| tensor.name != "language_model.model.norm.weight");
    add_zeros(&mut folder, "language_model.model.extra.weight");
    let error = folder.open().unwrap().bind().unwrap_err().to_string();
    assert!(error.contains("1 missing: model.norm.weight"), "{error}");
    assert!(
        error.contains("1 unexpected: model.extra.weight"),
        "{error}"
    );
}

#[test]
fn wrapped_quantization_table_uses_file_names() {
    let module = "language_model.model.layers.0.mlp.up_proj";
    let mut folder = wrapped(|name| format!("language_model.{name}"));
    folder.config["quantization"] = json!({
        "bits": 4, "group_size": 64, module: {"bits": 8, "group_size": 32},
    });
    let at = |tensor: &RawTensor| tensor.name == format!("{module}.weight");
    let position = folder.tensors.iter().position(at).unwrap();
    let [rows, cols] = folder.tensors[position].shape[..] else {
        panic!("{:?}", folder.tensors[position].shape);
    };
    folder.tensors.remove(position);
    for (part, dtype, cols, size) in [
        ("weight", Dtype::U32, cols / 4, 4),
        ("scales", Dtype::BF16, cols / 32, 2),
        ("biases", Dtype::BF16, cols / 32, 2),
    ] {
        let data = Blob::from_vec(vec![0; rows * cols * size]);
        let tensor = RawTensor::new(format!("{module}.{part}"), dtype, vec![rows, cols], data);
        folder.tensors.push(tensor.unwrap());
    }
    let weights = folder.open().unwrap().bind().unwrap();
    let up = loquat_spec::Role::Layer(0, loquat_spec::LayerRole::Up);
    assert_eq!(weights.matrix(up).unwrap().format(), "affine 8-bit g32");
}

#[test]
fn unknown_vision_tensors_leave_text_working() {
    let mut folder = wrapped(|name| format!("language_model.{name}"));
    folder.config["model_type"] = json!("gemma3");
    add_zeros(&mut folder, "vision_tower.encoder.weight");
    let checkpoint = folder.open().unwrap();
    assert!(checkpoint.spec.vision.is_none());
    let refusal = checkpoint
        .spec
        .vision_refusal
        .as_deref()
        .unwrap_or_default();
    assert!(refusal.contains("vision_tower"), "{refusal}");
    checkpoint.bind().unwrap();
}
