//! Checkpoints into other formats and smaller types, tensor by tensor.
//!
//! Opens whatever `weights` opens and writes MLX safetensors, plain safetensors or GGUF, in the
//! bytes that mlx-lm and llama.cpp would write. What a model is passes through its
//! [`ModelSpec`](loquat_spec::ModelSpec): what is written of it is read back by the family that
//! will load it, and anything that would come out another model is refused before a tensor is
//! touched.
//!
//! It calibrates nothing: a tensor's new bytes depend on that tensor alone. Finding and
//! downloading models belongs to `store`.

mod choose;
mod class;
mod convert;
mod describe;
mod error;
mod measure;
mod name;
mod place;
mod plan;
mod pour;
mod quantize;
mod rows;
mod source;
mod vocabulary;
mod write;

pub use class::Class;
pub use convert::{Conversion, Step, convert};
pub use error::ConvertError;
pub use measure::{Error, Report, TensorReport};
pub use name::{Quant, Target};
pub use quantize::{Encoded, Encoding};
