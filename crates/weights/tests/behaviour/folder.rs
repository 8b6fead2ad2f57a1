//! Model folders copied from the tiny golden checkpoints, which tests can modify.

use std::fs;
use std::path::{Path, PathBuf};

use loquat_weights::safetensors::write_safetensors;
use loquat_weights::{Checkpoint, RawTensor, WeightsError, safetensors};
use serde_json::Value;
use tempfile::TempDir;

pub fn golden(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testkit/goldens")
        .join(family)
}

/// A checkpoint in memory, written out when it is opened.
pub struct Folder {
    pub config: Value,
    pub tensors: Vec<RawTensor>,
    directory: TempDir,
}

impl Folder {
    pub fn golden(family: &str) -> Self {
        let from = golden(family);
        let config = fs::read_to_string(from.join("config.json")).unwrap();
        Self {
            config: serde_json::from_str(&config).unwrap(),
            tensors: safetensors::open(&from.join("model.safetensors")).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub fn write_config(&self) {
        self.write("config.json", self.config.to_string());
    }

    pub fn open(&self) -> Result<Checkpoint, WeightsError> {
        self.write_config();
        self.write(
            "model.safetensors",
            write_safetensors(&self.tensors).unwrap(),
        );
        Checkpoint::open(self.path())
    }
}
