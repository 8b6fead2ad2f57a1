//! The test command: runs every CI check in stages and prints how long each takes.

mod background;
mod build;
mod clients;
mod cuda;
mod deny;
mod docs;
mod fuzz;
mod goldens;
mod judges;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::{arm64, command, tidy, tools};
use background::Installs;
use build::Build;

/// A remark of a stage that passed, such as a part it could not check.
type Note = Option<String>;

type Install = fn(&Path) -> Result<(), Error>;

struct Stage {
    name: &'static str,
    about: &'static str,
    /// Downloads packages, while the stages before this one compile.
    install: Option<Install>,
    run: fn(&Context) -> Result<Note, Error>,
    /// Whether it runs only with `--full` or when `--only` names it.
    is_long: bool,
}

/// What every stage may read.
struct Context<'a> {
    root: &'a Path,
    build: &'a Build,
    is_full: bool,
}

const SHORT: Stage = Stage {
    name: "",
    about: "",
    install: None,
    run: |_| Ok(None),
    is_long: false,
};

/// In order of cost, so that a small mistake is reported before anything is compiled. The stages
/// from `test` on share one build.
const STAGES: &[Stage] = &[
    Stage {
        name: "fmt",
        about: "cargo fmt --all --check",
        run: fmt,
        ..SHORT
    },
    Stage {
        name: "tidy",
        about: "the repository's rules",
        run: |context| tidy::run(context.root).map(|()| None),
        ..SHORT
    },
    Stage {
        name: "clippy",
        about: "cargo clippy with warnings as errors, without and with the MLX backend",
        run: clippy,
        ..SHORT
    },
    Stage {
        name: "deny",
        about: "advisories, licences, bans and sources of the dependencies",
        run: deny::run,
        ..SHORT
    },
    Stage {
        name: "docs",
        about: "cargo doc with warnings as errors; the crates can be published",
        run: docs::run,
        ..SHORT
    },
    Stage {
        name: "test",
        about: "cargo test --workspace, with the MLX backend on a downloaded MLX",
        install: Some(tools::install_ffmpeg),
        run: cargo_test,
        ..SHORT
    },
    Stage {
        name: "cuda",
        about: "the CUDA backend with its kernels, compiled for every architecture",
        install: Some(cuda::install),
        run: cuda::run,
        ..SHORT
    },
    Stage {
        name: "goldens",
        about: "the committed goldens on every backend, and the support matrix they give",
        run: goldens::run,
        ..SHORT
    },
    Stage {
        name: "judges",
        about: "reference implementations: templates, formats, structured output, conversion",
        install: Some(judges::install),
        run: judges::run,
        ..SHORT
    },
    Stage {
        name: "clients",
        about: "real clients and a browser against a real server",
        install: Some(clients::install),
        run: clients::run,
        ..SHORT
    },
    Stage {
        name: "fuzz",
        about: "each fuzz target for a bounded time",
        run: fuzz::run,
        is_long: true,
        ..SHORT
    },
    Stage {
        name: "arm64",
        about: "the NEON kernels, emulated; on x86-64 Debian, as root",
        run: |context| arm64::run(context.root, &[]).map(|()| None),
        is_long: true,
        ..SHORT
    },
];

fn fmt(context: &Context) -> Result<Note, Error> {
    tools::require_component("fmt", "rustfmt", "rustfmt")?;
    command::cargo(context.root, &["fmt", "--all", "--check"]).run()?;
    Ok(None)
}

fn clippy(context: &Context) -> Result<Note, Error> {
    tools::require_component("clippy", "clippy", "rust-clippy")?;
    let lint = |args: &[&str]| {
        let args = [
            &["clippy", "--all-targets"],
            args,
            &["--", "-D", "warnings"],
        ]
        .concat();
        command::cargo(context.root, &args)
    };
    lint(&["--workspace"]).run()?;
    let with_mlx = lint(&["--package", "loquat-mlx", "--features", build::FEATURES]);
    context.build.environment(with_mlx)?.run()?;
    Ok(None)
}

/// All tests in one build with every feature, then the MLX crate's tests without MLX, which is
/// what most people build.
fn cargo_test(context: &Context) -> Result<Note, Error> {
    let all = context.build.cargo_test(&["--no-fail-fast"])?;
    let mut all = all.env(FULL_VARIABLE, if context.is_full { "1" } else { "" });
    if tools::has_ffmpeg(context.root) {
        all = all.env(FFMPEG_VARIABLE, "1");
    }
    let all = all.run();
    let without = ["test", "--workspace", "--test", "without_mlx"];
    let without = command::cargo(context.root, &without).run();
    all.and(without)?;
    Ok(None)
}

