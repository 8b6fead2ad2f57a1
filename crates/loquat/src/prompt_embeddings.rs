//! Raw input embeddings.

use std::path::Path;

use loquat_engine::{MediaContent, PromptSpan};
use loquat_session::Media;
use loquat_weights::decode::decode_row;
use loquat_weights::{Blob, Dtype, WeightsError, safetensors};
use thiserror::Error;

/// Vectors that enter a model in place of the embeddings of a prompt's tokens, as a program
/// computed them. They count as media: [`SessionOptions::media_positions`](crate::SessionOptions)
/// limits them, and is 0 for text models unless it is set.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptEmbeddings {
    values: Vec<f32>,
    width: usize,
}

/// What is wrong with embeddings. Messages begin with the verb.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptEmbeddingsError {
    /// PyTorch's own format.
    #[error(
        "is a file of PyTorch, which may contain code; send a safetensors file, as \
         `safetensors.torch.save` makes it"
    )]
    TorchFile,
    /// Not a safetensors file.
    #[error("is not a usable safetensors file: {0}")]
    File(WeightsError),
    /// Not exactly one tensor.
    #[error("has {found} tensors; it must have one")]
    Tensors {
        /// How many there are.
        found: usize,
    },
    /// Not a list of vectors.
    #[error("has the shape {found:?}; it must be [positions, hidden size]")]
    Shape {
        /// The tensor's shape.
        found: Vec<usize>,
    },
    /// Not floating-point numbers.
    #[error("has values of the type {found}; use F32, F16 or BF16")]
    Type {
        /// The tensor's type.
        found: &'static str,
    },
    /// NaN or infinity.
    #[error("has a value that is not finite, at position {position}")]
    NotFinite {
        /// Of the vector.
        position: usize,
    },
    /// Vectors of another model.
    #[error("has vectors of {found} values; this model's have {expected}")]
    Width {
        /// Values of a vector.
        found: usize,
        /// The model's hidden size.
        expected: usize,
    },
}

impl PromptEmbeddings {
    /// Vectors of `width` values, one after the other.
    pub fn new(values: Vec<f32>, width: usize) -> Result<Self, PromptEmbeddingsError> {
        if width == 0 || values.is_empty() || !values.len().is_multiple_of(width) {
            let found = vec![values.len() / width.max(1), width];
            return Err(PromptEmbeddingsError::Shape { found });
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let position = at / width;
            return Err(PromptEmbeddingsError::NotFinite { position });
        }
        Ok(Self { values, width })
    }

    /// Reads a safetensors file with one tensor of F32, F16 or BF16 and the shape
    /// `[positions, hidden size]`.
    pub fn from_safetensors(bytes: Vec<u8>) -> Result<Self, PromptEmbeddingsError> {
        // A zip archive, or a pickle.
        if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02") {
            return Err(PromptEmbeddingsError::TorchFile);
        }
        let tensors = safetensors::parse(Blob::from_vec(bytes), Path::new("the embeddings"));
        let tensors = tensors.map_err(PromptEmbeddingsError::File)?;
        let [tensor] = tensors.as_slice() else {
            let found = tensors.len();
            return Err(PromptEmbeddingsError::Tensors { found });
        };
        let &[positions, width] = tensor.shape.as_slice() else {
            let found = tensor.shape.clone();
            return Err(PromptEmbeddingsError::Shape { found });
        };
        if !matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            let found = tensor.dtype.name();
            return Err(PromptEmbeddingsError::Type { found });
        }
        let mut values = vec![0.0; positions * width];
        decode_row(tensor.dtype, &tensor.data, &mut values).map_err(|_| {
            PromptEmbeddingsError::Shape {
                found: tensor.shape.clone(),
            }
        })?;
        Self::new(values, width)
    }

    /// How many vectors there are.
    pub fn positions(&self) -> usize {
        self.values.len() / self.width
    }

    /// Refuses vectors that do not have a model's hidden size.
    pub fn check_width(&self, hidden_size: Option<usize>) -> Result<(), PromptEmbeddingsError> {
        match hidden_size {
            Some(expected) if expected != self.width => Err(PromptEmbeddingsError::Width {
                found: self.width,
                expected,
            }),
            _ => Ok(()),
        }
    }

    /// As a part of an engine's prompt.
    pub fn into_span(self) -> PromptSpan {
        let positions = self.positions();
        let content = MediaContent::new(Media::Embeddings(self.values), positions);
        PromptSpan::Media {
            content: content.into(),
            range: 0..positions,
        }
    }
}

#[cfg(test)]
mod tests {
    use loquat_weights::RawTensor;
    use loquat_weights::safetensors::write_safetensors;

    use super::*;

    fn file(dtype: Dtype, shape: &[usize], data: Vec<u8>) -> Vec<u8> {
        let tensor = RawTensor {
            name: "embeds".to_owned(),
            dtype,
            shape: shape.to_vec(),
            data: Blob::from_vec(data),
        };
        write_safetensors(&[tensor]).unwrap()
    }

    #[test]
    fn floats_of_all_sizes_are_read() {
        let expected = PromptEmbeddings::new(vec![1.0, -2.0, 0.5, 0.0], 2).unwrap();
        let values = [1.0f32, -2.0, 0.5, 0.0];
        let single = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let brain = values
            .iter()
            .flat_map(|value| value.to_le_bytes()[2..].to_vec());
        let half = [0x3c00u16, 0xc000, 0x3800, 0]
            .map(u16::to_le_bytes)
            .concat();
        for (dtype, data) in [
            (Dtype::F32, single),
            (Dtype::BF16, brain.collect()),
            (Dtype::F16, half),
        ] {
            let read = PromptEmbeddings::from_safetensors(file(dtype, &[2, 2], data)).unwrap();
            assert_eq!(read, expected, "{dtype:?}");
            assert_eq!(read.positions(), 2);
        }
    }

    #[test]
    fn other_files_are_refused() {
        let nan = f32::NAN.to_le_bytes().to_vec();
        let one = || vec![0; 4];
        for (bytes, expected) in [
            (b"PK\x03\x04archive".to_vec(), "PyTorch"),
            (b"\x80\x02pickle".to_vec(), "PyTorch"),
            (b"neither".to_vec(), "safetensors"),
            (write_safetensors(&[]).unwrap(), "0 tensors"),
            (file(Dtype::F32, &[1], one()), "shape"),
            (file(Dtype::F32, &[0, 1], Vec::new()), "shape"),
            (file(Dtype::I32, &[1, 1], one()), "type I32"),
            (file(Dtype::F32, &[1, 1], nan), "not finite"),
        ] {
            let error = PromptEmbeddings::from_safetensors(bytes).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let embeddings = PromptEmbeddings::new(vec![0.0; 6], 3).unwrap();
        assert!(embeddings.check_width(Some(3)).is_ok());
        assert!(embeddings.check_width(Some(2)).is_err());
    }
}
