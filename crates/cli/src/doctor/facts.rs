//! Facts about the system, without any judgement.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use loquat::machine::{self, MachineCores, MachineMemory};
use loquat_session::Probe;
use loquat_store::{Prunable, PruneOptions, Store};

use super::directory::{Directory, Leftovers};
use super::network::{self, Hub, Port};
use super::python::{self, Python};
use crate::backends;
use crate::load::open_store;
use crate::serve::{ConfigReader, LocalModels};

/// The result of a probe, unless it timed out.
pub type Probed<T> = Result<T, TimedOut>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

/// Everything known about this installation.
#[derive(Debug)]
pub struct Facts {
    pub build: Build,
    pub cpu: Probed<Cpu>,
    pub cores: Probed<MachineCores>,
    pub memory: Probed<Memory>,
    pub backends: Vec<(&'static str, Probed<Probe>)>,
    pub cache: Probed<Result<Directory, String>>,
    pub hub_cache: Probed<Result<Directory, String>>,
    /// For a named file: a summary, or its errors.
    pub config: Option<(PathBuf, Probed<Result<String, String>>)>,
    pub port: (SocketAddr, Probed<Port>),
    pub hub: Probed<Hub>,
    pub python: Probed<Python>,
    pub terminal: Terminal,
}

#[derive(Debug, Clone)]
pub struct Build {
    pub version: &'static str,
    pub is_optimized: bool,
    pub target: String,
    /// `LOQUAT_COMMIT` at build time.
    pub commit: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub struct Cpu {
    pub name: Option<String>,
    /// Fastest first; the first is used.
    pub instruction_sets: Vec<&'static str>,
    pub features: Vec<(&'static str, bool)>,
}

#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub machine: MachineMemory,
    /// Linux's setting for transparent huge pages.
    pub huge_pages: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Terminal {
    pub is_terminal: bool,
    pub no_color: bool,
    pub term: Option<String>,
    /// The locale variable that applies.
    pub locale: Option<String>,
}

/// For all probes together.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Facts {
    pub fn gather(config: Option<PathBuf>) -> Self {
        let deadline = Instant::now() + TIMEOUT;
        let address = default_address();
        let cpu = start(cpu);
        let cores = start(MachineCores::now);
        let memory = start(memory);
        let backends: Vec<_> = backends::backends()
            .map(|backend| (backend.name(), start(|| backend.probe())))
            .collect();
        let cache = start(|| directory(Store::cache_dir));
        let hub_cache = start(|| directory(Store::hub_cache_dir));
        let config = config.map(|path| {
            let asked = path.clone();
            (path, start(move || check_config(&asked)))
        });
        let port = start(move || network::port(address));
        let hub = start(network::hub);
        let python = start(python::find);
        Self {
            build: build(),
            cpu: cpu.by(deadline),
            cores: cores.by(deadline),
            memory: memory.by(deadline),
            backends: backends
                .into_iter()
                .map(|(name, probe)| (name, probe.by(deadline)))
                .collect(),
            cache: cache.by(deadline),
            hub_cache: hub_cache.by(deadline),
            config: config.map(|(path, outcome)| (path, outcome.by(deadline))),
            port: (address, port.by(deadline)),
            hub: hub.by(deadline),
            python: python.by(deadline),
            terminal: terminal(),
        }
    }
}

/// A probe on its own thread. One that hangs ends with the process.
struct PendingProbe<T>(Receiver<T>);

fn start<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> PendingProbe<T> {
    let (sender, receiver) = sync_channel(1);
    // If the thread cannot be started, the probe times out.
    let _ = std::thread::Builder::new().spawn(move || sender.send(what()));
    PendingProbe(receiver)
}

impl<T> PendingProbe<T> {
    fn by(self, deadline: Instant) -> Probed<T> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left).map_err(|_| TimedOut)
    }
}

fn default_address() -> SocketAddr {
    let server = loquat_server::config::Server::default();
    SocketAddr::new(server.host, server.port)
}

fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION"),
        is_optimized: !cfg!(debug_assertions),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        commit: option_env!("LOQUAT_COMMIT"),
    }
}

fn cpu() -> Cpu {
    Cpu {
        name: machine::processor_name(),
        instruction_sets: machine::instruction_sets(),
        features: machine::cpu_features(),
    }
}

fn memory() -> Memory {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
    Memory {
        machine: MachineMemory::now(),
        huge_pages: setting.as_deref().and_then(chosen).map(str::to_owned),
    }
}

/// The value in brackets, which is the active one.
fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// One of the model directories.
fn directory(which: fn(&Store) -> &Path) -> Result<Directory, String> {
    let store = open_store().map_err(|error| error.to_string())?;
    let path = which(&store).to_owned();
    let found = store.prunable(PruneOptions::default()).unwrap_or_default();
    let sizes = found.into_iter().filter_map(|prunable| match prunable {
        Prunable::Leftover { path: at, bytes } => at.starts_with(&path).then_some(bytes),
        Prunable::Model(_) => None,
    });
    let leftovers = sizes.fold(Leftovers::default(), |so_far, bytes| Leftovers {
        count: so_far.count + 1,
        bytes: so_far.bytes.saturating_add(bytes),
    });
    Ok(Directory::inspect(path, leftovers))
}

fn check_config(path: &Path) -> Result<String, String> {
    let message = |error: crate::error::CliError| error.to_string();
    let store = open_store().map_err(message)?;
    let wanted = ConfigReader::for_file(Some(path), &store);
    let settled = wanted.read_servable(&LocalModels::new(store));
    let config = settled.map_err(message)?.config;
    let models: Vec<_> = config.models.iter().map(|m| m.name.as_str()).collect();
    Ok(format!("serves {}", models.join(", ")))
}

fn terminal() -> Terminal {
    let variable = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
    // The first one that is set applies.
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter();
    Terminal {
        is_terminal: std::io::stdout().is_terminal(),
        no_color: variable("NO_COLOR").is_some(),
        term: variable("TERM"),
        locale: locale.into_iter().find_map(variable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_and_panics_are_reported() {
        let soon = || Instant::now() + Duration::from_secs(300);
        assert_eq!(start(|| 5).by(soon()), Ok(5));
        let (held, hold) = std::sync::mpsc::channel::<()>();
        let silent = start(move || hold.recv().is_ok());
        assert_eq!(silent.by(Instant::now()), Err(TimedOut));
        drop(held);
        let gone = start(|| std::panic::resume_unwind(Box::new(())));
        assert_eq!(gone.by(soon()), Err::<(), _>(TimedOut));
    }

    #[test]
    fn active_setting_is_in_brackets() {
        for (text, expected) in [
            ("always [madvise] never\n", Some("madvise")),
            ("[never]", Some("never")),
            ("never", None),
            ("[never", None),
        ] {
            assert_eq!(chosen(text), expected);
        }
    }
}
