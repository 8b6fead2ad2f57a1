//! The `/stats` report.

use loquat::Finish;
use loquat_engine::{Engine, Stats};

use crate::terminal::bytes;

/// One line per topic. `last` is the last complete answer, `room` the tokens available to a prompt
/// and its answer.
pub fn stats(engine: &Engine, last: Option<&Finish>, room: usize) -> String {
    lines(&engine.stats(), last, room).join("\n")
}

fn lines(stats: &Stats, last: Option<&Finish>, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(Finish { usage, timings, .. }) = last {
        let decoded = usage.completion_tokens.saturating_sub(1);
        let computed = usage.prompt_tokens - usage.cached_tokens;
        let answer = speed(decoded, timings.decode.as_secs_f64());
        let prompt = speed(computed, timings.first_token.as_secs_f64());
        lines.push(format!(
            "last answer  {} tokens{answer}; prompt {} tokens, {} cached{prompt}",
            usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens
        ));
        let used = usage.prompt_tokens + usage.completion_tokens;
        let share = 100.0 * used as f64 / room.max(1) as f64;
        lines.push(format!(
            "context      {used} of {room} tokens ({share:.0}%)"
        ));
    } else {
        lines.push(format!("context      {room} tokens"));
    }
    let totals = &stats.totals;
    lines.push(format!(
        "all answers  {} tokens; prompts {} tokens, {} cached",
        totals.completion_tokens, totals.prompt_tokens, totals.cached_tokens
    ));
    let cache = &stats.cache;
    lines.push(format!(
        "prefix cache {} sequences, {}; {} of {} prompts hit it",
        cache.entries,
        bytes(cache.bytes),
        cache.hits,
        cache.hits + cache.misses
    ));
    let memory = &stats.memory;
    let kv = memory.kv_in_use as u64 * memory.kv_bytes_per_token;
    let most = memory.kv_capacity as u64 * memory.kv_bytes_per_token;
    lines.push(format!(
        "memory       weights {}; KV {} of at most {}",
        bytes(memory.weight_bytes),
        bytes(kv),
        bytes(most)
    ));
    lines
}

/// Empty if too little was measured.
fn speed(tokens: usize, seconds: f64) -> String {
    if tokens > 0 && seconds > 0.0 {
        format!(" at {:.1} tokens/s", tokens as f64 / seconds)
    } else {
        String::new()
    }
}
