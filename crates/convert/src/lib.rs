//! Converts checkpoints to other formats and smaller types, tensor by tensor.
//!
//! Opens everything that `weights` opens and writes MLX safetensors, plain safetensors or GGUF with
//! the bytes that mlx-lm and llama.cpp would write. The new config is read back before a tensor is
//! written: if it describes another [`ModelSpec`](loquat_spec::ModelSpec), the conversion is
//! refused.
//!
//! There is no calibration: a tensor's new bytes depend on that tensor alone. Finding and
//! downloading models belongs to `store`. What is specific to a family is in its row in `spec`.

mod choose;
mod class;
mod convert;
mod describe;
mod error;
mod leftovers;
mod measure;
mod merge;
mod output;
mod plan;
mod quantize;
mod rows;
mod source;
mod target;
mod tensor;
mod vocabulary;
mod write;

pub use class::Class;
pub use convert::{Conversion, Step, convert};
pub use error::ConvertError;
pub use leftovers::{Leftover, WorkFolder, leftovers, remove_leftovers};
pub use measure::{QuantizationError, Report, TensorReport};
pub use merge::MergedAdapter;
pub use quantize::{Encoded, Encoding};
pub use target::{Quant, Target};
