//! `loquat doctor`: what this installation is, what is wrong with it, and what to do about that.
//!
//! [`facts`] asks the system, each question on a thread of its own with one deadline for all, so
//! that a dead file system or a silent host costs seconds and not the command. [`judge`] makes of
//! the answers what a person reads; it asks nothing, so that tests can tell it anything.

mod facts;
mod folder;
mod judge;
mod network;
mod python;

use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::terminal::{print, stdout_is_fancy};
use facts::Facts;
use judge::{Finding, Verdict, judge};

pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    // A variable that is set but empty counts as not set.
    let config = args.config.clone();
    let config = config.filter(|path| !path.as_os_str().is_empty());
    let findings = judge(&Facts::gather(config));
    let text = if args.json {
        as_json(&findings)?
    } else {
        as_text(&findings, stdout_is_fancy())
    };
    print(&text)?;
    match problems(&findings) {
        0 => Ok(()),
        count => Err(CliError::Unwell(count)),
    }
}

fn problems(findings: &[Finding]) -> usize {
    let bad = |finding: &&Finding| finding.verdict == Verdict::Problem;
    findings.iter().filter(bad).count()
}

fn as_json(findings: &[Finding]) -> Result<String, CliError> {
    let checks = findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "verdict": finding.verdict.name(),
            "what": finding.what,
            "remedy": finding.remedy,
        })
    });
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "healthy": problems(findings) == 0,
        "checks": checks.collect::<Vec<Value>>(),
    });
    let text = serde_json::to_string_pretty(&report);
    let text = text.map_err(|error| CliError::Output(error.into()))?;
    Ok(format!("{text}\n"))
}

/// Where the third column begins.
const INDENT: usize = 20;

fn as_text(findings: &[Finding], fancy: bool) -> String {
    let lines = findings.iter().map(|finding| {
        let verdict = format!("{:<8}", finding.verdict.name());
        let verdict = if fancy {
            format!("\x1b[{}m{verdict}\x1b[0m", finding.verdict.colour())
        } else {
            verdict
        };
        let line = format!("{:<12}{verdict}{}\n", finding.check, finding.what);
        let remedy = finding.remedy.iter();
        let remedy = remedy.map(|remedy| format!("{:INDENT$}{remedy}\n", ""));
        line + &remedy.collect::<String>()
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> [Finding; 2] {
        [
            Finding::ok("build", "loquat 1".to_owned()),
            Finding::ok("cache", "/c cannot be written".to_owned())
                .problem("Choose another directory."),
        ]
    }

    #[test]
    fn remedies_stand_under_what_they_are_for() {
        let plain = "build       ok      loquat 1\n\
                     cache       problem /c cannot be written\n                    \
                     Choose another directory.\n";
        assert_eq!(as_text(&findings(), false), plain);
        let fancy = as_text(&findings(), true);
        assert!(fancy.contains("\x1b[31mproblem \x1b[0m/c"), "{fancy:?}");
    }

    #[test]
    fn json_tells_the_same() {
        let report: Value = serde_json::from_str(&as_json(&findings()).unwrap()).unwrap();
        assert_eq!(report["healthy"], false);
        assert_eq!(report["checks"][0]["remedy"], Value::Null);
        assert_eq!(report["checks"][1]["verdict"], "problem");
    }
}
