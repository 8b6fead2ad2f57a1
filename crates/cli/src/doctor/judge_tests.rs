//! A machine that is well, and what is said when one thing about it is not.

use loquat::machine::MachineMemory;
use loquat_session::{Device, DeviceKind};

use super::super::folder::Remains;
use super::*;

const GB: u64 = 1_000_000_000;

fn well() -> Facts {
    let device = Device {
        kind: DeviceKind::Cpu,
        label: "cpu (8 threads)".to_owned(),
        memory_bytes: Some(32 * GB),
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
        cache: Ok(Ok(kept("/c"))),
        hub_cache: Ok(Ok(kept("/h"))),
        config: None,
        port: ("127.0.0.1:8080".parse().unwrap(), Ok(Port::Free)),
        hub: Ok(answers(200)),
        python: Ok(Python::Pip("pip 25".to_owned())),
        terminal: Terminal {
            is_terminal: true,
            locale: Some("C.UTF-8".to_owned()),
            ..Terminal::default()
        },
    }
}

fn kept(path: &str) -> Folder {
    Folder {
        path: path.into(),
        state: State::Writable,
        free_bytes: Some(100 * GB),
        foreign_owner: None,
        leftovers: Remains::default(),
    }
}

fn memory_of(facts: &mut Facts) -> &mut Memory {
    facts.memory.as_mut().unwrap()
}

fn cache_of(facts: &mut Facts) -> &mut Folder {
    facts.cache.as_mut().unwrap().as_mut().unwrap()
}

fn answers(status: u16) -> Hub {
    let name = "hub.org".to_owned();
    Hub::Answers { name, status }
}

#[test]
fn a_machine_that_is_well_needs_no_remedy() {
    for finding in judge(&well()) {
        assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
        assert_eq!(finding.remedy, None);
        assert!(!finding.what.is_empty(), "{finding:?}");
    }
    let names: Vec<_> = judge(&well()).into_iter().map(|at| at.check).collect();
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

/// What is done to the machine, the check that tells, its verdict, and words of what and remedy.
type Case = (
    fn(&mut Facts),
    &'static str,
    Verdict,
    &'static [&'static str],
);

const NOTE: Verdict = Verdict::Note;
const PROBLEM: Verdict = Verdict::Problem;
const OK: Verdict = Verdict::Ok;

