//! Models of well-known shapes with random weights, to measure a size or a format without
//! downloading a checkpoint.
//!
//! A [`Recipe`] names a shape and a format; [`Recipe::make`] returns every tensor of such a
//! checkpoint under its usual name, so that config, naming and binding work as for files. The
//! model can be [saved](Synthetic::save) for other programs.
//!
//! Nothing is quantized: weights are drawn in their encoded form. The model's output is noise, but
//! never NaN.

mod adapter;
mod error;
mod fill;
mod format;
mod gguf;
mod model;
mod pool;
mod random;
mod save;
mod shapes;

pub use adapter::AdapterRecipe;
pub use error::SyntheticError;
pub use format::{Container, FORMATS, Format};
pub use model::{Recipe, Synthetic};
pub use random::SplitMix64;
pub use shapes::{ModelSeries, SHAPES, Shape};
