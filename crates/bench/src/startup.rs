//! Time from a command to its first token, with the model's file in the page cache.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::error::BenchError;
use super::report::{Report, Table, number};
use super::stats::median;
use super::workload::{Workload, on_session};
use super::{Harness, Scenario, warm_up};

pub struct Startup {
    pub rounds: usize,
    /// A `loquat run` command for the same model that generates one token as events.
    pub run_arguments: Vec<String>,
}

/// One run of the command.
struct CommandRun {
    first_token: Duration,
    prompt_tokens: usize,
}

impl Startup {
    fn run_once(&self) -> Result<CommandRun, BenchError> {
        run(&self.run_arguments).map_err(BenchError::Startup)
    }
}

/// Runs the command to its end. Its first line arrives with its first token, or with the final
/// event if that token is not yet text.
fn run(arguments: &[String]) -> io::Result<CommandRun> {
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (mut lines, mut events) = (BufReader::new(stdout), String::new());
    lines.read_line(&mut events)?;
    let first_token = started.elapsed();
    lines.read_to_string(&mut events)?;
    let ended = child.wait_with_output()?;
    match prompt_tokens(&events) {
        Some(prompt_tokens) if ended.status.success() => Ok(CommandRun {
            first_token,
            prompt_tokens,
        }),
        _ => {
            let stderr = String::from_utf8_lossy(&ended.stderr);
            Err(io::Error::other(stderr.trim().to_owned()))
        }
    }
}

/// From the command's last event.
fn prompt_tokens(events: &str) -> Option<usize> {
    let last: Value = serde_json::from_str(events.lines().last()?).ok()?;
    last["usage"]["prompt_tokens"].as_u64()?.try_into().ok()
}

impl Scenario for Startup {
    fn name(&self) -> &'static str {
        "start"
    }

    fn sequences(&self) -> usize {
        1
    }

    /// The command itself refuses what does not fit.
    fn check(&self, _: &Capabilities, _: &Memory) -> Result<(), BenchError> {
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        // The first run brings the file into the page cache and is not counted.
        let tokens = self.run_once()?.prompt_tokens;
        let mut session = warm_up(session)?;
        let mut prompts_ms = Vec::new();
        for _ in 0..self.rounds {
            let speed = on_session(session.as_mut(), Workload::Prompt { tokens })?;
            prompts_ms.push(tokens as f64 / speed * 1e3);
        }
        // A command starts without this session in memory.
        drop(session);
        let mut starts_ms = Vec::new();
        for round in 0..self.rounds {
            starts_ms.push(self.run_once()?.first_token.as_secs_f64() * 1e3);
            harness.progress(round + 1, self.rounds);
        }
        Ok(report(tokens, &starts_ms, &prompts_ms))
    }
}

fn report(tokens: usize, starts_ms: &[f64], prompts_ms: &[f64]) -> Report {
    let (start, prompt) = (median(starts_ms), median(prompts_ms));
    let mut table = Table::new(&["", "ms"]);
    for (name, value) in [
        ("command to first token".to_owned(), start),
        (format!("prompt of {tokens} tokens"), prompt),
        ("startup".to_owned(), start - prompt),
    ] {
        table.row([name, number(value, 1)]);
    }
    Report::new(
        format!("median of {} starts", starts_ms.len()),
        table.text(),
        json!({
            "prompt_tokens": tokens,
            "first_token_ms": start,
            "first_token_ms_rounds": starts_ms,
            "prompt_ms": prompt,
            "prompt_ms_rounds": prompts_ms,
            "start_ms": start - prompt,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_length_comes_from_last_event() {
        let events = "{\"type\":\"text\",\"text\":\"a\"}\n\
                      {\"type\":\"finished\",\"usage\":{\"prompt_tokens\":31}}\n";
        for (events, expected) in [(events, Some(31)), ("", None), ("{}\n", None), ("x", None)] {
            assert_eq!(prompt_tokens(events), expected, "{events:?}");
        }
    }

    #[test]
    fn startup_excludes_the_prompt() {
        let report = report(31, &[130.0, 110.0, 120.0], &[21.0, 19.0, 20.0]);
        assert_eq!(report.json["first_token_ms"], 120.0);
        assert_eq!(report.json["start_ms"], 100.0);
        assert!(report.text.contains("prompt of 31 tokens"));
    }
}
