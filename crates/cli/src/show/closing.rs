//! What stderr says about an answer: that its limit was reduced, and a summary.

use std::io::IsTerminal;
use std::num::NonZeroUsize;

use loquat::{Answer, Finish, FinishReason};
use loquat_engine::DraftCounts;

use super::Transcript;
use crate::terminal::remark;

/// Warns if the context has less room than `--max-tokens`. Returns whether it has.
pub fn warn_of_reduced_limit(requested: Option<NonZeroUsize>, answer: &Answer) -> bool {
    let limit = answer.max_tokens();
    let reduced = requested.filter(|requested| requested.get() > limit);
    if let Some(requested) = reduced {
        tracing::warn!(
            "--max-tokens is reduced from {requested} to {limit}, the room in the context"
        );
    }
    reduced.is_some()
}

/// Prints the summary on terminals and with `verbose`. Always warns if a constrained answer was
/// truncated. `token_limit` bounds prompt and answer together.
pub fn print_summary(
    transcript: &Transcript,
    token_limit: usize,
    is_constrained: bool,
    verbose: bool,
) {
    let finish = transcript.finish.as_ref();
    if is_constrained && finish.is_some_and(|finish| finish.reason == FinishReason::Length) {
        tracing::warn!("the answer is incomplete: it reached the limit (--max-tokens)");
    }
    if verbose || std::io::stderr().is_terminal() {
        match finish {
            Some(finish) => remark(&line(finish, token_limit, verbose)),
            None => remark("stopped"),
        }
    }
}

fn line(finish: &Finish, token_limit: usize, verbose: bool) -> String {
    let Finish {
        reason,
        usage,
        timings,
        seed,
    } = finish;
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
        let full = usage.prompt_tokens + usage.completion_tokens >= token_limit;
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
            cached => format!(" ({cached} cached)"),
        };
        parts.push(format!(
            "prompt {} tokens at {prompt:.0} tokens/s{cached}",
            usage.prompt_tokens
        ));
        let DraftCounts { tokens, accepted } = timings.drafts;
        if tokens > 0 {
            parts.push(format!("{accepted} of {tokens} drafted tokens accepted"));
        }
        parts.push(format!("seed {seed}"));
    }
    parts.join(" · ")
}
