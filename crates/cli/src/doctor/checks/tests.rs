//! A healthy machine, and the findings when one thing about it changes.

use loquat::machine::MachineMemory;
use loquat_session::{Device, DeviceKind};

use super::super::directory::Leftovers;
use super::*;

const GB: u64 = 1_000_000_000;

fn healthy() -> Facts {
    let device = Device {
        kind: DeviceKind::Cpu,
        label: "cpu (8 threads)".to_owned(),
        memory_bytes: Some(32 * GB),
        memory_bytes_per_second: None,
    };
    Facts {
        build: Build {
            version: "1.2.3",
            is_optimized: true,
            target: "x86_64-linux".to_owned(),
            commit: None,
        },
        cpu: Ok(Cpu {
            name: Some("Some CPU".to_owned()),
            instruction_sets: vec!["avx2", "portable"],
            features: vec![("avx2", true), ("avx512f", false)],
        }),
        cores: Ok(MachineCores {
            processors: Some(16),
            cores: Some(8),
            quota: None,
            threads: 8,
        }),
        memory: Ok(Memory {
            machine: MachineMemory {
                physical: Some(32 * GB),
                available: Some(20 * GB),
                limit: None,
                swap: Some(0),
            },
            huge_pages: Some("madvise".to_owned()),
        }),
        backends: vec![("cpu", Ok(Probe::Available(vec![device])))],
        cache: Ok(Ok(directory_at("/c"))),
        hub_cache: Ok(Ok(directory_at("/h"))),
        config: None,
        port: ("127.0.0.1:8080".parse().unwrap(), Ok(Port::Free)),
        hub: Ok(responds(200)),
        python: Ok(Python::Pip("pip 25".to_owned())),
        terminal: Terminal {
            is_terminal: true,
            locale: Some("C.UTF-8".to_owned()),
            ..Terminal::default()
        },
    }
}

fn directory_at(path: &str) -> Directory {
    Directory {
        path: path.into(),
        access: Access::Writable,
        free_bytes: Some(100 * GB),
        foreign_owner: None,
        leftovers: Leftovers::default(),
    }
}

fn memory_of(facts: &mut Facts) -> &mut Memory {
    facts.memory.as_mut().unwrap()
}

fn cache_of(facts: &mut Facts) -> &mut Directory {
    facts.cache.as_mut().unwrap().as_mut().unwrap()
}

fn responds(status: u16) -> Hub {
    let name = "hub.org".to_owned();
    Hub::Responds { name, status }
}

#[test]
fn healthy_machine_needs_no_remedy() {
    for finding in findings(&healthy()) {
        assert_eq!(finding.severity, Severity::Ok, "{finding:?}");
        assert_eq!(finding.remedy, None);
        assert!(!finding.what.is_empty(), "{finding:?}");
    }
    let names: Vec<_> = findings(&healthy())
        .into_iter()
        .map(|at| at.check)
        .collect();
    let expected = [
        "build",
        "cpu",
        "cores",
        "memory",
        "cpu backend",
        "cache",
        "hub cache",
        "port",
        "hub",
        "python",
        "terminal",
    ];
    assert_eq!(names, expected);
}

/// A change to the machine, the affected check, its severity, and words of the finding.
type Case = (
    fn(&mut Facts),
    &'static str,
    Severity,
    &'static [&'static str],
);

const NOTE: Severity = Severity::Note;
const PROBLEM: Severity = Severity::Problem;
const OK: Severity = Severity::Ok;

