//! Model folders made from the tiny golden checkpoints, for tests to change.

use std::fs;
use std::path::{Path, PathBuf};

use loquat_weights::safetensors::write_safetensors;
use loquat_weights::{Blob, Checkpoint, Dtype, RawTensor, Weights, WeightsError, safetensors};
use serde_json::{Value, json};
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

    /// Writes the tensors as `shards` files and their index.
    pub fn write_shards(&self, shards: usize) -> PathBuf {
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

    pub fn open(&self) -> Result<Checkpoint, WeightsError> {
        self.write_config();
        self.write(
            "model.safetensors",
            write_safetensors(&self.tensors).unwrap(),
        );
        Checkpoint::open(self.path())
    }

    pub fn bind(&self) -> Result<Weights, WeightsError> {
        self.open()?.bind()
    }

    pub fn remove(&mut self, name: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len(), before - 1, "{name}");
    }

    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        let tensor = RawTensor::new(name, dtype, shape.to_vec(), Blob::from_vec(bytes));
        self.tensors.push(tensor.unwrap());
    }

    pub fn add_zeros(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        let bytes = shape.iter().product::<usize>() * dtype.block_bytes();
        self.add(name, dtype, shape, vec![0; bytes]);
    }
}

/// Every bound value, by role.
pub fn values(weights: &Weights) -> Vec<(String, Vec<u32>)> {
    let mut values: Vec<_> = weights
        .matrices()
        .map(|(role, matrix)| {
            let mut all = vec![0.0; matrix.rows() * matrix.cols()];
            for (row, out) in all.chunks_mut(matrix.cols()).enumerate() {
                matrix.decode_row(row, out).unwrap();
            }
            (
                role.to_string(),
                all.into_iter().map(f32::to_bits).collect(),
            )
        })
        .collect();
    values.extend(weights.vectors().map(|(role, vector)| {
        let bits = vector.iter().map(|value| value.to_bits()).collect();
        (role.to_string(), bits)
    }));
    values
}
