//! Checkpoint files as named, typed tensors.
//!
//! Reads GGUF and safetensors (plain and MLX-quantized) without copying: every
//! [`RawTensor`] is a view into one memory map. A file is hostile until proven
//! otherwise, so whatever it holds the answer is tensors that lie within it or
//! a [`WeightsError`] naming the field at fault, never a panic and never an
//! allocation the file's own size does not justify.
//!
//! [`decode`] gives the exact `f32` values behind each storage type. It is the
//! reference that backends' kernels are judged by and is not meant to be fast;
//! repacking weights for a device belongs to the backends, and finding and
//! downloading files to `store`.

mod bind;
mod blob;
mod checkpoint;
pub mod decode;
mod dtype;
mod error;
pub mod gguf;
mod matrix;
mod quantization;
pub mod safetensors;
mod tensor;

pub use bind::{Mismatch, Weights, bind, fit};
pub use blob::Blob;
pub use checkpoint::{Checkpoint, Format};
pub use dtype::Dtype;
pub use error::{DecodeFault, GgufFault, IndexFault, SafetensorsFault, WeightsError};
pub use matrix::{EncodedRow, Matrix, Storage};
pub use quantization::MlxQuantization;
pub use tensor::{RawTensor, TensorInfo};
