//! The test command: every check CI runs, stage by stage, each with its time.

mod clients;
mod deny;
mod fuzz;
mod judges;
mod mlx;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::{command, goldens, tidy, tools};

/// What a stage that passed has to add, such as a part it could not check.
type Note = Option<String>;

struct Stage {
    name: &'static str,
    about: &'static str,
    run: fn(&Path) -> Result<Note, Error>,
}

/// In order of cost, so that a small mistake is reported before anything is compiled.
const STAGES: &[Stage] = &[
    Stage {
        name: "fmt",
        about: "cargo fmt --all --check",
        run: fmt,
    },
    Stage {
        name: "tidy",
        about: "the repository's own rules",
        run: |root| tidy::run(root).map(|()| None),
    },
    Stage {
        name: "clippy",
        about: "cargo clippy --workspace --all-targets -- -D warnings",
        run: clippy,
    },
    Stage {
        name: "deny",
        about: "advisories, licences, bans and sources of the dependencies",
        run: deny::run,
    },
    Stage {
        name: "test",
        about: "cargo test --workspace --no-fail-fast",
        run: cargo_test,
    },
    Stage {
        name: "mlx",
        about: "the MLX backend on a fetched MLX: its tests, and the committed goldens",
        run: mlx::run,
    },
    Stage {
        name: "goldens",
        about: "the committed goldens, and the support matrix they show",
        run: committed_goldens,
    },
    Stage {
        name: "judges",
        about: "references that others wrote: formats, and answers held to a schema",
        run: judges::run,
    },
    Stage {
        name: "clients",
        about: "the programs people already have, against a real server",
        run: clients::run,
    },
    Stage {
        name: "fuzz",
        about: "each fuzz target for a bounded time",
        run: fuzz::run,
    },
];

fn fmt(root: &Path) -> Result<Note, Error> {
    tools::require_component("fmt", "rustfmt", "rustfmt")?;
    command::cargo(root, &["fmt", "--all", "--check"]).run()?;
    Ok(None)
}

fn clippy(root: &Path) -> Result<Note, Error> {
    tools::require_component("clippy", "clippy", "rust-clippy")?;
    let args = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    command::cargo(root, &args).run()?;
    Ok(None)
}

fn cargo_test(root: &Path) -> Result<Note, Error> {
    command::cargo(root, &["test", "--workspace", "--no-fail-fast"]).run()?;
    Ok(None)
}

fn committed_goldens(root: &Path) -> Result<Note, Error> {
    let args = ["--committed", "--check-matrix", "docs/support.md"].map(str::to_owned);
    goldens::judge(root, &args).run()?;
    Ok(None)
}

/// Runs the chosen stages, all of them even after one fails, and sums up.
pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    let Some(chosen) = choose(args)? else {
        for stage in STAGES {
            println!("{:<8}{}", stage.name, stage.about);
        }
        return Ok(());
    };
    let reports: Vec<Report> = STAGES
        .iter()
        .map(|stage| {
            if chosen.contains(&stage.name) {
                run_stage(stage, root)
            } else {
                Report::new(stage, Outcome::NotRun)
            }
        })
        .collect();
    sum_up(&reports)
}

fn run_stage(stage: &Stage, root: &Path) -> Report {
    println!("\n== {}: {}", stage.name, stage.about);
    let start = Instant::now();
    let result = (stage.run)(root);
    let time = start.elapsed();
    if let Err(error) = &result {
        println!("{error}");
    }
    println!("== {}: {:.1} s", stage.name, time.as_secs_f64());
    let outcome = match result {
        Ok(note) => Outcome::Passed { time, note },
        Err(_) => Outcome::Failed { time },
    };
    Report::new(stage, outcome)
}

struct Report {
    stage: &'static str,
    outcome: Outcome,
}

enum Outcome {
    Passed { time: Duration, note: Note },
    Failed { time: Duration },
    NotRun,
}

impl Report {
    fn new(stage: &Stage, outcome: Outcome) -> Report {
        Report {
            stage: stage.name,
            outcome,
        }
    }

    fn line(&self) -> String {
        let seconds = |time: &Duration| format!("{:>8.1} s", time.as_secs_f64());
        let text = match &self.outcome {
            Outcome::Passed { time, note: None } => format!("{}  passed", seconds(time)),
            Outcome::Passed {
                time,
                note: Some(note),
            } => format!("{}  passed; {note}", seconds(time)),
            Outcome::Failed { time } => format!("{}  FAILED", seconds(time)),
            Outcome::NotRun => format!("{:>10}  not run", "-"),
        };
        format!("{:<8}{text}", self.stage)
    }
}

fn sum_up(reports: &[Report]) -> Result<(), Error> {
    println!();
    for report in reports {
        println!("{}", report.line());
    }
    println!("{}", verdict(reports)?);
    Ok(())
}

