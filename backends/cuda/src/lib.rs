//! The CUDA backend.

pub mod device;
pub mod interpret;
mod interpreted;
pub mod launch;
mod lower;
mod open;
pub mod ops;
#[doc(hidden)]
pub mod random_ops;
mod session;
mod storage;
mod tables;

pub use interpreted::InterpretedBackend;
