//! Opening every kind of model folder and file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bound::values;
use crate::folder::{Folder, golden};
use loquat_weights::gguf::{Metadata, Value, write_gguf};
use loquat_weights::safetensors::write_safetensors;
use loquat_weights::{Checkpoint, Format, IndexFault, WeightsError};
use serde_json::json;

impl Folder {
    /// Writes the tensors as `shards` files and their index.
    fn write_shards(&self, shards: usize) -> PathBuf {
        let mut weight_map = serde_json::Map::new();
        for shard in 0..shards {
            let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
            let tensors: Vec<_> = (self.tensors.iter().enumerate())
                .filter(|(index, _)| index % shards == shard)
                .map(|(_, tensor)| tensor.clone())
                .collect();
            self.write(&name, write_safetensors(&tensors).unwrap());
            for tensor in tensors {
                weight_map.insert(tensor.name, name.clone().into());
            }
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
        self.write("model.safetensors.index.json", index.to_string())
    }
}

fn bound(path: &Path) -> Vec<(String, Vec<u32>)> {
    values(&Checkpoint::open(path).unwrap().bind().unwrap())
}

#[test]
fn every_golden_opens_and_binds() {
    for family in ["gemma3_text", "llama", "llama_tied", "qwen3", "smollm3"] {
        let checkpoint = Checkpoint::open(&golden(family)).unwrap();
        assert_eq!(checkpoint.format, Format::Safetensors);
        assert!(checkpoint.gguf_metadata().is_none());
        let weights = checkpoint.bind().unwrap();
        // Every golden value is two bytes in the file; vectors are bound as four.
        let file: usize = checkpoint.tensors().iter().map(|t| t.data.len()).sum();
        let vectors: usize = weights.vectors().map(|(_, values)| values.len()).sum();
        assert_eq!(weights.bytes(), (file + 2 * vectors) as u64, "{family}");
    }
}

#[test]
fn shards_equal_the_single_file() {
    for (family, shards) in [("llama_tied", 2), ("qwen2", 3)] {
        let folder = Folder::golden(family);
        folder.write_config();
        let index = folder.write_shards(shards);
        let expected = bound(&golden(family));
        assert!(expected.len() > 20);
        assert_eq!(bound(folder.path()), expected, "{family} by directory");
        assert_eq!(bound(&index), expected, "{family} by index");
        let checkpoint = Checkpoint::open(&index).unwrap();
        assert_eq!(checkpoint.paths, [index]);
        assert_eq!(checkpoint.directory(), folder.path());
    }
}

#[test]
fn safetensors_file_can_be_opened_directly() {
    let by_file = golden("qwen3").join("model.safetensors");
    assert_eq!(bound(&by_file), bound(&golden("qwen3")));
    let checkpoint = Checkpoint::open(&by_file).unwrap();
    assert_eq!(checkpoint.directory(), golden("qwen3"));

    // Any file name works, although opening the folder does not find it.
    let folder = Folder::golden("qwen3");
    folder.write_config();
    let other = folder.write("weights.safetensors", fs::read(&by_file).unwrap());
    assert_eq!(bound(&other), bound(&by_file));
    assert!(Checkpoint::open(folder.path()).is_err());
}

fn tiny_gguf() -> Vec<u8> {
    let metadata: Metadata = [("general.architecture", Value::String("mamba".into()))]
        .into_iter()
        .collect();
    write_gguf(&metadata, &[]).unwrap()
}

#[test]
fn folder_with_one_gguf_opens_it() {
    let folder = Folder::golden("llama");
    let gguf = folder.write("model-Q4_K.gguf", tiny_gguf());
    for path in [folder.path(), &gguf] {
        let error = Checkpoint::open(path).err().unwrap();
        assert!(
            matches!(&error, WeightsError::Spec { path, .. } if *path == gguf),
            "{error}"
        );
        let message = error.to_string();
        for word in ["model-Q4_K.gguf", "general.architecture", "`mamba`"] {
            assert!(message.contains(word), "{message}");
        }
    }
}

/// The folder's files, the path to open, and the expected error.
#[test]
fn missing_model_files_are_named() {
    type Case = (
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
    );
    let table: [Case; 9] = [
        (
            &[],
            "",
            &["the folder has no config.json and no .gguf file"],
        ),
        (
            &["config.json"],
            "",
            &["config.json but neither model.safetensors, model.safetensors.index.json nor"],
        ),
        (
            &["model.safetensors"],
            "",
            &["the folder has no config.json and no .gguf file"],
        ),
        (
            &["a.gguf", "b.gguf", "config.json"],
            "",
            &["several .gguf files; pass one", "a.gguf, ", "b.gguf"],
        ),
        (&[], "nothing", &["no such file or directory"]),
        (
            &["config.json"],
            "nothing.safetensors",
            &["no such file or directory"],
        ),
        (&[], "nothing.gguf", &["no such file or directory"]),
        (
            &["model.safetensors"],
            "model.safetensors",
            &["config.json is missing in the same folder"],
        ),
        (
            &["model.bin"],
            "model.bin",
            &["expected a directory, a .gguf file, a .safetensors file or its .index.json"],
        ),
    ];
    for (files, opened, words) in table {
        let folder = Folder::golden("llama");
        for file in files {
            folder.write(file, b"");
        }
        let path = match opened {
            "" => folder.path().to_owned(),
            name => folder.path().join(name),
        };
        let error = Checkpoint::open(&path).err().unwrap();
        assert!(
            matches!(&error, WeightsError::NotAModel { path: named, .. } if *named == path),
            "{files:?} {opened}: {error}"
        );
        let message = error.to_string();
        for word in words {
            assert!(message.contains(word), "{message}");
        }
    }
}

#[test]
fn broken_config_names_its_file() {
    let config: fn(&Folder) -> PathBuf = |folder| folder.path().join("config.json");
    let table = [
        (json!({"model_type": "mamba"}), "`mamba`"),
        (json!({"model_type": "llama"}), "`hidden_size`"),
    ];
    for (broken, word) in table {
        let mut folder = Folder::golden("llama");
        folder.config = broken;
        let error = folder.open().err().unwrap();
        assert!(
            matches!(&error, WeightsError::Spec { path, .. } if *path == config(&folder)),
            "{error}"
        );
        let message = error.to_string();
        assert!(
            message.contains(word) && message.contains("config.json"),
            "{message}"
        );
    }
}

#[test]
fn missing_shard_is_named() {
    let folder = Folder::golden("llama");
    folder.write_config();
    let index = folder.write_shards(2);
    let shard = "model-00002-of-00002.safetensors";
    fs::remove_file(folder.path().join(shard)).unwrap();
    let error = Checkpoint::open(folder.path()).err().unwrap();
    assert!(
        matches!(&error, WeightsError::Index { path, fault: IndexFault::MissingShard { shard: named } }
            if *path == index && named == shard),
        "{error}"
    );
}

#[test]
fn gguf_is_detected_by_header() {
    let folder = Folder::golden("llama");
    folder.write("blob", b"GGUF and nothing else");
    let error = Checkpoint::open(&folder.path().join("blob")).err().unwrap();
    assert!(matches!(error, WeightsError::Gguf { .. }), "{error}");
}
