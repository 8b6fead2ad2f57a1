//! What the facts mean, one check after another, and what to do about them.

use std::net::SocketAddr;
use std::path::Path;

use loquat::machine::MachineCores;
use loquat_session::Probe;

use super::facts::{Asked, Build, Cpu, Facts, Memory, Silence, Terminal};
use super::folder::{Folder, State};
use super::network::{Hub, Port};
use super::python::Python;
use crate::terminal::bytes;

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub check: String,
    pub verdict: Verdict,
    pub what: String,
    /// What to do, in one sentence.
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    /// Worth knowing; Loquat works all the same.
    Note,
    /// Something will fail.
    Problem,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }

    /// As terminals number them.
    pub fn colour(self) -> u8 {
        match self {
            Self::Ok => 32,
            Self::Note => 33,
            Self::Problem => 31,
        }
    }
}

impl Finding {
    pub fn ok(check: impl Into<String>, what: String) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Ok,
            what,
            remedy: None,
        }
    }

    pub fn note(self, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Note,
            remedy: Some(remedy.into()),
            ..self
        }
    }

    pub fn problem(self, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Problem,
            ..self.note(remedy)
        }
    }
}

/// Every check, in the order they are told.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let Facts {
        build: built,
        cpu: processor,
        cores: counted,
        memory: held,
        backends: probed,
        cache,
        hub_cache,
        config: named,
        port: (address, owner),
        hub: asked,
        python: found,
        terminal: shown,
    } = facts;
    let mut findings = vec![
        build(built),
        answered("cpu", processor, cpu),
        answered("cores", counted, cores),
        answered("memory", held, memory),
    ];
    findings.extend(backends(probed));
    findings.push(answered("cache", cache, |cache| folder(&CACHE, cache)));
    findings.push(answered("hub cache", hub_cache, |cache| {
        folder(&HUB_CACHE, cache)
    }));
    let named = named.iter();
    findings.extend(named.map(|(path, outcome)| {
        answered("config", outcome, |outcome| config(path, outcome.as_ref()))
    }));
    findings.push(answered("port", owner, |owner| port(*address, owner)));
    findings.push(answered("hub", asked, hub));
    findings.push(answered("python", found, python));
    findings.push(terminal(shown));
    findings
}

fn answered<T>(check: &str, fact: &Asked<T>, judge: impl FnOnce(&T) -> Finding) -> Finding {
    match fact {
        Ok(fact) => judge(fact),
        Err(Silence) => Finding::ok(check, "the system did not answer in time".to_owned())
            .note("Look whether a file system or a device hangs, then ask again."),
    }
}

fn build(build: &Build) -> Finding {
    let kind = if build.is_optimized {
        "optimized"
    } else {
        "debug"
    };
    let commit = build.commit.map(|commit| format!(", commit {commit}"));
    let what = format!(
        "loquat {}, {kind}, {}{}",
        build.version,
        build.target,
        commit.unwrap_or_default()
    );
    let finding = Finding::ok("build", what);
    if build.is_optimized {
        finding
    } else {
        finding.note("Build with `cargo build --release`: this build is slow.")
    }
}

fn cpu(cpu: &Cpu) -> Finding {
    let names = |wanted: bool| {
        let features = cpu.features.iter().filter(|(_, here)| *here == wanted);
        let names: Vec<_> = features.map(|(name, _)| *name).collect();
        names.join(" ")
    };
    let chosen = cpu.instruction_sets.first().copied().unwrap_or("none");
    let mut parts: Vec<String> = cpu.name.iter().cloned().collect();
    parts.push(format!("computes with {chosen}"));
    let features = [("has", names(true)), ("lacks", names(false))].into_iter();
    let features = features.filter(|(_, names)| !names.is_empty());
    parts.extend(features.map(|(word, names)| format!("{word} {names}")));
    let finding = Finding::ok("cpu", parts.join("; "));
    match cpu.instruction_sets.len() {
        // The portable kernels are always the last.
        0 | 1 => finding.note(
            "Expect a fraction of the usual speed; in a virtual machine, let it see the host's \
             processor.",
        ),
        _ => finding,
    }
}

