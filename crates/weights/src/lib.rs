//! Checkpoint files as named, typed tensors.
//!
//! Reads GGUF and safetensors (plain and MLX-quantized) without copying: every
//! [`RawTensor`] is a view into one memory map. Files are untrusted: the
//! result is tensors within the file's bounds or a [`WeightsError`] that names
//! the invalid field, never a panic, and never an allocation that the file's
//! size does not justify. Other programs may change a file while it is mapped:
//! that does not end the process, and a [`FileWatch`] reports it.
//!
//! [`decode`] returns the exact `f32` values of each storage type. It is the
//! reference for backends' kernels and is not meant to be fast. Repacking
//! weights for a device belongs to the backends, finding and downloading files
//! to `store`.

mod adapter;
mod bind;
mod blob;
#[cfg(unix)]
mod bus_guard;
mod checkpoint;
pub mod decode;
mod disk;
mod dtype;
mod error;
pub mod gguf;
mod mapped_file;
mod matrix;
mod mmproj;
mod mmproj_files;
mod quantization;
pub mod safetensors;
mod side_file;
mod tensor;

pub use adapter::{
    AdapterBase, AdapterFault, AdapterInfo, AdapterMismatch, AdapterParts, AdapterWeights,
    ColumnLengths, Factor, LengthsOf, LowRank, is_adapter,
};
pub use bind::{Mismatch, Weights, bind, fit};
pub use blob::Blob;
pub use checkpoint::{Checkpoint, Format};
pub use disk::{path_from_bytes, size_on_disk};
pub use dtype::Dtype;
pub use error::{DecodeFault, GgufFault, IndexFault, SafetensorsFault, WeightsError};
pub use mapped_file::{FileChange, FileWatch};
pub use matrix::{EncodedRow, Matrix, Storage};
pub use mmproj_files::{MmprojChoice, MmprojMatch, is_mmproj_name, match_mmproj};
pub use quantization::MlxQuantization;
pub use side_file::{MAX_CONFIG_BYTES, MAX_VOCABULARY_BYTES, read_side_file, require_regular_file};
pub use tensor::{RawTensor, TensorInfo};

/// The type of [`Checkpoint::spec`].
pub use loquat_spec::ModelSpec;
