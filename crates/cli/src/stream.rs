//! A generation, printed as it comes.

use std::io::IsTerminal;

use loquat_engine::{Event, FinishReason, Generation, Timings, Usage};

use crate::error::CliError;
use crate::terminal::{print, remark, tame};
use crate::wait::{Interrupts, Next};

/// What was printed, and how it ended.
pub struct Printed {
    pub text: String,
    pub interrupted: bool,
}

/// Prints until the generation ends or is interrupted, then says what it cost. `room` is the
/// most tokens that prompt and answer could have together.
pub fn show(
    mut generation: Generation,
    interrupts: &Interrupts,
    room: usize,
    verbose: bool,
) -> Result<Printed, CliError> {
    let mut text = String::new();
    loop {
        match interrupts.next(&mut generation) {
            Next::Event(Event::Tokens { text: piece, .. }) => {
                speak(&piece)?;
                text.push_str(&piece);
            }
            Next::Event(Event::PromptLogprobs(_)) => {}
            Next::Event(Event::Finished {
                reason,
                text: rest,
                usage,
                timings,
                seed,
            }) => {
                speak(&rest)?;
                text.push_str(&rest);
                finish_line(&text)?;
                let limit = (reason == FinishReason::Length).then(|| {
                    match usage.prompt_tokens + usage.completion_tokens < room {
                        true => "stopped at the limit (--max-tokens)",
                        false => "stopped because the context is full",
                    }
                });
                let seed = verbose.then_some(seed);
                close(verbose, &closing_line(limit, &usage, &timings, seed));
                return Ok(Printed {
                    text,
                    interrupted: false,
                });
            }
            Next::Event(Event::Failed(error)) => {
                finish_line(&text)?;
                return Err(error.into());
            }
            Next::Interrupted | Next::End => {
                finish_line(&text)?;
                close(verbose, "stopped");
                return Ok(Printed {
                    text,
                    interrupted: true,
                });
            }
        }
    }
}

/// Untouched into a file or a pipe, tame on a terminal.
fn speak(text: &str) -> Result<(), CliError> {
    match std::io::stdout().is_terminal() {
        true => print(&tame(text)),
        false => print(text),
    }
}

/// The shell's prompt belongs on a line of its own.
fn finish_line(text: &str) -> Result<(), CliError> {
    if text.ends_with('\n') {
        Ok(())
    } else {
        print("\n")
    }
}

fn close(verbose: bool, line: &str) {
    if verbose || std::io::stderr().is_terminal() {
        remark(line);
    }
}

fn closing_line(
    limit: Option<&str>,
    usage: &Usage,
    timings: &Timings,
    seed: Option<u64>,
) -> String {
    let plural = if usage.completion_tokens == 1 {
        ""
    } else {
        "s"
    };
    let mut parts = vec![
        format!("{} token{plural}", usage.completion_tokens),
        format!("first after {:.2} s", timings.first_token.as_secs_f64()),
    ];
    let decoded = usage.completion_tokens.saturating_sub(1);
    if decoded > 0 && !timings.decode.is_zero() {
        let speed = decoded as f64 / timings.decode.as_secs_f64();
        parts.push(format!("{speed:.1} tokens/s"));
    }
    parts.extend(limit.map(str::to_owned));
    if let Some(seed) = seed {
        let computed = usage.prompt_tokens - usage.cached_tokens;
        let prompt = computed as f64 / timings.first_token.as_secs_f64();
        let cached = match usage.cached_tokens {
            0 => String::new(),
            cached => format!(" ({cached} kept from before)"),
        };
        parts.push(format!(
            "prompt {} tokens at {prompt:.0} tokens/s{cached}",
            usage.prompt_tokens
        ));
        parts.push(format!("seed {seed}"));
    }
    parts.join(" · ")
}
