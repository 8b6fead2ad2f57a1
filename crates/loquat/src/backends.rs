//! The table of backends: the one place that names them.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::Path;

use loquat_cpu::{CpuBackend, MachineLimits};
use loquat_mlx::MlxBackend;
use loquat_session::{Backend, DeviceKind, Probe};

use crate::Error;
use crate::human::bytes;

struct Entry {
    backend: &'static dyn Backend,
    /// Too new to have been tried on many machines, which its first run on each says.
    is_new: bool,
}

/// In the order `auto` prefers them, among those with a GPU and among those without.
static BACKENDS: &[Entry] = &[
    Entry {
        backend: &CpuBackend::AUTO,
        is_new: false,
    },
    Entry {
        backend: &MlxBackend::AUTO,
        is_new: true,
    },
];

/// The backend called `name`, or for `auto` the one that suits this machine best. An environment
/// variable that is set but empty counts as not set.
pub fn select(name: &str) -> Result<&'static dyn Backend, Error> {
    if is_auto(name) {
        let probed = backends().map(|backend| (backend, backend.probe()));
        return best(probed).ok_or_else(|| Error::NoBackend { all: indented() });
    }
    let backend = named(name)?;
    match backend.probe() {
        Probe::Available(_) => Ok(backend),
        Probe::Unavailable { .. } => Err(Error::UnavailableBackend {
            name: backend.name(),
            all: indented(),
        }),
    }
}

/// What this machine's cores can do at most.
pub fn machine_limits(threads: Option<NonZeroUsize>) -> Result<MachineLimits, Error> {
    Ok(loquat_cpu::measure(threads.map(NonZeroUsize::get))?)
}

/// All that this build knows, whether or not they can run here.
pub fn backends() -> impl Iterator<Item = &'static dyn Backend> {
    BACKENDS.iter().map(|entry| entry.backend)
}

/// The first whose models would be on a GPU, else the first that can run at all.
fn best<T>(probed: impl Iterator<Item = (T, Probe)>) -> Option<T> {
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

/// Whether models that this backend opens are on a GPU.
pub fn has_gpu(backend: &dyn Backend) -> bool {
    on_gpu(&backend.probe())
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

fn is_auto(name: &str) -> bool {
    name == "auto" || name.is_empty()
}

/// Whether or not it can run here.
fn named(name: &str) -> Result<&'static dyn Backend, Error> {
    let found = backends().find(|backend| backend.name() == name);
    found.ok_or_else(|| Error::UnknownBackend {
        name: name.to_owned(),
        all: indented(),
    })
}

/// A line for each device of each backend, or one that says why it has none.
pub fn describe() -> Vec<String> {
    backends().flat_map(lines).collect()
}

/// The list, to stand inside an error.
fn indented() -> String {
    let lines = describe().into_iter();
    lines.map(|line| format!("\n  {line}")).collect()
}

fn lines(backend: &dyn Backend) -> Vec<String> {
    let name = backend.name();
    match backend.probe() {
        Probe::Available(devices) => {
            let shown = devices.iter().map(|device| {
                let memory = device.memory_bytes.map(bytes);
                let memory = memory.map(|size| format!(", {size} of memory"));
                let memory = memory.unwrap_or_default();
                format!("{name:<8} available    {}{memory}", device.label)
            });
            shown.collect()
        }
        Probe::Unavailable { why, remedy } => {
            vec![format!("{name:<8} unavailable  {why} {remedy}")]
        }
    }
}

/// Says once on each machine that a backend is new, if it is; `cache_dir` remembers.
pub fn introduce(backend: &dyn Backend, cache_dir: &Path) {
    let name = backend.name();
    let is_new = BACKENDS
        .iter()
        .any(|entry| entry.is_new && entry.backend.name() == name);
    if is_new && is_new_mark(cache_dir, &format!("introduced-{name}")) {
        tracing::warn!(
            "the backend `{name}` is new; if it fails or answers strangely, please tell the \
             project's issue tracker, with what `loquat backends` says; `--backend cpu` works \
             without it"
        );
    }
}

/// Where nothing can be written down, every time is the first.
fn is_new_mark(folder: &Path, name: &str) -> bool {
    // Where it fails, so does what follows.
    let _ = std::fs::create_dir_all(folder);
    let mut file = OpenOptions::new();
    let made = file.write(true).create_new(true).open(folder.join(name));
    !made.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
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
        });
        Probe::Available(devices.collect())
    }

    #[test]
    fn a_gpu_is_preferred_then_the_table_s_order() {
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
            assert_eq!(best((0..).zip(probes)), expected, "{shown}");
        }
    }

    #[test]
    fn a_mark_is_new_once_and_always_where_it_cannot_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let times = [(); 2].map(|()| is_new_mark(&cache, "mark"));
        assert_eq!(times, [true, false]);
        let no_folder = cache.join("mark");
        let times = [(); 2].map(|()| is_new_mark(&no_folder, "mark"));
        assert_eq!(times, [true, true]);
    }
}
