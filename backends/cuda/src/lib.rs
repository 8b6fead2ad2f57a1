//! The CUDA backend: models on NVIDIA GPUs, with kernels of our own that are part of the program.
//!
//! The driver's library is loaded at run time; without it, or without a GPU, everything else works,
//! and [`Backend::probe`] says what is missing. Scheduling, sampling and text belong to the engine,
//! files to `weights`.

mod adapted;
mod adapter;
// The build script uses all of it.
#[allow(dead_code)]
mod architectures;
mod decode;
pub mod device;
mod draw;
pub mod driver;
mod error;
mod execute;
pub mod fused;
pub mod fused_launch;
mod gpu;
pub mod interpret;
mod interpreted;
pub mod kernels;
pub mod launch;
mod listing;
mod lower;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../build/nvcc.rs"]
mod nvcc;
mod open;
pub mod ops;
mod probe;
#[doc(hidden)]
pub mod random_ops;
mod session;
pub mod step;
mod storage;
mod tables;
mod tower;

use loquat_session::{Backend, ModelSource, OpenError, Plan, Probe, Session, SessionOptions};

pub use architectures::ComputeCapability;
pub use gpu::Gpu;
pub use interpreted::InterpretedBackend;
pub use listing::ProgramListing;

use driver::DeviceInfo;
use open::{DeviceTraits, Draft};

/// The backend on the first GPU that the kernels run on.
pub struct CudaBackend {
    uses_fast_path: bool,
    dependent_launches: bool,
}

impl CudaBackend {
    /// With the fastest kernels that the model and the GPU allow.
    pub const AUTO: Self = Self {
        uses_fast_path: true,
        dependent_launches: true,
    };

    /// With the general kernels only, to compare with.
    pub const GENERAL: Self = Self {
        uses_fast_path: false,
        ..Self::AUTO
    };

    /// Starts each kernel when the one before it has ended, to compare the results with those of
    /// dependent launches.
    pub const fn without_dependent_launches(self) -> Self {
        Self {
            dependent_launches: false,
            ..self
        }
    }

    /// The GPU that sessions use.
    fn device(&self) -> Result<DeviceInfo, OpenError> {
        let devices = probe::usable_devices().unwrap_or_default();
        devices.into_iter().next().ok_or_else(|| {
            let (why, remedy) = match self.probe() {
                Probe::Unavailable { why, remedy } => (why, remedy),
                // It went away since.
                Probe::Available(_) => ("The GPU is gone.".to_owned(), "Try again.".to_owned()),
            };
            OpenError::Unavailable {
                backend: self.name(),
                why,
                remedy,
            }
        })
    }

    /// The program that sessions with these options run on a GPU of this compute capability; on
    /// this machine's GPU if none is given, or on a Hopper GPU if there is none. Needs no GPU.
    pub fn program(
        &self,
        source: &ModelSource,
        options: &SessionOptions,
        gpu: Option<ComputeCapability>,
    ) -> Result<ProgramListing, OpenError> {
        let own = match gpu {
            None => probe::usable_devices().ok().into_iter().flatten().next(),
            Some(_) => None,
        };
        if let Some(device) = own {
            return self.draft(&device, source, options)?.listing(source);
        }
        let gpu = gpu.unwrap_or(ComputeCapability::HOPPER);
        let has_fast_path = if kernels::check_built().is_ok() {
            kernels::check_support(gpu)?;
            kernels::is_compiled("fast", gpu)
        } else {
            fused_launch::is_written_for(gpu)
        };
        let traits = DeviceTraits {
            label: format!("cuda, compute capability {gpu}"),
            memory_bytes: None,
            has_fast_path: self.uses_fast_path && has_fast_path,
        };
        Draft::new(source, options, traits)?.listing(source)
    }

    fn draft(
        &self,
        device: &DeviceInfo,
        source: &ModelSource,
        options: &SessionOptions,
    ) -> Result<Draft, OpenError> {
        let traits = DeviceTraits {
            label: probe::label(device),
            memory_bytes: Some(device.total_memory),
            has_fast_path: self.uses_fast_path
                && kernels::is_compiled("fast", device.compute_capability),
        };
        Draft::new(source, options, traits)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn probe(&self) -> Probe {
        probe::probe()
    }

    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
        Ok(self.draft(&self.device()?, source, options)?.plan(source))
    }

    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        let device = self.device()?;
        let draft = self.draft(&device, &source, options)?;
        draft.check_memory()?;
        let mut gpu = Gpu::open(device.ordinal)?;
        if !self.dependent_launches {
            gpu.disable_dependent_launches();
        }
        let session = draft.open(Box::new(gpu), &source, options, progress)?;
        Ok(Box::new(session))
    }
}
