//! `loquat backends`, and the choice of a backend by name.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

use loquat::BackendChoice;
pub use loquat::{backends, has_gpu};
use loquat_session::{Backend, Device, Probe};

use crate::error::CliError;
use crate::terminal::{bytes, print};

/// The backend with this name. An empty name counts as `auto`: it comes from an environment
/// variable that is set but empty.
pub fn select(name: &str) -> Result<&'static dyn Backend, CliError> {
    let choice = if name.is_empty() {
        BackendChoice::AUTO
    } else {
        name.parse().map_err(loquat::Error::from)?
    };
    Ok(choice.resolve()?)
}

/// Lists every device of every backend, or why a backend has none.
pub fn list() -> Result<(), CliError> {
    let lines: Vec<_> = backends().flat_map(lines).collect();
    print(&format!("{}\n", lines.join("\n")))
}

fn lines(backend: &dyn Backend) -> Vec<String> {
    let name = backend.name();
    match backend.probe() {
        Probe::Available(devices) => {
            let lines = devices.iter();
            lines
                .map(|device| format!("{name:<8} available    {}", describe(device)))
                .collect()
        }
        Probe::Unavailable { why, remedy } => {
            vec![format!("{name:<8} unavailable  {why} {remedy}")]
        }
    }
}

/// A device with its memory, as far as the system reports it.
pub fn describe(device: &Device) -> String {
    let memory = device.memory_bytes.map(bytes);
    let memory = memory.map(|size| format!(", {size} of memory"));
    let speed = device.memory_bytes_per_second;
    let speed = speed.map(|speed| format!(", {} GB/s", speed / 1_000_000_000));
    [Some(device.label.clone()), memory, speed]
        .into_iter()
        .flatten()
        .collect()
}

/// Warns once per machine that an experimental backend is used. A marker file in `cache_dir`
/// remembers the warning.
pub fn warn_if_experimental(backend: &dyn Backend, cache_dir: &Path) {
    let name = backend.name();
    if loquat::is_experimental(backend) && create_marker(cache_dir, &format!("introduced-{name}")) {
        tracing::warn!(
            "the backend `{name}` is experimental. If it fails or answers strangely, report it with \
             the output of `loquat backends`; `--backend cpu` works without it"
        );
    }
}

/// Whether the marker is new. Always true where none can be written.
fn create_marker(folder: &Path, name: &str) -> bool {
    // If this fails, so does opening the file.
    let _ = std::fs::create_dir_all(folder);
    let mut file = OpenOptions::new();
    let created = file.write(true).create_new(true).open(folder.join(name));
    !created.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
}

#[cfg(test)]
mod tests {
    use loquat_session::DeviceKind;

    use super::*;

    #[test]
    fn device_shows_what_is_reported() {
        let device = |memory_bytes, memory_bytes_per_second| Device {
            kind: DeviceKind::Gpu,
            label: "gpu".to_owned(),
            memory_bytes,
            memory_bytes_per_second,
        };
        assert_eq!(describe(&device(None, None)), "gpu");
        let all = describe(&device(Some(80_000_000_000), Some(4_917_000_000_000)));
        assert!(
            all.starts_with("gpu, ") && all.ends_with(" of memory, 4917 GB/s"),
            "{all}"
        );
    }

    #[test]
    fn marker_is_new_once_unless_unwritable() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let times = [(); 2].map(|()| create_marker(&cache, "mark"));
        assert_eq!(times, [true, false]);
        let no_folder = cache.join("mark");
        let times = [(); 2].map(|()| create_marker(&no_folder, "mark"));
        assert_eq!(times, [true, true]);
    }
}
