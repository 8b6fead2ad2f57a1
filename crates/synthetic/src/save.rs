//! Saving a model as files that other programs load.

use std::fs;
use std::io;
use std::path::Path;

use loquat_spec::SpecError;
use loquat_weights::Dtype;
use loquat_weights::gguf::save_gguf;
use loquat_weights::safetensors::save_safetensors;
use serde_json::{Value, json};

use crate::SyntheticError;
use crate::format::{AFFINE_GROUP, Container, Format, MXFP4_GROUP};
use crate::model::{Description, Synthetic};
use crate::shapes::Shape;

impl Container {
    /// A `.gguf` path is one file; any other is a folder.
    pub fn for_path(path: &Path) -> Self {
        if path.extension().is_some_and(|ending| ending == "gguf") {
            Self::Gguf
        } else {
            Self::Safetensors
        }
    }
}

impl Synthetic {
    /// Writes the model to a new `.gguf` file or, if it was made for safetensors, into a new
    /// folder. Nothing appears at `path` before everything is written.
    pub fn save(&self, path: &Path) -> Result<(), SyntheticError> {
        if path.exists() {
            return Err(SyntheticError::Exists {
                path: path.to_owned(),
            });
        }
        let failed = |source| SyntheticError::Write {
            path: path.to_owned(),
            source,
        };
        // In the same directory, so that a rename moves it into place.
        let beside = path.parent().filter(|parent| *parent != Path::new(""));
        let beside = beside.unwrap_or(Path::new("."));
        let work = work_dir(beside).map_err(failed)?;
        let whole = work.path().join("model");
        match &self.description {
            Description::Gguf(metadata) => save_gguf(&whole, metadata, &self.tensors)?,
            Description::Config(text) => {
                fs::create_dir(&whole).map_err(failed)?;
                fs::write(whole.join("config.json"), text).map_err(failed)?;
                save_safetensors(&whole.join("model.safetensors"), &self.tensors)?;
            }
        }
        fs::rename(&whole, path).map_err(failed)
    }
}

/// A folder that is removed when dropped.
fn work_dir(beside: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(".loquat-synthetic-")
        .tempdir_in(beside)
}

/// `config.json`, with MLX's `quantization` table for quantized models.
pub(crate) fn config_text(shape: &Shape, format: Format) -> Result<String, SpecError> {
    let mut fields = shape.fields()?;
    fields.insert("torch_dtype".into(), json!(torch_name(format)));
    let quantization = match format {
        Format::Affine(bits) => {
            json!({ "group_size": AFFINE_GROUP, "bits": bits, "mode": "affine" })
        }
        Format::Mxfp4 => json!({ "group_size": MXFP4_GROUP, "bits": 4, "mode": "mxfp4" }),
        Format::Float(_) | Format::Blocks(_) | Format::Q4KM => Value::Null,
    };
    if !quantization.is_null() {
        fields.insert("quantization".into(), quantization);
    }
    serde_json::to_string_pretty(&fields).map_err(|error| shape.not_json(&error))
}

fn torch_name(format: Format) -> &'static str {
    match format.small(Container::Safetensors) {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        _ => "bfloat16",
    }
}
