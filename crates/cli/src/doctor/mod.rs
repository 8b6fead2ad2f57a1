//! `loquat doctor`: diagnoses problems of this installation and suggests fixes.
//!
//! [`facts`] probes the system, each probe on its own thread with one deadline for all, so that a
//! dead file system or a silent host costs seconds. [`checks`] turns the facts into findings; it
//! probes nothing, so that tests can supply any facts.

mod checks;
mod directory;
mod facts;
mod network;
mod python;

use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::terminal::{print, print_json, stdout_is_fancy};
use checks::{Finding, Severity, findings};
use facts::Facts;

pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    // A variable that is set but empty counts as not set.
    let config = args.config.clone();
    let config = config.filter(|path| !path.as_os_str().is_empty());
    let findings = findings(&Facts::gather(config));
    if args.json {
        print_json(&as_json(&findings))?;
    } else {
        print(&as_text(&findings, stdout_is_fancy()))?;
    }
    match problems(&findings) {
        0 => Ok(()),
        count => Err(CliError::Problems(count)),
    }
}

fn problems(findings: &[Finding]) -> usize {
    let bad = |finding: &&Finding| finding.severity == Severity::Problem;
    findings.iter().filter(bad).count()
}

fn as_json(findings: &[Finding]) -> Value {
    let checks = findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "verdict": finding.severity.name(),
            "what": finding.what,
            "remedy": finding.remedy,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "healthy": problems(findings) == 0,
        "checks": checks.collect::<Vec<Value>>(),
    })
}

/// Indent of the third column.
const INDENT: usize = 20;

fn as_text(findings: &[Finding], fancy: bool) -> String {
    let lines = findings.iter().map(|finding| {
        let severity = format!("{:<8}", finding.severity.name());
        let severity = if fancy {
            format!("\x1b[{}m{severity}\x1b[0m", finding.severity.colour())
        } else {
            severity
        };
        let line = format!("{:<12}{severity}{}\n", finding.check, finding.what);
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
    fn remedies_follow_their_findings() {
        let plain = "build       ok      loquat 1\n\
                     cache       problem /c cannot be written\n                    \
                     Choose another directory.\n";
        assert_eq!(as_text(&findings(), false), plain);
        let fancy = as_text(&findings(), true);
        assert!(fancy.contains("\x1b[31mproblem \x1b[0m/c"), "{fancy:?}");
    }

    #[test]
    fn json_has_all_findings() {
        let report = as_json(&findings());
        assert_eq!(report["healthy"], false);
        assert_eq!(report["checks"][0]["remedy"], Value::Null);
        assert_eq!(report["checks"][1]["verdict"], "problem");
    }
}
