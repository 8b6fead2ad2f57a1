//! The table of backends: the only place that names them.

use std::fmt;
use std::str::FromStr;

use loquat_cpu::CpuBackend;
use loquat_cuda::{ComputeCapability, CudaBackend, ProgramListing};
use loquat_mlx::MlxBackend;
use loquat_session::{Backend, DeviceKind, ModelSource, Probe, SessionOptions};
use thiserror::Error;

use crate::Error;

struct Entry {
    backend: &'static dyn Backend,
    /// Tried on few machines so far.
    is_experimental: bool,
}

/// In the order in which `auto` prefers them, first among those with a GPU.
static BACKENDS: &[Entry] = &[
    Entry {
        backend: &CpuBackend::AUTO,
        is_experimental: false,
    },
    Entry {
        backend: &CudaBackend::AUTO,
        is_experimental: true,
    },
    Entry {
        backend: &MlxBackend::AUTO,
        is_experimental: true,
    },
];

/// Which backend computes: a backend of this build by name, or automatic.
///
/// ```
/// use loquat::BackendChoice;
///
/// let choice: BackendChoice = "cpu".parse()?;
/// assert_eq!(choice.to_string(), "cpu");
/// assert_eq!(BackendChoice::default(), BackendChoice::AUTO);
/// assert!("abacus".parse::<BackendChoice>().is_err());
/// # Ok::<(), loquat::UnknownBackend>(())
/// ```
#[derive(Clone, Copy, Default)]
pub struct BackendChoice(Option<&'static dyn Backend>);

impl BackendChoice {
    /// The first backend with a GPU, else the first that can run.
    pub const AUTO: Self = Self(None);
    /// The CPU backend, which every build has.
    pub const CPU: Self = Self(Some(&CpuBackend::AUTO));

    fn all() -> impl Iterator<Item = Self> {
        backends().map(|backend| Self(Some(backend)))
    }

    /// `auto`, or the backend's name.
    pub fn name(&self) -> &'static str {
        self.0.map_or(AUTO_NAME, Backend::name)
    }

    /// The backend itself, if it can run on this machine.
    pub fn resolve(self) -> Result<&'static dyn Backend, Error> {
        let Some(backend) = self.0 else {
            let probed = backends().map(|backend| (backend, backend.probe()));
            return preferred(probed).ok_or_else(|| Error::NoBackend {
                reasons: reasons().collect::<Vec<_>>().join(" "),
            });
        };
        match backend.probe() {
            Probe::Available(_) => Ok(backend),
            Probe::Unavailable { why, remedy } => Err(Error::UnavailableBackend {
                name: backend.name(),
                why,
                remedy,
            }),
        }
    }
}

const AUTO_NAME: &str = "auto";

/// A name that no backend of this build has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no backend is named `{name}`. Use one of: {}.", names())]
pub struct UnknownBackend {
    /// The name.
    pub name: String,
}

impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        if name == AUTO_NAME {
            return Ok(Self::AUTO);
        }
        let choice = Self::all().find(|choice| choice.name() == name);
        choice.ok_or_else(|| UnknownBackend {
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackendChoice").field(&self.name()).finish()
    }
}

impl PartialEq for BackendChoice {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for BackendChoice {}

/// Every backend of this build, whether or not it can run on this machine.
pub fn backends() -> impl Iterator<Item = &'static dyn Backend> {
    BACKENDS.iter().map(|entry| entry.backend)
}

/// Whether this backend opens models on a GPU.
pub fn has_gpu(backend: &dyn Backend) -> bool {
    on_gpu(&backend.probe())
}

/// Whether this backend was tried on few machines so far.
pub fn is_experimental(backend: &dyn Backend) -> bool {
    BACKENDS
        .iter()
        .any(|entry| entry.is_experimental && entry.backend.name() == backend.name())
}

/// The launches of a model's steps on the CUDA backend, and the buffers between which they compute,
/// for display: on a GPU of this compute capability, or on this machine's, or on a Hopper GPU if
/// there is none. Needs no GPU, and loads nothing.
pub fn cuda_program(
    source: &ModelSource,
    options: &SessionOptions,
    gpu: Option<ComputeCapability>,
) -> Result<ProgramListing, Error> {
    Ok(CudaBackend::AUTO.program(source, options, gpu)?)
}

fn names() -> String {
    let names = backends().map(Backend::name);
    let names: Vec<_> = std::iter::once(AUTO_NAME).chain(names).collect();
    names.join(", ")
}

fn reasons() -> impl Iterator<Item = String> {
    backends().filter_map(|backend| match backend.probe() {
        Probe::Available(_) => None,
        Probe::Unavailable { why, remedy } => Some(format!("{}: {why} {remedy}", backend.name())),
    })
}

/// The first on a GPU, else the first that can run.
fn preferred<T>(probed: impl Iterator<Item = (T, Probe)>) -> Option<T> {
    let mut fallback = None;
    for (backend, probe) in probed {
        if on_gpu(&probe) {
            return Some(backend);
        }
        if matches!(probe, Probe::Available(_)) {
            fallback = fallback.or(Some(backend));
        }
    }
    fallback
}

/// A backend opens models on its first device.
fn on_gpu(probe: &Probe) -> bool {
    match probe {
        Probe::Available(devices) => {
            let first = devices.first();
            first.is_some_and(|device| device.kind == DeviceKind::Gpu)
        }
        Probe::Unavailable { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use loquat_session::Device;

    use super::*;

    fn available(kinds: &[DeviceKind]) -> Probe {
        let devices = kinds.iter().map(|kind| Device {
            kind: *kind,
            label: String::new(),
            memory_bytes: None,
            memory_bytes_per_second: None,
        });
        Probe::Available(devices.collect())
    }

    #[test]
    fn auto_prefers_gpu_then_table_order() {
        use DeviceKind::{Cpu, Gpu};
        let absent = || Probe::Unavailable {
            why: String::new(),
            remedy: String::new(),
        };
        let table = [
            (vec![available(&[Cpu]), available(&[Cpu])], Some(0)),
            (vec![available(&[Cpu]), available(&[Gpu])], Some(1)),
            (vec![available(&[Cpu]), available(&[Gpu, Cpu])], Some(1)),
            // Models are opened on the first device.
            (vec![available(&[Cpu]), available(&[Cpu, Gpu])], Some(0)),
            (vec![available(&[Gpu]), available(&[Gpu])], Some(0)),
            (vec![available(&[Cpu]), absent()], Some(0)),
            (vec![absent(), available(&[Cpu])], Some(1)),
            (vec![absent(), absent()], None),
        ];
        for (probes, expected) in table {
            let shown = format!("{probes:?}");
            assert_eq!(preferred((0..).zip(probes)), expected, "{shown}");
        }
    }

    #[test]
    fn unknown_name_lists_known_names() {
        let error = "abacus".parse::<BackendChoice>().unwrap_err().to_string();
        assert_eq!(
            error,
            "no backend is named `abacus`. Use one of: auto, cpu, cuda, mlx."
        );
    }

    #[test]
    fn names_parse_to_the_backend_they_show() {
        for choice in BackendChoice::all().chain([BackendChoice::AUTO]) {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }
}
