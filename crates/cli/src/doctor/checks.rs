//! The checks: findings from facts, with remedies.

use std::net::SocketAddr;
use std::path::Path;

use loquat::machine::MachineCores;
use loquat_session::Probe;

use super::directory::{Access, Directory};
use super::facts::{Build, Cpu, Facts, Memory, Probed, Terminal, TimedOut};
use super::network::{Hub, Port};
use super::python::Python;
use crate::backends::describe;
use crate::terminal::bytes;

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub check: String,
    pub severity: Severity,
    pub what: String,
    /// One sentence: what to do.
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Ok,
    /// Worth knowing; Loquat works.
    Note,
    /// Something will fail.
    Problem,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }

    /// The ANSI colour code.
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
            severity: Severity::Ok,
            what,
            remedy: None,
        }
    }

    pub fn note(self, remedy: impl Into<String>) -> Self {
        Self {
            severity: Severity::Note,
            remedy: Some(remedy.into()),
            ..self
        }
    }

    pub fn problem(self, remedy: impl Into<String>) -> Self {
        Self {
            severity: Severity::Problem,
            ..self.note(remedy)
        }
    }
}

/// All findings, in the order of the report.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let Facts {
        build: build_facts,
        cpu: cpu_facts,
        cores: core_facts,
        memory: memory_facts,
        backends: backend_facts,
        cache,
        hub_cache,
        config: config_facts,
        port: (address, port_facts),
        hub: hub_facts,
        python: python_facts,
        terminal: terminal_facts,
    } = facts;
    let mut findings = vec![
        build(build_facts),
        checked("cpu", cpu_facts, cpu),
        checked("cores", core_facts, cores),
        checked("memory", memory_facts, memory),
    ];
    findings.extend(backends(backend_facts));
    findings.push(checked("cache", cache, |cache| directory(&CACHE, cache)));
    findings.push(checked("hub cache", hub_cache, |cache| {
        directory(&HUB_CACHE, cache)
    }));
    let config_facts = config_facts.iter();
    findings.extend(config_facts.map(|(path, outcome)| {
        checked("config", outcome, |outcome| config(path, outcome.as_ref()))
    }));
    findings.push(checked("port", port_facts, |facts| port(*address, facts)));
    findings.push(checked("hub", hub_facts, hub));
    findings.push(checked("python", python_facts, python));
    findings.push(terminal(terminal_facts));
    findings
}

fn checked<T>(check: &str, fact: &Probed<T>, to_finding: impl FnOnce(&T) -> Finding) -> Finding {
    match fact {
        Ok(fact) => to_finding(fact),
        Err(TimedOut) => Finding::ok(check, "timed out".to_owned())
            .note("Check whether a file system or device hangs, then try again."),
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
    let names = |available: bool| {
        let features = cpu.features.iter().filter(|(_, here)| *here == available);
        let names: Vec<_> = features.map(|(name, _)| *name).collect();
        names.join(" ")
    };
    let chosen = cpu.instruction_sets.first().copied().unwrap_or("none");
    let mut parts: Vec<String> = cpu.name.iter().cloned().collect();
    parts.push(format!("uses {chosen}"));
    let features = [("has", names(true)), ("lacks", names(false))].into_iter();
    let features = features.filter(|(_, names)| !names.is_empty());
    parts.extend(features.map(|(word, names)| format!("{word} {names}")));
    let finding = Finding::ok("cpu", parts.join("; "));
    match cpu.instruction_sets.len() {
        // Only the portable kernels.
        0 | 1 => finding.note(
            "Speed is a fraction of normal. In a virtual machine, expose the host's CPU features.",
        ),
        _ => finding,
    }
}

fn cores(cores: &MachineCores) -> Finding {
    let mut parts = vec![match cores.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    }];
    if let (Some(processors), Some(physical)) = (cores.processors, cores.cores) {
        parts.push(format!("{processors} processors on {physical} cores"));
    }
    if let Some(quota) = cores.quota {
        parts.push(format!("limited to {quota:.1} CPUs by a control group"));
    }
    let finding = Finding::ok("cores", parts.join("; "));
    match cores.quota {
        Some(quota) if quota + 0.05 < cores.threads as f64 => finding.note(format!(
            "Raise the container's CPU limit to {}: throttled threads stall all others.",
            cores.threads
        )),
        _ => finding,
    }
}

/// Less than a small model with a short context needs.
const MIN_MEMORY: u64 = 512 << 20;

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
        return Finding::ok("memory", "not reported by the system".to_owned())
            .note("Set a limit with `--memory 8GiB`.");
    }
    let finding = Finding::ok("memory", parts.join("; "));
    let room = machine.physical.into_iter().chain(machine.limit).min();
    let room = room.into_iter().chain(machine.available).min();
    match (room, huge.map(String::as_str)) {
        (Some(room), _) if room < MIN_MEMORY => finding.problem(
            "Free memory, or raise the container's limit. `loquat fit --all` shows what models need.",
        ),
        (_, Some("never")) => finding.note(
            "Write `madvise` to /sys/kernel/mm/transparent_hugepage/enabled: decoding is faster \
             on huge pages.",
        ),
        _ => finding,
    }
}

