//! The source model: its tensors by role, its metadata and companion files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use loquat_spec::families::{self, Described};
use loquat_spec::{Config, Kind, ModelSpec, Naming, Role, Slot, Transform};
use loquat_weights::gguf::Metadata;
use loquat_weights::{
    Checkpoint, Dtype, Format, Matrix, MmprojChoice, RawTensor, Storage, Weights, decode,
};
use serde_json::{Map, Value};

use crate::ConvertError;
use crate::merge::{Merge, MergedAdapter, MergedMatrix};

pub(crate) struct Source {
    pub path: PathBuf,
    pub checkpoint: Checkpoint,
    weights: Weights,
    slots: HashMap<Role, Slot>,
    tensors: HashMap<String, RawTensor>,
    pub metadata: SourceMetadata,
    pub merge: Merge,
}

/// The source's metadata.
pub(crate) enum SourceMetadata {
    Gguf(Metadata),
    /// The text model's config, and the namings it allows.
    Config {
        fields: Map<String, Value>,
        described: Box<Described>,
    },
}

pub(crate) const CONFIG: &str = "config.json";

/// Tokenizer, template and generation config files.
pub(crate) const COMPANION_FILES: &[&str] = &[
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

impl Source {
    /// `name`: the model's, with which the adapters' base models are compared.
    pub fn open(
        path: &Path,
        adapters: &[MergedAdapter<'_>],
        name: Option<&str>,
    ) -> Result<Self, ConvertError> {
        // Towers are not converted.
        let checkpoint = Checkpoint::open_with(path, MmprojChoice::Off)?;
        let merge = Merge::open(&checkpoint, adapters, name)?;
        let weights = checkpoint.bind()?;
        let slots = checkpoint.naming().slots(&checkpoint.spec);
        let tensors = checkpoint.tensors().iter();
        let metadata = match checkpoint.gguf_metadata() {
            Some(metadata) => SourceMetadata::Gguf(metadata.clone()),
            None => config(checkpoint.directory())?,
        };
        Ok(Self {
            path: path.to_owned(),
            slots: slots.into_iter().map(|slot| (slot.role, slot)).collect(),
            tensors: tensors
                .map(|tensor| (tensor.name.clone(), tensor.clone()))
                .collect(),
            weights,
            metadata,
            merge,
            checkpoint,
        })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.checkpoint.spec
    }

    pub fn naming(&self) -> &Naming {
        self.checkpoint.naming()
    }

    pub fn directory(&self) -> &Path {
        self.checkpoint.directory()
    }

    /// The path, its folder and its weight files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let named = [self.path.as_path(), self.directory()];
        let weights = self.checkpoint.paths.iter().map(PathBuf::as_path);
        named.into_iter().chain(weights)
    }

    pub fn stack(&self, role: Role) -> Option<&[Matrix]> {
        self.merge.stack(role).or_else(|| self.weights.stack(role))
    }

    /// The role's matrices with what adapters add.
    pub fn merged(&self, role: Role) -> Option<Vec<MergedMatrix<'_>>> {
        let stack = self.stack(role)?.iter().enumerate();
        let merged = stack.map(|(member, matrix)| self.merge.matrix(role, member, matrix));
        Some(merged.collect())
    }

    /// A vector role's stored values, and the transform that binding applies.
    pub fn stored(&self, role: Role) -> Option<(Vec<f32>, Transform)> {
        if let Some(replaced) = self.merge.vector(role) {
            return Some(replaced);
        }
        let slot = self.slots.get(&role)?;
        let tensor = self.tensors.get(slot.names.first()?)?;
        let (count, rows, width) = (slot.kind.count(), slot.kind.rows(), slot.kind.cols());
        let total = slot.layout.total;
        let mut all = vec![0.0; count * total * width];
        decode::decode_row(tensor.dtype, &tensor.data, &mut all).ok()?;
        let mut values = Vec::with_capacity(count * rows * width);
        for member in 0..count {
            for row in 0..rows {
                let at = (member * total + slot.layout.rows.file_row(row)) * width;
                values.extend_from_slice(&all[at..at + width]);
            }
        }
        Some((values, slot.transform))
    }

    /// The shape of a vector with more dimensions than needed. Some published models have these,
    /// and loaders may expect them.
    pub fn odd_shape(&self, target: &Slot) -> Option<Vec<usize>> {
        let slot = self.slots.get(&target.role)?;
        let tensor = self.tensors.get(slot.names.first()?)?;
        let plain = matches!(target.kind, Kind::Vector { .. }) && !self.is_gguf();
        let whole = target.layout.total == target.kind.rows();
        let values: usize = tensor.shape.iter().product();
        (plain && whole && tensor.shape.len() > 1 && values == target.kind.rows())
            .then(|| tensor.shape.clone())
    }

    /// The float type of a role's values; `None` if quantized.
    pub fn float(&self, role: Role) -> Option<Dtype> {
        let dtype = match self.stack(role).and_then(|stack| stack.first()) {
            Some(matrix) => match matrix.storage() {
                Storage::Plain(tensor) => tensor.dtype,
                Storage::Mlx { scales, .. } => return float(scales.dtype),
                Storage::Fp8 { .. } => return None,
            },
            None => {
                let slot = self.slots.get(&role)?;
                self.tensors.get(slot.names.first()?)?.dtype
            }
        };
        float(dtype)
    }

    /// The type of most of the model, before any quantization.
    pub fn usual_float(&self) -> Dtype {
        match self.stack(Role::Embedding).and_then(|stack| stack.first()) {
            Some(matrix) => match matrix.storage() {
                Storage::Plain(tensor) => float(tensor.dtype).unwrap_or(Dtype::BF16),
                Storage::Mlx { scales, .. } => float(scales.dtype).unwrap_or(Dtype::BF16),
                Storage::Fp8 { .. } => Dtype::BF16,
            },
            None => Dtype::BF16,
        }
    }

    /// How its matrices are quantized, if they are.
    pub fn quantized(&self) -> Option<String> {
        let mut matrices = self.weights.matrices().map(|(_, matrix)| matrix);
        let quantized = matrices.find(|matrix| match matrix.storage() {
            Storage::Plain(tensor) => tensor.dtype.block_len() > 1,
            Storage::Mlx { .. } | Storage::Fp8 { .. } => true,
        });
        quantized.map(Matrix::format)
    }

    /// Bytes of all its tensors.
    pub fn bytes(&self) -> u64 {
        let tensors = self.checkpoint.tensors().iter();
        tensors.map(|tensor| tensor.data.len() as u64).sum()
    }

    pub fn is_gguf(&self) -> bool {
        self.checkpoint.format == Format::Gguf
    }

    /// Whether the role is a matrix or a stack of them.
    pub fn is_matrix(kind: Kind) -> bool {
        matches!(kind, Kind::Matrix { .. } | Kind::Stack { .. })
    }
}

fn float(dtype: Dtype) -> Option<Dtype> {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16).then_some(dtype)
}

fn config(directory: &Path) -> Result<SourceMetadata, ConvertError> {
    let path = directory.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(ConvertError::reading(&path))?;
    let described = Box::new(families::from_config(&Config::parse(&text, CONFIG)?)?);
    let mut fields: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| ConvertError::reading(&path)(error.into()))?;
    if let Some(Value::Object(mut inner)) = fields.remove("text_config") {
        // Some state tied embeddings and the type only outside.
        for field in [
            "tie_word_embeddings",
            "torch_dtype",
            "dtype",
            "eos_token_id",
        ] {
            if let Some(value) = fields.remove(field) {
                inner.entry(field).or_insert(value);
            }
        }
        fields = inner;
    }
    Ok(SourceMetadata::Config { fields, described })
}