#[rustfmt::skip]
const CASES: &[Case] = &[
    (|f| f.build.is_optimized = false, "build", NOTE, &["debug", "--release"]),
    (|f| f.build.commit = Some("abc123"), "build", OK, &["commit abc123"]),
    (|f| f.cpu.as_mut().unwrap().instruction_sets.truncate(1), "cpu", NOTE, &["has avx2", "lacks avx512f", "virtual machine"]),
    (|f| f.cpu.as_mut().unwrap().instruction_sets.clear(), "cpu", NOTE, &["none"]),
    (|f| f.cpu = Err(TimedOut), "cpu", NOTE, &["timed out"]),
    (|f| f.cores.as_mut().unwrap().quota = Some(1.5), "cores", NOTE, &["1.5", "to 8"]),
    (|f| f.cores.as_mut().unwrap().quota = Some(8.0), "cores", OK, &["8.0"]),
    (|f| f.cores.as_mut().unwrap().cores = None, "cores", OK, &["8 threads"]),
    (|f| memory_of(f).machine.limit = Some(100 << 20), "memory", PROBLEM, &["limited to 105 MB", "container"]),
    (|f| memory_of(f).machine.available = Some(100 << 20), "memory", PROBLEM, &["available 105 MB"]),
    (|f| memory_of(f).huge_pages = Some("never".into()), "memory", NOTE, &["huge pages never", "`madvise`"]),
    (|f| memory_of(f).machine.swap = Some(2 * GB), "memory", OK, &["swap 2.0 GB"]),
    (|f| *memory_of(f) = Memory::default(), "memory", NOTE, &["not reported", "--memory"]),
    (|f| f.backends.push(("gpu", Ok(absent()))), "gpu backend", NOTE, &["No driver.", "Install it."]),
    (|f| f.backends = vec![("gpu", Ok(absent()))], "gpu backend", PROBLEM, &["No driver.", "Install it."]),
    (|f| f.backends.push(("gpu", Err(TimedOut))), "gpu backend", NOTE, &["timed out"]),
    (|f| cache_of(f).access = Access::Missing, "cache", OK, &["/c; will be created"]),
    (|f| cache_of(f).access = Access::ReadOnly("no".into()), "cache", PROBLEM, &["/c is not writable: no", "LOQUAT_CACHE="]),
    (|f| cache_of(f).access = Access::Impossible("/c is a file".into()), "cache", PROBLEM, &["/c is a file", "LOQUAT_CACHE="]),
    (|f| cache_of(f).free_bytes = Some(GB), "cache", NOTE, &["1.0 GB free", "loquat rm"]),
    (|f| cache_of(f).free_bytes = None, "cache", OK, &["/c"]),
    (|f| cache_of(f).foreign_owner = Some(7), "cache", NOTE, &["user 7", "LOQUAT_CACHE="]),
    (|f| cache_of(f).leftovers = Leftovers { count: 2, bytes: GB }, "cache", NOTE, &["1.0 GB in 2 unfinished downloads", "loquat prune"]),
    (|f| f.cache = Ok(Err("no home".into())), "cache", PROBLEM, &["no home", "LOQUAT_CACHE="]),
    (|f| f.hub_cache = Ok(Err("no home".into())), "hub cache", PROBLEM, &["no home", "HF_HUB_CACHE="]),
    (|f| f.hub_cache = Err(TimedOut), "hub cache", NOTE, &["hangs"]),
    (|f| f.config = Some(("l.toml".into(), Ok(Ok("serves a".into())))), "config", OK, &["l.toml serves a"]),
    (|f| f.config = Some(("l.toml".into(), Ok(Err("line 3".into())))), "config", PROBLEM, &["line 3", "config check l.toml"]),
    (|f| f.config = Some(("l.toml".into(), Err(TimedOut))), "config", NOTE, &["timed out"]),
    (|f| f.port.1 = Ok(Port::Loquat { version: "9".into() }), "port", OK, &["loquat 9 serves at 127.0.0.1:8080"]),
    (|f| f.port.1 = Ok(Port::Taken), "port", NOTE, &["another program", "--port"]),
    (|f| f.port.1 = Ok(Port::Refused("no".into())), "port", NOTE, &["not available: no", "8080"]),
    (|f| f.hub = Ok(responds(404)), "hub", OK, &["hub.org is reachable"]),
    (|f| f.hub = Ok(responds(503)), "hub", NOTE, &["503", "HF_ENDPOINT="]),
    (|f| f.hub = Ok(responds(429)), "hub", NOTE, &["429"]),
    (|f| f.hub = Ok(responds(401)), "hub", NOTE, &["401", "HF_TOKEN="]),
    (|f| f.hub = Ok(Hub::Unreachable("dns".into())), "hub", NOTE, &["dns", "Local models work"]),
    (|f| f.hub = Ok(Hub::Offline { name: "hub.org".into() }), "hub", OK, &["HF_HUB_OFFLINE"]),
    (|f| f.python = Ok(Python::NoPip("py".into())), "python", NOTE, &["py has no working pip", "`py -m ensurepip`"]),
    (|f| f.python = Ok(Python::Missing(vec!["a".into(), "b".into()])), "python", NOTE, &["a and b not found", "LOQUAT_PYTHON="]),
    (|f| f.terminal.no_color = true, "terminal", OK, &["NO_COLOR"]),
    (|f| f.terminal.is_terminal = false, "terminal", OK, &["not a terminal"]),
    (|f| f.terminal.term = Some("dumb".into()), "terminal", OK, &["dumb"]),
];

fn absent() -> Probe {
    Probe::Unavailable {
        why: "No driver.".to_owned(),
        remedy: "Install it.".to_owned(),
    }
}

#[test]
fn each_change_affects_only_its_check() {
    for (change, check, severity, words) in CASES {
        let mut facts = healthy();
        change(&mut facts);
        let findings = findings(&facts);
        let finding = findings.iter().find(|at| at.check == *check);
        let finding = finding.unwrap_or_else(|| panic!("no {check}"));
        assert_eq!(finding.severity, *severity, "{finding:?}");
        assert_eq!(finding.remedy.is_some(), *severity != OK, "{finding:?}");
        let remedy = finding.remedy.clone().unwrap_or_default();
        let text = format!("{} {remedy}", finding.what);
        for word in *words {
            assert!(text.contains(word), "no {word:?} in {text:?}");
        }
        assert!(*severity == OK || remedy.ends_with('.'), "{remedy:?}");
        let others = findings.iter().filter(|at| at.check != *check);
        for other in others {
            assert_eq!(other.severity, OK, "{other:?} because of {finding:?}");
        }
    }
}

#[cfg(not(any(windows, target_os = "macos")))]
#[test]
fn non_utf8_locale_is_noted() {
    for (locale, severity) in [
        (None, NOTE),
        (Some("C"), NOTE),
        (Some("de_DE.ISO-8859-1"), NOTE),
        (Some("de_DE.utf8"), OK),
        (Some("en_US.UTF-8"), OK),
    ] {
        let facts = Terminal {
            locale: locale.map(str::to_owned),
            ..healthy().terminal
        };
        assert_eq!(terminal(&facts).severity, severity, "{locale:?}");
    }
}