/// One working backend is enough.
fn backends(probed: &[(&'static str, Probed<Probe>)]) -> Vec<Finding> {
    let can_run = |probe: &Probed<Probe>| matches!(probe, Ok(Probe::Available(_)));
    let any = probed.iter().any(|(_, probe)| can_run(probe));
    let one = |(name, probe): &(&'static str, Probed<Probe>)| {
        let check = format!("{name} backend");
        checked(&check, probe, |probe| match probe {
            Probe::Available(devices) => {
                let devices: Vec<_> = devices.iter().map(describe).collect();
                Finding::ok(&*check, devices.join("; "))
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

/// A directory to check.
struct DirectoryCheck {
    check: &'static str,
    variable: &'static str,
}

const CACHE: DirectoryCheck = DirectoryCheck {
    check: "cache",
    variable: loquat_store::CACHE_VARIABLE,
};

const HUB_CACHE: DirectoryCheck = DirectoryCheck {
    check: "hub cache",
    variable: "HF_HUB_CACHE",
};

/// About the size of a model of a few billion parameters.
const MIN_DISK: u64 = 4_000_000_000;

fn directory(which: &DirectoryCheck, found: &Result<Directory, String>) -> Finding {
    let DirectoryCheck { check, variable } = which;
    let elsewhere = |what: String| {
        let finding = Finding::ok(*check, what);
        finding.problem(format!("Set {variable}=DIR to a writable directory."))
    };
    let found = match found {
        Ok(found) => found,
        Err(why) => return elsewhere(why.clone()),
    };
    let shown = found.path.display();
    let mut parts = vec![shown.to_string()];
    match &found.access {
        Access::Writable => {}
        Access::Missing => parts.push("will be created".to_owned()),
        Access::ReadOnly(why) => return elsewhere(format!("{shown} is not writable: {why}")),
        Access::Impossible(why) => return elsewhere(format!("{shown} cannot be created: {why}")),
    }
    parts.extend(found.free_bytes.map(|free| bytes(free) + " free"));
    parts.extend(
        found
            .foreign_owner
            .map(|owner| format!("owned by user {owner}")),
    );
    let left = found.leftovers;
    if left.count > 0 {
        let (count, size) = (left.count, bytes(left.bytes));
        parts.push(format!("{size} in {count} unfinished downloads"));
    }
    let finding = Finding::ok(*check, parts.join("; "));
    if found.free_bytes.is_some_and(|free| free < MIN_DISK) {
        finding.note(format!(
            "Remove models with `loquat rm`, or use a larger disk with {variable}=DIR."
        ))
    } else if left.count > 0 {
        finding.note("Remove them with `loquat prune`.")
    } else if found.foreign_owner.is_some() {
        finding.note(format!(
            "You may not be able to remove files of other users. Set {variable}=DIR to a directory \
             of your own."
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
            "Fix it and run `loquat config check {shown}`; docs/config.md lists all options."
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
        Port::Taken => Finding::ok("port", format!("{address} is used by another program"))
            .note("Use another port: `loquat serve --port PORT`."),
        Port::Refused(why) => Finding::ok("port", format!("{address} is not available: {why}"))
            .note(format!(
                "Use another port than {port_only}: `loquat serve --port PORT`."
            )),
    }
}

fn hub(hub: &Hub) -> Finding {
    match hub {
        Hub::Responds { name, status } => {
            let finding = Finding::ok("hub", format!("{name} responds with status {status}"));
            match status {
                500.. | 429 => finding.note("Try again later, or set HF_ENDPOINT=URL to a mirror."),
                401 | 403 | 407 => finding.note("Set HF_TOKEN=TOKEN, or check the proxy."),
                _ => Finding::ok("hub", format!("{name} is reachable")),
            }
        }
        Hub::Offline { name } => Finding::ok(
            "hub",
            format!("{name} is not contacted because LOQUAT_OFFLINE or HF_HUB_OFFLINE is set"),
        ),
        Hub::Unreachable(why) => Finding::ok("hub", why.clone()).note(
            "Local models work. To download others, check the network and the proxy, or set \
             HF_ENDPOINT=URL to a mirror.",
        ),
    }
}

fn python(python: &Python) -> Finding {
    let variable = loquat_store::PYTHON_VARIABLE;
    match python {
        Python::Pip(version) => Finding::ok("python", version.clone()),
        Python::NoPip(python) => {
            let python = python.display();
            Finding::ok("python", format!("{python} has no working pip")).note(format!(
                "Run `{python} -m ensurepip`, or set {variable}=PYTHON. Only models from Python \
                 packages need it."
            ))
        }
        Python::Missing(names) => {
            let names: Vec<_> = names.iter().map(|n| n.display().to_string()).collect();
            Finding::ok("python", format!("{} not found", names.join(" and "))).note(format!(
                "Install Python with pip, or set {variable}=PYTHON. Only models from Python \
                 packages need it."
            ))
        }
    }
}

fn terminal(terminal: &Terminal) -> Finding {
    let is_dumb = terminal.term.as_deref() == Some("dumb");
    let colours = match (terminal.is_terminal, terminal.no_color, is_dumb) {
        (false, _, _) => "not a terminal, no colours",
        (_, true, _) => "no colours because NO_COLOR is set",
        (_, _, true) => "dumb terminal, no colours",
        _ => "terminal with colours",
    };
    let locale = terminal.locale.as_deref();
    let what = format!("{colours}; locale {}", locale.unwrap_or("not set"));
    let finding = Finding::ok("terminal", what);
    let spelled = locale.unwrap_or_default().to_ascii_lowercase();
    let is_utf8 = spelled.ends_with("utf-8") || spelled.ends_with("utf8") || cfg!(windows);
    if is_utf8 || cfg!(target_os = "macos") {
        finding
    } else {
        finding.note("Set LANG=C.UTF-8 if output is garbled: Loquat always writes UTF-8.")
    }
}

#[cfg(test)]
mod tests;