fn verdict(reports: &[Report]) -> Result<String, Error> {
    let named = |matches: fn(&Outcome) -> bool| -> Vec<&'static str> {
        let of_kind = reports.iter().filter(|report| matches(&report.outcome));
        of_kind.map(|report| report.stage).collect()
    };
    let failed = named(|outcome| matches!(outcome, Outcome::Failed { .. }));
    if !failed.is_empty() {
        return Err(Error::Stages { stages: failed });
    }
    let skipped = named(|outcome| matches!(outcome, Outcome::NotRun));
    Ok(if skipped.is_empty() {
        "test: all stages passed".to_string()
    } else {
        format!("test: passed; not run: {}", skipped.join(", "))
    })
}

/// The stages that `args` ask for; `None` when they ask for the list.
fn choose(args: &[String]) -> Result<Option<Vec<&'static str>>, Error> {
    let mut chosen: Vec<&'static str> = STAGES.iter().map(|stage| stage.name).collect();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => return Ok(None),
            option @ ("--only" | "--skip") => {
                let names = stage_names(option, args.next())?;
                chosen.retain(|name| names.contains(name) == (option == "--only"));
            }
            _ => {
                let message =
                    format!("test: unknown option `{arg}`; known: --only, --skip, --list");
                return Err(Error::Usage { message });
            }
        }
    }
    if chosen.is_empty() {
        Err(Error::Usage {
            message: "test: --only and --skip leave no stage to run".to_string(),
        })
    } else {
        Ok(Some(chosen))
    }
}

fn stage_names(option: &str, value: Option<&String>) -> Result<Vec<&'static str>, Error> {
    let known = || STAGES.iter().map(|stage| stage.name);
    let usage = |problem: String| Error::Usage {
        message: format!(
            "test: {option} {problem}; stages: {}",
            known().collect::<Vec<_>>().join(", ")
        ),
    };
    let value = value.ok_or_else(|| usage("needs a stage".to_string()))?;
    value
        .split(',')
        .map(|name| {
            known()
                .find(|stage| *stage == name)
                .ok_or_else(|| usage(format!("does not know the stage `{name}`")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_stages() {
        let all = [
            "fmt", "tidy", "clippy", "deny", "test", "mlx", "goldens", "judges", "clients", "fuzz",
        ];
        let cases: &[(&str, Option<&[&str]>)] = &[
            ("", Some(&all)),
            ("--only tidy", Some(&["tidy"])),
            ("--only test,fmt", Some(&["fmt", "test"])),
            (
                "--skip deny --skip fuzz",
                Some(&[
                    "fmt", "tidy", "clippy", "test", "mlx", "goldens", "judges", "clients",
                ]),
            ),
            ("--only tidy,fuzz --skip fuzz", Some(&["tidy"])),
            ("--list", None),
        ];
        for (line, expected) in cases {
            let chosen = choose(&words(line)).unwrap();
            assert_eq!(chosen.as_deref(), *expected, "{line}");
        }
    }

    #[test]
    fn bad_options_are_refused_by_name() {
        for (line, named) in [
            ("--only lint", "`lint`"),
            ("--skip", "--skip needs a stage"),
            ("--fast", "`--fast`"),
            ("--only tidy --skip tidy", "no stage"),
        ] {
            let message = choose(&words(line)).unwrap_err().to_string();
            assert!(message.contains(named), "{line}: {message}");
        }
    }

    #[test]
    fn the_verdict_never_hides_a_failed_or_unrun_stage() {
        let time = Duration::from_secs(1);
        let passed = || Outcome::Passed { time, note: None };
        let verdict = |outcomes: Vec<Outcome>| {
            let stages = STAGES.iter().zip(outcomes);
            let reports: Vec<Report> = stages
                .map(|(stage, outcome)| Report::new(stage, outcome))
                .collect();
            verdict(&reports).map_err(|error| error.to_string())
        };
        assert_eq!(
            verdict(vec![passed(), passed()]),
            Ok("test: all stages passed".into())
        );
        assert_eq!(
            verdict(vec![passed(), Outcome::NotRun]),
            Ok("test: passed; not run: tidy".into())
        );
        assert_eq!(
            verdict(vec![
                Outcome::Failed { time },
                passed(),
                Outcome::Failed { time }
            ]),
            Err("test: failed stages: fmt, clippy".into())
        );
    }

    #[test]
    fn a_note_stands_beside_its_stage() {
        let outcome = Outcome::Passed {
            time: Duration::from_millis(1500),
            note: Some("advisories: NOT CHECKED".into()),
        };
        assert_eq!(
            Report::new(&STAGES[3], outcome).line(),
            "deny         1.5 s  passed; advisories: NOT CHECKED"
        );
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_string).collect()
    }
}
