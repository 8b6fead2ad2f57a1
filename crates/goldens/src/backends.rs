//! The table of backends that can be judged.

use loquat_cpu::CpuBackend;
use loquat_cuda::{CudaBackend, InterpretedBackend};
use loquat_mlx::MlxBackend;
use loquat_session::{Backend, ModelSource, SessionOptions};

/// A backend and its tolerances.
pub struct JudgedBackend {
    pub backend: &'static dyn Backend,
    /// The largest difference allowed, for every weight format.
    pub limit: f32,
    /// The difference allowed where the reference itself is inexact, in multiples of its own error.
    pub reference_errors: f32,
    /// For a backend whose results differ between machines: the support matrix shows powers of ten,
    /// starting from this one.
    pub smallest_shown: Option<f32>,
}

/// In the order of the support matrix's columns.
pub static BACKENDS: &[JudgedBackend] = &[
    JudgedBackend {
        backend: &CpuBackend::AUTO,
        limit: 1e-4,
        reference_errors: 1.0,
        smallest_shown: None,
    },
    // MLX's order of summation depends on the device.
    JudgedBackend {
        backend: &MlxBackend::AUTO,
        limit: 1e-3,
        reference_errors: 1.0,
        smallest_shown: Some(1e-4),
    },
    // The order of summation is fixed for one model of GPU.
    JudgedBackend {
        backend: &CudaBackend::AUTO,
        limit: 1e-4,
        // Its own rounding may be as large and opposite.
        reference_errors: 2.0,
        smallest_shown: Some(1e-5),
    },
];

/// Not in the support matrix: programs of the CUDA backend, computed without a GPU.
static INTERPRETER: JudgedBackend = JudgedBackend {
    backend: &InterpretedBackend::AUTO,
    limit: 1e-4,
    reference_errors: 2.0,
    smallest_shown: None,
};

impl JudgedBackend {
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }

    /// Whether it runs the vision part of a model that it can open.
    pub fn reads_images(&self, model: &ModelSource) -> bool {
        let plan = self.backend.plan(model, &SessionOptions::default());
        // An error is the verdict of the run itself.
        plan.map_or(true, |plan| plan.capabilities.media.images)
    }
}

fn all() -> impl Iterator<Item = &'static JudgedBackend> {
    BACKENDS.iter().chain([&INTERPRETER])
}

/// The backend called `name`, or an error that lists all.
pub fn named(name: &str) -> Result<&'static JudgedBackend, String> {
    let found = all().find(|judged| judged.name() == name);
    found.ok_or_else(|| {
        let known: Vec<_> = all().map(JudgedBackend::name).collect();
        format!("not a backend; use one of: {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_backend_lists_all() {
        for judged in all() {
            let found = named(judged.name()).map(JudgedBackend::name);
            assert_eq!(found, Ok(judged.name()));
            let error = named("abacus").err().unwrap_or_default();
            assert!(error.contains(judged.name()), "{error}");
        }
    }
}
