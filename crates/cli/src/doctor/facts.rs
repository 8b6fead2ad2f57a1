//! What the system answers; nothing here is judged.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use loquat::machine::{self, MachineCores, MachineMemory};
use loquat_session::Probe;
use loquat_store::{Prunable, PruneOptions, Store};

use super::folder::{Folder, Remains};
use super::network::{self, Hub, Port};
use super::python::{self, Python};
use crate::backends;
use crate::load::open_store;
use crate::serve::{ConfigReader, LocalModels};

/// What was asked, unless it was not answered in time.
pub type Asked<T> = Result<T, Silence>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence;

/// All that is known of this installation.
#[derive(Debug)]
pub struct Facts {
    pub build: Build,
    pub cpu: Asked<Cpu>,
    pub cores: Asked<MachineCores>,
    pub memory: Asked<Memory>,
    pub backends: Vec<(&'static str, Asked<Probe>)>,
    pub cache: Asked<Result<Folder, String>>,
    pub hub_cache: Asked<Result<Folder, String>>,
    /// Where a file is named: what is right about it, or what is wrong.
    pub config: Option<(PathBuf, Asked<Result<String, String>>)>,
    pub port: (SocketAddr, Asked<Port>),
    pub hub: Asked<Hub>,
    pub python: Asked<Python>,
    pub terminal: Terminal,
}

#[derive(Debug, Clone)]
pub struct Build {
    pub version: &'static str,
    pub is_optimized: bool,
    pub target: String,
    /// Whoever builds packages sets `LOQUAT_COMMIT` while building.
    pub commit: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub struct Cpu {
    pub name: Option<String>,
    /// Fastest first; the first is taken.
    pub instruction_sets: Vec<&'static str>,
    pub features: Vec<(&'static str, bool)>,
}

#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub machine: MachineMemory,
    /// Linux's setting for transparent huge pages, as its file has it.
    pub huge_pages: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Terminal {
    pub is_terminal: bool,
    pub no_color: bool,
    pub term: Option<String>,
    /// What decides how letters are written.
    pub locale: Option<String>,
}

/// For all questions together; what takes longer is said not to answer.
const PATIENCE: Duration = Duration::from_secs(8);

impl Facts {
    pub fn gather(config: Option<PathBuf>) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let address = default_address();
        let cpu = ask(cpu);
        let cores = ask(MachineCores::now);
        let memory = ask(memory);
        let backends: Vec<_> = backends::backends()
            .map(|backend| (backend.name(), ask(|| backend.probe())))
            .collect();
        let cache = ask(|| kept(Store::cache_dir));
        let hub_cache = ask(|| kept(Store::hub_cache_dir));
        let config = config.map(|path| {
            let asked = path.clone();
            (path, ask(move || check_config(&asked)))
        });
        let port = ask(move || network::port(address));
        let hub = ask(network::hub);
        let python = ask(python::find);
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

/// A question that a thread is looking into. One that never answers is left to the process's end.
struct Question<T>(Receiver<T>);

fn ask<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> Question<T> {
    let (tell, told) = sync_channel(1);
    // A thread that cannot be started is one that does not answer.
    let _ = std::thread::Builder::new().spawn(move || tell.send(what()));
    Question(told)
}

impl<T> Question<T> {
    fn by(self, deadline: Instant) -> Asked<T> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left).map_err(|_| Silence)
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

/// The word in brackets.
fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// One of the directories that models are kept in.
fn kept(which: fn(&Store) -> &Path) -> Result<Folder, String> {
    let store = open_store().map_err(|error| error.to_string())?;
    let path = which(&store).to_owned();
    let found = store.prunable(PruneOptions::default()).unwrap_or_default();
    let sizes = found.into_iter().filter_map(|prunable| match prunable {
        Prunable::Leftover { path: at, bytes } => at.starts_with(&path).then_some(bytes),
        Prunable::Model(_) => None,
    });
    let remains = sizes.fold(Remains::default(), |so_far, bytes| Remains {
        count: so_far.count + 1,
        bytes: so_far.bytes.saturating_add(bytes),
    });
    Ok(Folder::at(path, remains))
}

fn check_config(path: &Path) -> Result<String, String> {
    let told = |error: crate::error::CliError| error.to_string();
    let store = open_store().map_err(told)?;
    let wanted = ConfigReader::for_file(Some(path), &store);
    let settled = wanted.read_servable(&LocalModels::new(store));
    let config = settled.map_err(told)?.config;
    let models: Vec<_> = config.models.iter().map(|m| m.name.as_str()).collect();
    Ok(format!("serves {}", models.join(", ")))
}

fn terminal() -> Terminal {
    let variable = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
    // The first that is set decides, as for every program.
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
    fn silence_and_panics_are_answers_too() {
        let soon = || Instant::now() + Duration::from_secs(20);
        assert_eq!(ask(|| 5).by(soon()), Ok(5));
        let (held, hold) = std::sync::mpsc::channel::<()>();
        let silent = ask(move || hold.recv().is_ok());
        assert_eq!(silent.by(Instant::now()), Err(Silence));
        drop(held);
        let gone = ask(|| std::panic::resume_unwind(Box::new(())));
        assert_eq!(gone.by(soon()), Err::<(), _>(Silence));
    }

    #[test]
    fn a_setting_stands_in_brackets() {
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
