//! The CUDA backend.
pub mod ops;
