//! The MLX backend through its public interface, in one process. Without the feature `mlx` only
//! its absence is tested.

#[cfg(feature = "mlx")]
mod batch_equivalence;
#[cfg(feature = "mlx")]
mod conformance;
// macOS may have MLX without the feature.
#[cfg(any(feature = "mlx", not(target_os = "macos")))]
mod errors;
#[cfg(all(feature = "mlx", target_os = "linux"))]
mod library;
