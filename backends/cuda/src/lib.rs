//! The CUDA backend.
pub mod device;
pub mod interpret;
pub mod ops;
#[doc(hidden)]
pub mod random_ops;
