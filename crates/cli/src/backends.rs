//! The table of backends: the one place that names them.

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, OpenError, Probe};

use crate::error::CliError;
use crate::terminal::{bytes, print};

/// In the order `auto` tries them.
static BACKENDS: &[&dyn Backend] = &[&CpuBackend::AUTO];

/// The backend called `name`, or for `auto` the first that can run here. An environment variable
/// that is set but empty counts as not set.
pub fn select(name: &str) -> Result<&'static dyn Backend, CliError> {
    let can_run = |backend: &&dyn Backend| matches!(backend.probe(), Probe::Available(_));
    if is_auto(name) {
        let first = BACKENDS.iter().copied().find(can_run);
        return first.ok_or(CliError::NoBackend);
    }
    let backend = named(name)?;
    match backend.probe() {
        Probe::Available(_) => Ok(backend),
        Probe::Unavailable { why, remedy } => Err(CliError::Open(OpenError::Unavailable {
            backend: backend.name(),
            why,
            remedy,
        })),
    }
}

pub fn is_auto(name: &str) -> bool {
    name == "auto" || name.is_empty()
}

/// Whether or not it can run here.
pub fn named(name: &str) -> Result<&'static dyn Backend, CliError> {
    let mut backends = BACKENDS.iter().copied();
    let found = backends.find(|backend| backend.name() == name);
    found.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> CliError {
    let known: Vec<_> = BACKENDS.iter().map(|backend| backend.name()).collect();
    CliError::UnknownBackend {
        name: name.to_owned(),
        known: known.join(", "),
    }
}

pub fn list() -> Result<(), CliError> {
    for backend in BACKENDS {
        match backend.probe() {
            Probe::Available(devices) => {
                for device in devices {
                    let memory = device.memory_bytes.map(bytes);
                    let memory = memory.map(|size| format!(", {size} of memory"));
                    print(&format!(
                        "{:<8} available    {}{}\n",
                        backend.name(),
                        device.label,
                        memory.unwrap_or_default()
                    ))?;
                }
            }
            Probe::Unavailable { why, remedy } => {
                print(&format!(
                    "{:<8} unavailable  {why}; {remedy}\n",
                    backend.name()
                ))?;
            }
        }
    }
    Ok(())
}
