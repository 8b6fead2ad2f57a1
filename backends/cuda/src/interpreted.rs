//! The backend over the interpreter: the same lowering and sessions as on a GPU, computed in plain
//! Rust. Slow; for tests on machines without a GPU.

use loquat_session::{
    Backend, Device, DeviceKind, ModelSource, OpenError, Plan, Probe, Session, SessionOptions,
};

use crate::interpret::Interpreter;
use crate::open::{DeviceTraits, Draft};

/// Runs programs in plain Rust.
pub struct InterpretedBackend {
    uses_fast_path: bool,
}

impl InterpretedBackend {
    /// As on a GPU that has all kernels.
    pub const AUTO: Self = Self {
        uses_fast_path: true,
    };

    /// With the general operations only.
    pub const GENERAL: Self = Self {
        uses_fast_path: false,
    };

    fn draft(&self, source: &ModelSource, options: &SessionOptions) -> Result<Draft, OpenError> {
        let traits = DeviceTraits {
            label: "cuda (interpreted)".to_owned(),
            memory_bytes: Some(16 << 30),
            has_fast_path: self.uses_fast_path,
        };
        Draft::new(source, options, traits)
    }
}

impl Backend for InterpretedBackend {
    fn name(&self) -> &'static str {
        "cuda-interpreter"
    }

    fn probe(&self) -> Probe {
        Probe::Available(vec![Device {
            kind: DeviceKind::Cpu,
            label: "cuda (interpreted)".to_owned(),
            memory_bytes: None,
            memory_bytes_per_second: None,
        }])
    }

    fn plan(&self, source: &ModelSource, options: &SessionOptions) -> Result<Plan, OpenError> {
        Ok(self.draft(source, options)?.plan(source))
    }

    fn open(
        &self,
        source: ModelSource,
        options: &SessionOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Session>, OpenError> {
        let draft = self.draft(&source, options)?;
        draft.check_memory()?;
        let device = Box::new(Interpreter::default());
        let session = draft.open(device, &source, options, progress)?;
        Ok(Box::new(session))
    }
}
