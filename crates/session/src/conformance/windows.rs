//! Freeing what no layer reaches changes no result.

use super::{Subject, TestSession};
use crate::{KvGroup, Reach, SequenceId, SessionError, SessionOptions};

/// Several times the windows of tiny models.
const LONG: usize = 400;
const LONGEST_ROW: usize = 64;

/// A session with windows that a long sequence leaves behind, and that sequence's length. `None` if
/// the model has none, or the session keeps everything.
fn open(subject: &Subject) -> Result<Option<(TestSession, usize)>, String> {
    let options = SessionOptions {
        max_step_tokens: LONGEST_ROW,
        ..SessionOptions::default()
    };
    let probe = TestSession::open(subject, &options)?;
    let capabilities = probe.session.capabilities();
    let length = LONG.min(capabilities.max_context - 8);
    let frees = probe.session.memory().kv_groups.free_within(length);
    Ok((frees && !capabilities.media.whole_prompt).then_some((probe, length)))
}

fn error<T>(what: &str, result: Result<T, SessionError>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Tokens that a layer of the group attends to, itself included.
fn span(group: &KvGroup) -> usize {
    match group.reach {
        Reach::All => usize::MAX,
        Reach::Window(span) | Reach::Chunk(span) => span,
    }
}

pub fn bounded_memory(subject: &Subject) -> Result<(), String> {
    let Some((mut probe, length)) = open(subject)? else {
        return Ok(());
    };
    let tokens = probe.tokens(60, length);
    let sequence = probe.create()?;
    for row in tokens.chunks(LONGEST_ROW - 7) {
        probe.logits(sequence, row, 0)?;
        let len = error("len", probe.session.len(sequence))?;
        let held = error("held", probe.session.held(&[sequence]))?.kv_tokens;
        let stated = probe.session.memory().sequence_tokens(len);
        if held > stated {
            return Err(format!("{held} held at {len} tokens, {stated} stated"));
        }
    }
    let memory = probe.session.memory();
    let everything = length.next_multiple_of(memory.kv_granularity.max(1));
    let is_less = memory.sequence_tokens(length) < everything;
    if is_less && memory.kv_in_use >= everything {
        return Err(format!("{length} tokens hold {}", memory.kv_in_use));
    }
    Ok(())
}

/// Rows of all sizes, against rows so long that nothing is freed before the last.
pub fn chunks_equal_whole(subject: &Subject) -> Result<(), String> {
    let Some((mut probe, length)) = open(subject)? else {
        return Ok(());
    };
    let options = SessionOptions {
        max_step_tokens: length,
        ..SessionOptions::default()
    };
    let mut whole = TestSession::open(subject, &options)?;
    let (tokens, next) = (probe.tokens(61, length), probe.tokens(62, 2));
    let source = whole.create()?;
    let expected = whole.logits(source, &tokens, 1)?;
    let mut later = Vec::new();
    for token in &next {
        later.push(whole.logits(source, &[*token], 1)?);
    }
    for row in [1, 5, 32, 33, LONGEST_ROW] {
        let sequence = probe.create()?;
        let mut last = Vec::new();
        for tokens in tokens.chunks(row) {
            last = probe.logits(sequence, tokens, 1)?;
        }
        probe.same(&format!("rows of {row}"), &expected, &last)?;
        for (token, expected) in next.iter().zip(&later) {
            let found = probe.logits(sequence, &[*token], 1)?;
            probe.same(&format!("decoded after rows of {row}"), expected, &found)?;
        }
        error("release", probe.session.release(sequence))?;
    }
    Ok(())
}

/// Forks around the lengths from which a window leaves positions behind.
pub fn forks_at_edges(subject: &Subject) -> Result<(), String> {
    let Some((mut probe, length)) = open(subject)? else {
        return Ok(());
    };
    let groups = probe.session.memory().kv_groups;
    let spans = groups.iter().map(span).filter(|span| *span < length);
    let mut lengths: Vec<usize> = spans
        .flat_map(|span| [span - 1, span, span + 1, 2 * span, 2 * span + 1])
        .filter(|len| *len > 0 && *len < length)
        .collect();
    lengths.push(length);
    lengths.sort_unstable();
    lengths.dedup();
    let (tokens, tail) = (probe.tokens(63, length), probe.tokens(64, 3));
    let source = probe.create()?;
    let mut forks = Vec::new();
    for len in lengths {
        let computed = error("len", probe.session.len(source))?;
        for row in tokens[computed..len].chunks(LONGEST_ROW) {
            probe.logits(source, row, 0)?;
        }
        forks.push((len, error("fork", probe.session.fork(source, len))?));
    }
    // The source is far ahead of the first forks, which still have what they reach.
    for (len, fork) in forks {
        let fresh = probe.create()?;
        let prompt: Vec<u32> = tokens[..len].iter().chain(&tail).copied().collect();
        let mut expected = Vec::new();
        for row in prompt.chunks(LONGEST_ROW) {
            expected = probe.logits(fresh, row, 1)?;
        }
        let found = probe.logits(fork, &tail, 1)?;
        probe.same(&format!("fork at {len}"), &expected, &found)?;
        for sequence in [fresh, fork] {
            error("release", probe.session.release(sequence))?;
        }
    }
    Ok(())
}

pub fn cuts_behind_windows_are_refused(subject: &Subject) -> Result<(), String> {
    let Some((mut probe, length)) = open(subject)? else {
        return Ok(());
    };
    let (tokens, tail) = (probe.tokens(65, length), probe.tokens(66, 3));
    let sequence = probe.create()?;
    for row in tokens.chunks(LONGEST_ROW) {
        probe.logits(sequence, row, 0)?;
    }
    let mut refused = 0;
    for len in (1..=length).rev() {
        let reusable = error("reusable", probe.session.reusable(sequence, len))?;
        if reusable == len {
            continue;
        }
        refused += 1;
        let expected = SessionError::NoSnapshot { len, reusable };
        if probe.session.fork(sequence, len) != Err(expected.clone()) {
            return Err(format!("a fork at {len} is not refused"));
        }
        if probe.session.truncate(sequence, len) != Err(expected) {
            return Err(format!("a cut at {len} is not refused"));
        }
    }
    // Pages are freed as a whole, when a row begins.
    let memory = probe.session.memory();
    let last_row = (length - 1) / LONGEST_ROW * LONGEST_ROW;
    let first_page = |group: &KvGroup| group.first_page(last_row, memory.kv_granularity.max(1));
    let freed = memory.kv_groups.iter().any(|group| first_page(group) > 0);
    if freed && refused == 0 {
        return Err("windows were left behind, but every length is reusable".into());
    }
    // The shortest cut but none.
    let shortest = (1..=length).find(|len| probe.session.reusable(sequence, *len) == Ok(*len));
    let shortest = shortest.ok_or("the sequence's own length is not reusable")?;
    error("truncate", probe.session.truncate(sequence, shortest))?;
    let found = probe.logits(sequence, &tail, 1)?;
    let fresh = probe.create()?;
    let prompt: Vec<u32> = tokens[..shortest].iter().chain(&tail).copied().collect();
    let mut expected = Vec::new();
    for row in prompt.chunks(LONGEST_ROW) {
        expected = probe.logits(fresh, row, 1)?;
    }
    probe.same(&format!("cut to {shortest}"), &expected, &found)
}

/// Cuts an imported sequence wherever it says it can be cut, close to its end.
pub(super) fn cuts_equal_fresh(
    probe: &mut TestSession,
    (imported, tokens): (SequenceId, &[u32]),
    tail: &[u32],
) -> Result<(), String> {
    let len = tokens.len();
    let mut cuts: Vec<usize> = (len.saturating_sub(40)..=len)
        .filter(|at| *at > 0 && probe.session.reusable(imported, *at) == Ok(*at))
        .collect();
    // The first ones need the oldest positions.
    cuts.truncate(2);
    for at in cuts {
        let fresh = probe.create()?;
        let mut expected = Vec::new();
        let prompt = [&tokens[..at], tail].concat();
        for row in prompt.chunks(LONGEST_ROW) {
            expected = probe.logits(fresh, row, 1)?;
        }
        let fork = error("fork", probe.session.fork(imported, at))?;
        let found = probe.logits(fork, tail, 1)?;
        probe.same(
            &format!("an import of {len} cut to {at}"),
            &expected,
            &found,
        )?;
        for sequence in [fresh, fork] {
            error("release", probe.session.release(sequence))?;
        }
    }
    Ok(())
}

pub fn imported_equals_exported(subject: &Subject) -> Result<(), String> {
    let Some((mut probe, length)) = open(subject)? else {
        return Ok(());
    };
    if !probe.session.capabilities().export {
        return Ok(());
    }
    let Some((mut other, _)) = open(subject)? else {
        return Err("the next session keeps everything".into());
    };
    let tail = probe.tokens(67, 3);
    for len in [length / 2, length] {
        let tokens = probe.tokens(68, len);
        let sequence = probe.create()?;
        for row in tokens.chunks(LONGEST_ROW) {
            probe.logits(sequence, row, 0)?;
        }
        let bytes = error("export", probe.session.export(sequence))?;
        let imported = error("import", other.session.import(&bytes))?;
        cuts_equal_fresh(&mut other, (imported, &tokens), &tail)?;
        // It moves on as the original does.
        for token in &tail {
            let expected = probe.logits(sequence, &[*token], 1)?;
            let found = other.logits(imported, &[*token], 1)?;
            probe.same(&format!("import of {len}"), &expected, &found)?;
        }
        let held = [
            error("held", probe.session.held(&[sequence]))?,
            error("held", other.session.held(&[imported]))?,
        ];
        if held[1].kv_tokens > held[0].kv_tokens {
            return Err(format!("an import holds more than its source: {held:?}"));
        }
        error("release", probe.session.release(sequence))?;
        error("release", other.session.release(imported))?;
    }
    Ok(())
}
