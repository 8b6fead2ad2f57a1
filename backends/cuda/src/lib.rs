//! The CUDA backend.
pub mod launch;
pub mod ops;
