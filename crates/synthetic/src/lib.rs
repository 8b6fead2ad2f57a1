//! Models of well-known shapes with random weights, without a file: what a machine does with a
//! size or a format can be measured before anybody has such a checkpoint.
//!
//! A [`Recipe`] names a shape and a format; [`Recipe::make`] gives every tensor that such a
//! checkpoint would have, under the names it would have there, so that reading the config,
//! fitting a naming and binding go the way they go for files. What is made may be
//! [saved](Synthetic::save) for other programs to load.
//!
//! It quantizes nothing: weights are drawn in their encoded form. What such a model says is
//! noise, though never NaN.

mod error;
mod fill;
mod format;
mod gguf;
mod model;
mod pool;
mod random;
mod save;
mod shapes;

pub use error::SyntheticError;
pub use format::{Container, FORMATS, Format};
pub use model::{Recipe, Synthetic};
pub use random::SplitMix64;
pub use shapes::{SHAPES, Shape};