#[rustfmt::skip]
const CASES: &[Case] = &[
    (|f| f.build.is_optimized = false, "build", NOTE, &["debug", "--release"]),
    (|f| f.build.commit = Some("abc123"), "build", OK, &["commit abc123"]),
    (|f| f.cpu.as_mut().unwrap().instruction_sets.truncate(1), "cpu", NOTE, &["has avx2", "lacks avx512f", "virtual machine"]),
    (|f| f.cpu.as_mut().unwrap().instruction_sets.clear(), "cpu", NOTE, &["none"]),
    (|f| f.cpu = Err(Silence), "cpu", NOTE, &["did not answer"]),
    (|f| f.cores.as_mut().unwrap().quota = Some(1.5), "cores", NOTE, &["1.5", "to 8"]),
    (|f| f.cores.as_mut().unwrap().quota = Some(8.0), "cores", OK, &["8.0"]),
    (|f| f.cores.as_mut().unwrap().cores = None, "cores", OK, &["8 threads"]),
    (|f| memory_of(f).machine.limit = Some(100 << 20), "memory", PROBLEM, &["limited to 105 MB", "container"]),
    (|f| memory_of(f).machine.available = Some(100 << 20), "memory", PROBLEM, &["available 105 MB"]),
    (|f| memory_of(f).huge_pages = Some("never".into()), "memory", NOTE, &["huge pages never", "`madvise`"]),
    (|f| memory_of(f).machine.swap = Some(2 * GB), "memory", OK, &["swap 2.0 GB"]),
    (|f| *memory_of(f) = Memory::default(), "memory", NOTE, &["does not tell", "--memory"]),
    (|f| f.backends.push(("gpu", Ok(absent()))), "gpu backend", NOTE, &["No driver.", "Install it."]),
    (|f| f.backends = vec![("gpu", Ok(absent()))], "gpu backend", PROBLEM, &["No driver.", "Install it."]),
    (|f| f.backends.push(("gpu", Err(Silence))), "gpu backend", NOTE, &["did not answer"]),
    (|f| cache_of(f).state = State::Missing, "cache", OK, &["/c; made when"]),
    (|f| cache_of(f).state = State::ReadOnly("no".into()), "cache", PROBLEM, &["/c cannot be written: no", "LOQUAT_CACHE="]),
    (|f| cache_of(f).state = State::Impossible("/c is a file".into()), "cache", PROBLEM, &["/c is a file", "LOQUAT_CACHE="]),
    (|f| cache_of(f).free_bytes = Some(GB), "cache", NOTE, &["1.0 GB free", "loquat rm"]),
    (|f| cache_of(f).free_bytes = None, "cache", OK, &["/c"]),
    (|f| cache_of(f).foreign_owner = Some(7), "cache", NOTE, &["user 7", "LOQUAT_CACHE="]),
    (|f| cache_of(f).leftovers = Remains { count: 2, bytes: GB }, "cache", NOTE, &["1.0 GB of 2 downloads", "loquat prune"]),
    (|f| f.cache = Ok(Err("no home".into())), "cache", PROBLEM, &["no home", "LOQUAT_CACHE="]),
    (|f| f.hub_cache = Ok(Err("no home".into())), "hub cache", PROBLEM, &["no home", "HF_HUB_CACHE="]),
    (|f| f.hub_cache = Err(Silence), "hub cache", NOTE, &["hangs"]),
    (|f| f.config = Some(("l.toml".into(), Ok(Ok("serves a".into())))), "config", OK, &["l.toml serves a"]),
    (|f| f.config = Some(("l.toml".into(), Ok(Err("line 3".into())))), "config", PROBLEM, &["line 3", "config check l.toml"]),
    (|f| f.config = Some(("l.toml".into(), Err(Silence))), "config", NOTE, &["did not answer"]),
    (|f| f.port.1 = Ok(Port::Loquat { version: "9".into() }), "port", OK, &["loquat 9 serves at 127.0.0.1:8080"]),
    (|f| f.port.1 = Ok(Port::Taken), "port", NOTE, &["somebody else's", "--port"]),
    (|f| f.port.1 = Ok(Port::Refused("no".into())), "port", NOTE, &["cannot be had: no", "8080"]),
    (|f| f.hub = Ok(answers(404)), "hub", OK, &["hub.org answers"]),
    (|f| f.hub = Ok(answers(503)), "hub", NOTE, &["503", "HF_ENDPOINT="]),
    (|f| f.hub = Ok(answers(429)), "hub", NOTE, &["429"]),
    (|f| f.hub = Ok(answers(401)), "hub", NOTE, &["401", "HF_TOKEN="]),
    (|f| f.hub = Ok(Hub::Silent("dns".into())), "hub", NOTE, &["dns", "run all the same"]),
    (|f| f.hub = Ok(Hub::Offline { name: "hub.org".into() }), "hub", OK, &["HF_HUB_OFFLINE"]),
    (|f| f.python = Ok(Python::NoPip("py".into())), "python", NOTE, &["py has no pip", "`py -m ensurepip`"]),
    (|f| f.python = Ok(Python::Missing(vec!["a".into(), "b".into()])), "python", NOTE, &["no a and no b", "LOQUAT_PYTHON="]),
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
fn what_is_wrong_is_told_with_its_remedy_and_nothing_else_changes() {
    for (change, check, verdict, words) in CASES {
        let mut facts = well();
        change(&mut facts);
        let findings = judge(&facts);
        let finding = findings.iter().find(|at| at.check == *check);
        let finding = finding.unwrap_or_else(|| panic!("no {check}"));
        assert_eq!(finding.verdict, *verdict, "{finding:?}");
        assert_eq!(finding.remedy.is_some(), *verdict != OK, "{finding:?}");
        let remedy = finding.remedy.clone().unwrap_or_default();
        let told = format!("{} {remedy}", finding.what);
        for word in *words {
            assert!(told.contains(word), "no {word:?} in {told:?}");
        }
        assert!(*verdict == OK || remedy.ends_with('.'), "{remedy:?}");
        let others = findings.iter().filter(|at| at.check != *check);
        for other in others {
            assert_eq!(other.verdict, OK, "{other:?} because of {finding:?}");
        }
    }
}

#[cfg(not(any(windows, target_os = "macos")))]
#[test]
fn a_locale_without_utf_8_is_noted() {
    for (locale, verdict) in [
        (None, NOTE),
        (Some("C"), NOTE),
        (Some("de_DE.ISO-8859-1"), NOTE),
        (Some("de_DE.utf8"), OK),
        (Some("en_US.UTF-8"), OK),
    ] {
        let shown = Terminal {
            locale: locale.map(str::to_owned),
            ..well().terminal
        };
        assert_eq!(terminal(&shown).verdict, verdict, "{locale:?}");
    }
}
