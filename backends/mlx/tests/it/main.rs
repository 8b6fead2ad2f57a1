//! The MLX backend through its public interface, in one process.

#![cfg(feature = "mlx")]

mod adapters;
mod batch_equivalence;
mod conformance;
mod errors;
#[cfg(target_os = "linux")]
mod library;
