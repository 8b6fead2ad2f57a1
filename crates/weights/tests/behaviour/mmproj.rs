//! Vision towers in files of their own.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bound::values;
use loquat_weights::gguf::{Gguf, Value, write_gguf};
use loquat_weights::{Checkpoint, MmprojChoice};

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit")
}

fn text_model(family: &str) -> PathBuf {
    kit().join(format!("goldens-vision-gguf/{family}/{family}.gguf"))
}

fn tower(family: &str) -> PathBuf {
    kit().join(format!("goldens-vision-gguf/{family}/mmproj-{family}.gguf"))
}

fn families() -> Vec<String> {
    let folder = fs::read_dir(kit().join("goldens-vision-gguf")).unwrap();
    let folders = folder
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir());
    folders
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

fn error(opened: Result<Checkpoint, loquat_weights::WeightsError>) -> String {
    opened.err().expect("an error").to_string()
}

#[test]
fn towers_equal_the_hub_files() {
    let families = families();
    assert!(families.len() > 10);
    for family in families {
        let hub = Checkpoint::open(&kit().join("goldens-vision").join(&family)).unwrap();
        let gguf = Checkpoint::open(&text_model(&family)).unwrap();
        assert_eq!(gguf.mmproj(), Some(tower(&family).as_path()));
        assert_eq!(gguf.spec.vision, hub.spec.vision, "{family}");
        let of_tower = |checkpoint: &Checkpoint| {
            let mut all = values(&checkpoint.bind().unwrap());
            all.retain(|(role, _)| role.starts_with("vision "));
            all
        };
        let (expected, found) = (of_tower(&hub), of_tower(&gguf));
        assert!(expected.len() > 10, "{family}");
        for ((role, expected), (other, found)) in expected.iter().zip(&found) {
            assert_eq!((role, expected), (other, found), "{family}");
        }
        assert_eq!(expected.len(), found.len(), "{family}");
    }
}

#[test]
fn tower_is_found_given_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("gemma3-Q8_0.gguf");
    fs::copy(text_model("gemma3"), &model).unwrap();
    assert!(Checkpoint::open(&model).unwrap().spec.vision.is_none());
    let given = Checkpoint::open_with(&model, MmprojChoice::At(&tower("gemma3"))).unwrap();
    assert!(given.spec.vision.is_some());
    fs::copy(tower("gemma3"), folder.path().join("mmproj-f16.gguf")).unwrap();
    for path in [&model, folder.path()] {
        assert!(Checkpoint::open(path).unwrap().spec.vision.is_some());
        let text = Checkpoint::open_with(path, MmprojChoice::Off).unwrap();
        assert!(text.spec.vision.is_none() && text.spec.vision_refusal.is_none());
    }
    fs::rename(
        folder.path().join("mmproj-f16.gguf"),
        folder.path().join("mmproj-a.gguf"),
    )
    .unwrap();
    fs::copy(tower("gemma3"), folder.path().join("mmproj-b.gguf")).unwrap();
    let refusal = Checkpoint::open(&model)
        .unwrap()
        .spec
        .vision_refusal
        .unwrap();
    assert!(
        refusal.contains("mmproj-a.gguf, mmproj-b.gguf"),
        "{refusal}"
    );
}

/// A found tower that does not fit leaves the text model; a given one is an error.
#[test]
fn tower_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("llama.gguf");
    fs::copy(kit().join("goldens-gguf/llama_tied.gguf"), &model).unwrap();
    let told = error(Checkpoint::open_with(
        &model,
        MmprojChoice::At(&tower("gemma3")),
    ));
    for part in [
        "llama.gguf",
        "mmproj-gemma3.gguf",
        "64 values",
        "reads 16",
        "another model",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    fs::copy(tower("gemma3"), folder.path().join("mmproj.gguf")).unwrap();
    let opened = Checkpoint::open(&model).unwrap();
    assert!(opened.spec.vision.is_none());
    assert!(
        opened
            .spec
            .vision_refusal
            .unwrap()
            .contains("another model")
    );
}

#[test]
fn wrong_kinds_of_file_are_told_apart() {
    let told = error(Checkpoint::open(&tower("gemma3")));
    assert!(
        told.contains("vision tower") && told.contains("--mmproj"),
        "{told}"
    );
    let model = text_model("gemma3");
    let told = error(Checkpoint::open_with(
        &model,
        MmprojChoice::At(&text_model("llava")),
    ));
    for part in ["gemma3.gguf", "llava.gguf", "`llama`", "`clip`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let hub = kit().join("goldens-vision/gemma3");
    let told = error(Checkpoint::open_with(
        &hub,
        MmprojChoice::At(&tower("gemma3")),
    ));
    assert!(told.contains("safetensors"), "{told}");
}

#[test]
fn changed_header_is_refused_by_name() {
    let table: [(&str, Option<Value>, &str); 6] = [
        (
            "clip.projector_type",
            Some(Value::String("resampler".into())),
            "qwen2vl_merger",
        ),
        ("clip.projector_type", None, "clip.projector_type"),
        (
            "clip.has_vision_encoder",
            Some(Value::Bool(false)),
            "clip.has_vision_encoder",
        ),
        ("clip.vision.block_count", None, "clip.vision.block_count"),
        (
            "clip.vision.image_mean",
            Some(Value::U32(1)),
            "clip.vision.image_mean",
        ),
        (
            "clip.vision.attention.head_count",
            Some(Value::U32(0)),
            "num_attention_heads",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (key, value, named) in table {
        let gguf = Gguf::open(&tower("gemma3")).unwrap();
        let mut metadata = loquat_weights::gguf::Metadata::default();
        for (own, old) in gguf.metadata().iter().filter(|(own, _)| *own != key) {
            metadata.insert(own, old.clone());
        }
        if let Some(value) = value {
            metadata.insert(key, value);
        }
        let path = folder.path().join("mmproj.gguf");
        fs::write(&path, write_gguf(&metadata, gguf.tensors()).unwrap()).unwrap();
        let told = error(Checkpoint::open_with(
            &text_model("gemma3"),
            MmprojChoice::At(&path),
        ));
        assert!(told.contains(named), "{key}: {told}");
    }
}
