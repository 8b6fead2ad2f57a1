//! The CUDA backend: models on NVIDIA GPUs, with kernels of our own that are part of the program.
//!
//! The driver's library is loaded at run time; without it, or without a GPU, everything else works,
//! and [`Backend::probe`] says what is missing. Scheduling, sampling and text belong to the engine,
//! files to `weights`.

// The build script uses all of it.
#[allow(dead_code)]
mod architectures;
pub mod driver;
mod error;
pub mod kernels;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../build/nvcc.rs"]
mod nvcc;
mod probe;

use loquat_session::{Backend, ModelSource, OpenError, Plan, Probe, Session, SessionOptions};

pub use architectures::ComputeCapability;

/// The backend on the first GPU that the kernels run on.
pub struct CudaBackend {
    _private: (),
}

impl CudaBackend {
    pub const AUTO: Self = Self { _private: () };

    /// Opens nothing yet: the session is being built.
    fn refuse(&self) -> OpenError {
        match self.probe() {
            Probe::Unavailable { why, remedy } => OpenError::Unavailable {
                backend: self.name(),
                why,
                remedy,
            },
            Probe::Available(_) => OpenError::Unavailable {
                backend: self.name(),
                why: "It cannot run models yet.".to_owned(),
                remedy: "Use another backend.".to_owned(),
            },
        }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn probe(&self) -> Probe {
        probe::probe()
    }

    fn plan(&self, _source: &ModelSource, _options: &SessionOptions) -> Result<Plan, OpenError> {
        Err(self.refuse())
    }

    fn open(
        &self,
        _source: ModelSource,
        _options: &SessionOptions,
        _progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        Err(self.refuse())
    }
}