/// When set, tests of videos fail without `ffmpeg`.
const FFMPEG_VARIABLE: &str = "LOQUAT_REQUIRE_FFMPEG";
/// When `1`, tests that have a long form run it.
const FULL_VARIABLE: &str = "LOQUAT_FULL";

/// Runs the chosen stages, all of them even after one fails, and prints a summary.
pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    let Some(Choice { chosen, is_full }) = choose(args)? else {
        for stage in STAGES {
            let when = if stage.is_long { " (with --full)" } else { "" };
            println!("{:<8}{}{when}", stage.name, stage.about);
        }
        return Ok(());
    };
    let build = Build::new(root);
    let context = Context {
        root,
        build: &build,
        is_full,
    };
    let mut installs = Installs::start(
        root,
        STAGES.iter().filter(|stage| chosen.contains(&stage.name)),
    );
    let reports: Vec<Report> = STAGES
        .iter()
        .map(|stage| {
            if chosen.contains(&stage.name) {
                run_stage(stage, &context, &mut installs)
            } else {
                Report::new(stage, Outcome::NotRun)
            }
        })
        .collect();
    print_summary(&reports)
}

fn run_stage(stage: &Stage, context: &Context, installs: &mut Installs) -> Report {
    println!("\n== {}: {}", stage.name, stage.about);
    let start = Instant::now();
    let installed = installs.wait(stage.name);
    let result = installed.and_then(|()| (stage.run)(context));
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

fn print_summary(reports: &[Report]) -> Result<(), Error> {
    println!();
    for report in reports {
        println!("{}", report.line());
    }
    println!("{}", verdict(reports)?);
    Ok(())
}

fn verdict(reports: &[Report]) -> Result<String, Error> {
    let named = |matches: fn(&Outcome) -> bool| -> Vec<&'static str> {
        let matching = reports.iter().filter(|report| matches(&report.outcome));
        matching.map(|report| report.stage).collect()
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

#[derive(Debug)]
struct Choice {
    chosen: Vec<&'static str>,
    is_full: bool,
}

/// The stages that `args` select; `None` for `--list`.
fn choose(args: &[String]) -> Result<Option<Choice>, Error> {
    let is_full = args.iter().any(|arg| arg == "--full");
    let mut named: Option<Vec<&'static str>> = None;
    let mut skipped = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => return Ok(None),
            "--full" => {}
            "--only" => named
                .get_or_insert_default()
                .extend(stage_names(arg, args.next())?),
            "--skip" => skipped.extend(stage_names(arg, args.next())?),
            _ => {
                let message = format!(
                    "test: unknown option `{arg}`; the options are --only, --skip, --full, --list"
                );
                return Err(Error::Usage { message });
            }
        }
    }
    let is_chosen = |stage: &&Stage| match &named {
        Some(named) => named.contains(&stage.name),
        None => is_full || !stage.is_long,
    };
    let chosen = STAGES.iter().filter(is_chosen).map(|stage| stage.name);
    let chosen: Vec<_> = chosen.filter(|name| !skipped.contains(name)).collect();
    if chosen.is_empty() {
        return Err(Error::Usage {
            message: "test: --only and --skip leave no stage to run".to_string(),
        });
    }
    Ok(Some(Choice { chosen, is_full }))
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
                .ok_or_else(|| usage(format!("got the unknown stage `{name}`")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_stages() {
        let all = [
            "fmt", "tidy", "clippy", "deny", "docs", "test", "cuda", "goldens", "judges", "clients",
        ];
        let full = [&all[..], &["fuzz", "arm64"]].concat();
        let cases: &[(&str, Option<&[&str]>)] = &[
            ("", Some(&all)),
            ("--full", Some(&full)),
            ("--only tidy", Some(&["tidy"])),
            ("--only test,fmt", Some(&["fmt", "test"])),
            (
                "--skip deny --skip docs,clients",
                Some(&["fmt", "tidy", "clippy", "test", "cuda", "goldens", "judges"]),
            ),
            ("--only tidy,fuzz --skip fuzz", Some(&["tidy"])),
            ("--only fuzz --only fmt", Some(&["fmt", "fuzz"])),
            ("--list", None),
        ];
        for (line, expected) in cases {
            let chosen = choose(&words(line)).unwrap();
            let chosen = chosen.map(|choice| choice.chosen);
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
    fn verdict_names_failed_and_unrun_stages() {
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
    fn report_line_includes_note() {
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
