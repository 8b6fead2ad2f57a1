//! Golden checkpoints: tiny models with logits of other implementations. See `goldens/README.md`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquat_session::ModelSource;
use loquat_weights::{Checkpoint, WeightsError, decode, safetensors};

/// Goldens that also have a tokenizer and a chat template.
pub const SPEAKING: &[&str] = &["gemma3_text", "llama", "qwen2"];

/// The folder of this crate's fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub fn family(name: &str) -> PathBuf {
    fixtures().join("goldens").join(name)
}

/// The folder of the checkpoints that read pictures, with the pictures in `images`.
pub fn vision() -> PathBuf {
    fixtures().join("goldens-vision")
}

/// The folders of all bf16 checkpoints, by name.
pub fn all() -> std::io::Result<Vec<PathBuf>> {
    entries("goldens", Path::is_dir)
}

/// The folders of all MLX-quantized checkpoints, by name.
pub fn mlx() -> std::io::Result<Vec<PathBuf>> {
    entries("goldens-mlx", Path::is_dir)
}

/// The files of all GGUF checkpoints, by name; each is the golden of that name.
pub fn gguf() -> std::io::Result<Vec<PathBuf>> {
    entries("goldens-gguf", |path| {
        path.extension().is_some_and(|ending| ending == "gguf")
    })
}

/// The folders of all adapters, by name.
pub fn adapters() -> std::io::Result<Vec<PathBuf>> {
    entries("goldens-lora", |path| {
        path.join("adapter_config.json").is_file()
    })
}

/// The folder of an adapter's base model: the part of its name before two underscores.
pub fn adapter_base(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let base = name.split("__").next().unwrap_or_default();
    fixtures().join("goldens-lora/base").join(base)
}

fn entries(set: &str, is_golden: fn(&Path) -> bool) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(fixtures().join(set))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| is_golden(path));
    paths.sort();
    Ok(paths)
}

/// A model ready for a backend to open.
pub fn source(path: &Path) -> Result<ModelSource, WeightsError> {
    let checkpoint = Checkpoint::open(path)?;
    Ok(ModelSource {
        weights: Arc::new(checkpoint.bind()?),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec),
    })
}

/// The arrays of a `golden.safetensors`.
pub struct Arrays(Vec<loquat_weights::RawTensor>);

impl Arrays {
    pub fn open(folder: &Path) -> Result<Self, WeightsError> {
        let path = folder.join("golden.safetensors");
        Ok(Self(safetensors::parse(
            loquat_weights::Blob::map(&path)?,
            &path,
        )?))
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    fn get(&self, name: &str) -> &loquat_weights::RawTensor {
        let tensor = self.0.iter().find(|tensor| tensor.name == name);
        tensor.unwrap_or_else(|| panic!("golden.safetensors has no `{name}`"))
    }

    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let bytes = self.get(name).data.chunks_exact(4);
        bytes
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        let tensor = self.get(name);
        let mut values = vec![0.0; tensor.shape.iter().product()];
        for (row, out) in values.chunks_mut(tensor.cols()).enumerate() {
            let bytes = tensor.row(row).unwrap_or_default();
            decode::decode_row(tensor.dtype, bytes, out)
                .unwrap_or_else(|error| panic!("golden `{name}`: {error}"));
        }
        values
    }
}
