//! NVIDIA's driver interface: the library is loaded at run time, and every failure is a
//! [`DriverError`]. It knows devices, memory, streams, kernels and graphs; it does not know models.

mod context;
mod device;
mod error;
mod event;
#[cfg(test)]
mod fake;
mod ffi;
mod function;
mod graph;
mod library;
mod module;
mod pinned;
mod reservation;
#[cfg(test)]
mod tests;

pub use context::Context;
pub use device::DeviceInfo;
pub use error::{CudaVersion, DriverError, Status};
pub use event::Event;
pub use function::{Function, FunctionAttributes, LaunchConfig};
pub use graph::Graph;
pub use library::{Library, MIN_CUDA};
pub use module::Module;
pub use pinned::Pinned;