fn cores(cores: &MachineCores) -> Finding {
    let mut parts = vec![match cores.threads {
        1 => "computes with 1 thread".to_owned(),
        threads => format!("computes with {threads} threads"),
    }];
    if let (Some(processors), Some(physical)) = (cores.processors, cores.cores) {
        parts.push(format!("{processors} processors on {physical} cores"));
    }
    if let Some(quota) = cores.quota {
        parts.push(format!("a control group allows the time of {quota:.1}"));
    }
    let finding = Finding::ok("cores", parts.join("; "));
    match cores.quota {
        Some(quota) if quota + 0.05 < cores.threads as f64 => finding.note(format!(
            "Raise the container's CPU limit to {}: whole threads are stopped while they wait for \
             their share.",
            cores.threads
        )),
        _ => finding,
    }
}

/// Less than a small model with a short context takes.
const LITTLE_MEMORY: u64 = 512 << 20;

fn memory(memory: &Memory) -> Finding {
    let machine = &memory.machine;
    let size = |name: &str, value: Option<u64>| value.map(|count| name.to_owned() + &bytes(count));
    let huge = memory.huge_pages.as_ref();
    let parts = [
        size("", machine.physical),
        size("available ", machine.available),
        size("limited to ", machine.limit),
        match machine.swap {
            Some(0) => Some("no swap".to_owned()),
            swap => size("swap ", swap),
        },
        huge.map(|setting| format!("huge pages {setting}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return Finding::ok("memory", "the system does not tell".to_owned())
            .note("Say how much to take with `--memory 8GiB`.");
    }
    let finding = Finding::ok("memory", parts.join("; "));
    let room = machine.physical.into_iter().chain(machine.limit).min();
    let room = room.into_iter().chain(machine.available).min();
    match (room, huge.map(String::as_str)) {
        (Some(room), _) if room < LITTLE_MEMORY => finding.problem(
            "Free some, or raise the container's limit; `loquat fit --all` says what models need.",
        ),
        (_, Some("never")) => finding.note(
            "Write `madvise` to /sys/kernel/mm/transparent_hugepage/enabled: decoding is faster \
             on huge pages.",
        ),
        _ => finding,
    }
}

/// One is enough.
fn backends(probed: &[(&'static str, Asked<Probe>)]) -> Vec<Finding> {
    let can_run = |probe: &Asked<Probe>| matches!(probe, Ok(Probe::Available(_)));
    let any = probed.iter().any(|(_, probe)| can_run(probe));
    let one = |(name, probe): &(&'static str, Asked<Probe>)| {
        let check = format!("{name} backend");
        answered(&check, probe, |probe| match probe {
            Probe::Available(devices) => {
                let devices = devices.iter().map(|device| {
                    let memory = device.memory_bytes.map(bytes);
                    let memory = memory.map(|size| format!(", {size} of memory"));
                    format!("{}{}", device.label, memory.unwrap_or_default())
                });
                Finding::ok(&*check, devices.collect::<Vec<_>>().join("; "))
            }
            Probe::Unavailable { why, remedy } => {
                let finding = Finding::ok(&*check, why.clone());
                if any {
                    finding.note(remedy.clone())
                } else {
                    finding.problem(remedy.clone())
                }
            }
        })
    };
    probed.iter().map(one).collect()
}

/// What differs between directories.
struct Kept {
    check: &'static str,
    variable: &'static str,
}

const CACHE: Kept = Kept {
    check: "cache",
    variable: loquat_store::CACHE_VARIABLE,
};

const HUB_CACHE: Kept = Kept {
    check: "hub cache",
    variable: "HF_HUB_CACHE",
};

/// About what a model of a few billion parameters takes.
const LITTLE_DISK: u64 = 4_000_000_000;

fn folder(kept: &Kept, folder: &Result<Folder, String>) -> Finding {
    let Kept { check, variable } = kept;
    let elsewhere = |what: String| {
        let finding = Finding::ok(*check, what);
        finding.problem(format!(
            "Name a directory that you may write with {variable}=DIR."
        ))
    };
    let folder = match folder {
        Ok(folder) => folder,
        Err(why) => return elsewhere(why.clone()),
    };
    let shown = folder.path.display();
    let mut parts = vec![shown.to_string()];
    match &folder.state {
        State::Writable => {}
        State::Missing => parts.push("made when it is needed".to_owned()),
        State::ReadOnly(why) => return elsewhere(format!("{shown} cannot be written: {why}")),
        State::Impossible(why) => return elsewhere(format!("{shown} cannot be made: {why}")),
    }
    parts.extend(folder.free_bytes.map(|free| bytes(free) + " free"));
    parts.extend(
        folder
            .foreign_owner
            .map(|owner| format!("owned by user {owner}")),
    );
    let left = folder.leftovers;
    if left.count > 0 {
        let (count, size) = (left.count, bytes(left.bytes));
        parts.push(format!("{size} of {count} downloads that were given up"));
    }
    let finding = Finding::ok(*check, parts.join("; "));
    if folder.free_bytes.is_some_and(|free| free < LITTLE_DISK) {
        finding.note(format!(
            "Remove models with `loquat rm`, or choose a larger disk with {variable}=DIR."
        ))
    } else if left.count > 0 {
        finding.note("`loquat prune` clears them away.")
    } else if folder.foreign_owner.is_some() {
        finding.note(format!(
            "Files that others made may resist removal; a directory of your own is chosen with \
             {variable}=DIR."
        ))
    } else {
        finding
    }
}

fn config(path: &Path, outcome: Result<&String, &String>) -> Finding {
    let shown = path.display();
    match outcome {
        Ok(what) => Finding::ok("config", format!("{shown} {what}")),
        Err(why) => Finding::ok("config", why.clone()).problem(format!(
            "Correct it and ask `loquat config check {shown}`; docs/config.md has every option."
        )),
    }
}

fn port(address: SocketAddr, port: &Port) -> Finding {
    let port_only = address.port();
    match port {
        Port::Free => Finding::ok("port", format!("{address} is free")),
        Port::Loquat { version } => {
            Finding::ok("port", format!("loquat {version} serves at {address}"))
        }
        Port::Taken => Finding::ok("port", format!("{address} is somebody else's"))
            .note("Serve elsewhere: `loquat serve --port PORT`."),
        Port::Refused(why) => Finding::ok("port", format!("{address} cannot be had: {why}")).note(
            format!("Serve elsewhere than on {port_only}: `loquat serve --port PORT`."),
        ),
    }
}

fn hub(hub: &Hub) -> Finding {
    match hub {
        Hub::Answers { name, status } => {
            let finding = Finding::ok("hub", format!("{name} answers with status {status}"));
            match status {
                500.. | 429 => finding.note("Wait a while, or name a mirror with HF_ENDPOINT=URL."),
                401 | 403 | 407 => finding
                    .note("Give a token with HF_TOKEN=TOKEN, or look at the proxy in between."),
                _ => Finding::ok("hub", format!("{name} answers")),
            }
        }
        Hub::Offline { name } => Finding::ok(
            "hub",
            format!("{name} is not asked, as LOQUAT_OFFLINE or HF_HUB_OFFLINE wants"),
        ),
        Hub::Silent(why) => Finding::ok("hub", why.clone()).note(
            "Models that are here run all the same; to fetch others, look at the network and the \
             proxy, or name a mirror with HF_ENDPOINT=URL.",
        ),
    }
}

fn python(python: &Python) -> Finding {
    let variable = loquat_store::PYTHON_VARIABLE;
    match python {
        Python::Pip(version) => Finding::ok("python", version.clone()),
        Python::NoPip(python) => {
            let python = python.display();
            Finding::ok("python", format!("{python} has no pip that works")).note(format!(
                "Run `{python} -m ensurepip`, or name another with {variable}=PYTHON; only models \
                 that come as packages need it."
            ))
        }
        Python::Missing(names) => {
            let names: Vec<_> = names.iter().map(|n| n.display().to_string()).collect();
            Finding::ok("python", format!("there is no {}", names.join(" and no "))).note(format!(
                "Install Python with pip, or name one with {variable}=PYTHON; only models that \
                 come as packages need it."
            ))
        }
    }
}

fn terminal(terminal: &Terminal) -> Finding {
    let is_dumb = terminal.term.as_deref() == Some("dumb");
    let colours = match (terminal.is_terminal, terminal.no_color, is_dumb) {
        (false, _, _) => "not a terminal, so no colours",
        (_, true, _) => "no colours, as NO_COLOR wants",
        (_, _, true) => "a dumb terminal",
        _ => "a terminal with colours",
    };
    let locale = terminal.locale.as_deref();
    let what = format!("{colours}; locale {}", locale.unwrap_or("not set"));
    let finding = Finding::ok("terminal", what);
    let spelled = locale.unwrap_or_default().to_ascii_lowercase();
    let is_utf8 = spelled.ends_with("utf-8") || spelled.ends_with("utf8") || cfg!(windows);
    if is_utf8 || cfg!(target_os = "macos") {
        finding
    } else {
        finding.note("Set LANG=C.UTF-8 if letters come out garbled: Loquat writes UTF-8 always.")
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
