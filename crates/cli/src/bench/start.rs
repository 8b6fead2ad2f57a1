//! What a person waits for who types a command: from there to the first token, with the model's
//! file in the page cache.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use loquat_server::config::units;
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::report::{Report, Table, number};
use super::stats::median;
use super::work::{Work, bare};
use super::{Scenario, warm_up};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::progress::ShareBar;

const PROMPT: &str = "hi";

pub struct Start {
    rounds: usize,
    /// Of `loquat`.
    arguments: Vec<String>,
}

/// One command's life.
struct Run {
    first_token: Duration,
    prompt_tokens: usize,
}

impl Start {
    pub fn new(args: &BenchArgs) -> Self {
        Self {
            rounds: args.rounds(5),
            arguments: arguments(args),
        }
    }

    fn run_once(&self) -> Result<Run, CliError> {
        run(&self.arguments).map_err(CliError::Start)
    }
}

/// A command that opens the same model the same way, and asks for one token.
fn arguments(args: &BenchArgs) -> Vec<String> {
    let session = &args.session;
    let precision = session.precision.to_possible_value();
    let kv_format = session.kv_format;
    let flags = [
        ("--backend", Some(session.backend.clone())),
        ("--context", session.context.map(|it| it.to_string())),
        ("--memory", session.memory.map(units::budget_text)),
        ("--threads", session.threads.map(|it| it.to_string())),
        ("--precision", precision.map(|it| it.get_name().to_owned())),
        ("--kv-format", kv_format.map(|it| it.name().to_owned())),
        ("--max-tokens", Some("1".to_owned())),
        ("--output", Some("events".to_owned())),
    ];
    let model = args.model.as_deref();
    let words = ["run"].into_iter().chain(model).chain([PROMPT]);
    let words = words.map(str::to_owned).chain(args.source.flags());
    let flags = flags.into_iter().filter_map(|(name, value)| {
        let value = value?;
        Some([name.to_owned(), value])
    });
    words.chain(flags.flatten()).collect()
}

/// Runs the command to its end. Its first line comes with its first token, or, where that alone
/// is no text yet, tells that it was the last.
fn run(arguments: &[String]) -> io::Result<Run> {
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (mut lines, mut said) = (BufReader::new(stdout), String::new());
    lines.read_line(&mut said)?;
    let first_token = started.elapsed();
    lines.read_to_string(&mut said)?;
    let ended = child.wait_with_output()?;
    match prompt_tokens(&said) {
        Some(prompt_tokens) if ended.status.success() => Ok(Run {
            first_token,
            prompt_tokens,
        }),
        _ => {
            let complaint = String::from_utf8_lossy(&ended.stderr);
            Err(io::Error::other(complaint.trim().to_owned()))
        }
    }
}

/// As the command's last event tells.
fn prompt_tokens(events: &str) -> Option<usize> {
    let last: Value = serde_json::from_str(events.lines().last()?).ok()?;
    last["usage"]["prompt_tokens"].as_u64()?.try_into().ok()
}

impl Scenario for Start {
    fn name(&self) -> &'static str {
        "start"
    }

    fn sequences(&self) -> usize {
        1
    }

    /// What does not fit is the command's to refuse.
    fn check(&self, _: &Capabilities, _: &Memory) -> Result<(), CliError> {
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        let bar = ShareBar::start("measuring");
        // The first brings the file into memory, and is not counted.
        let tokens = self.run_once()?.prompt_tokens;
        let mut session = warm_up(session)?;
        let mut prompts_ms = Vec::new();
        for _ in 0..self.rounds {
            let speed = bare(session.as_mut(), Work::Prompt { tokens })?;
            prompts_ms.push(tokens as f64 / speed * 1e3);
        }
        // What it holds is not there when people start a command.
        drop(session);
        let mut starts_ms = Vec::new();
        for round in 0..self.rounds {
            starts_ms.push(self.run_once()?.first_token.as_secs_f64() * 1e3);
            bar.set((round + 1) as f32 / self.rounds as f32);
        }
        drop(bar);
        Ok(report(tokens, &starts_ms, &prompts_ms))
    }
}

fn report(tokens: usize, starts_ms: &[f64], prompts_ms: &[f64]) -> Report {
    let (start, prompt) = (median(starts_ms), median(prompts_ms));
    let mut table = Table::new(&["", "ms"]);
    for (name, value) in [
        ("command to first token".to_owned(), start),
        (format!("its prompt of {tokens} tokens"), prompt),
        ("the start itself".to_owned(), start - prompt),
    ] {
        table.row(vec![name, number(value, 1)]);
    }
    Report {
        heading: format!("starts: {}, medians", starts_ms.len()),
        text: table.text(),
        json: json!({
            "prompt_tokens": tokens,
            "first_token_ms": start,
            "first_token_ms_rounds": starts_ms,
            "prompt_ms": prompt,
            "prompt_ms_rounds": prompts_ms,
            "start_ms": start - prompt,
        }),
        figure: None,
        failures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_tells_the_prompts_length() {
        let events = "{\"type\":\"text\",\"text\":\"a\"}\n\
                      {\"type\":\"finished\",\"usage\":{\"prompt_tokens\":31}}\n";
        for (events, expected) in [(events, Some(31)), ("", None), ("{}\n", None), ("x", None)] {
            assert_eq!(prompt_tokens(events), expected, "{events:?}");
        }
    }

    #[test]
    fn the_start_is_what_the_prompt_does_not_explain() {
        let report = report(31, &[130.0, 110.0, 120.0], &[21.0, 19.0, 20.0]);
        assert_eq!(report.json["first_token_ms"], 120.0);
        assert_eq!(report.json["start_ms"], 100.0);
        assert!(report.text.contains("its prompt of 31 tokens"));
    }
}
