//! What an answer cost, in a line on stderr.

use std::io::IsTerminal;

use loquat_engine::FinishReason;

use crate::stream::{End, Heard};
use crate::terminal::remark;

/// For terminals and the curious; that an answer whose form was asked for is not whole is for
/// everybody. `room` is the most tokens that prompt and answer could have together.
pub fn close(heard: &Heard, room: usize, is_held: bool, verbose: bool) {
    let cut = |end: &End| end.reason == FinishReason::Length;
    if is_held && heard.end.as_ref().is_some_and(cut) {
        tracing::warn!("the answer was cut at the limit (--max-tokens), so it is not whole");
    }
    if verbose || std::io::stderr().is_terminal() {
        match &heard.end {
            Some(end) => remark(&line(end, room, verbose)),
            None => remark("stopped"),
        }
    }
}

fn line(end: &End, room: usize, verbose: bool) -> String {
    let End {
        reason,
        usage,
        timings,
        seed,
    } = end;
    let plural = match usage.completion_tokens {
        1 => "",
        _ => "s",
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
    if *reason == FinishReason::Length {
        let full = usage.prompt_tokens + usage.completion_tokens >= room;
        parts.push(if full {
            "stopped because the context is full".to_owned()
        } else {
            "stopped at the limit (--max-tokens)".to_owned()
        });
    }
    if verbose {
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
