//! Sequences that are exported and imported as ranges and a tail.

use super::windows::cuts_equal_fresh;
use super::{Subject, TestSession};
use crate::{Emit, PrefixCopy, SequenceId, SessionError, SessionOptions};

/// Several times the windows of tiny models.
const LONG: usize = 400;
const LONGEST_ROW: usize = 64;

fn open(subject: &Subject) -> Result<TestSession, String> {
    let options = SessionOptions {
        max_step_tokens: LONGEST_ROW,
        ..SessionOptions::default()
    };
    TestSession::open(subject, &options)
}

/// Two sessions of a model with tails, if the backend exports them.
fn open_two(subject: &Subject) -> Result<Option<[TestSession; 2]>, String> {
    let probe = open(subject)?;
    let Ok(fingerprint) = probe.session.range_fingerprint() else {
        return Ok(None);
    };
    if probe.session.capabilities().prefix_copy != PrefixCopy::AtSnapshots {
        return Ok(None);
    }
    let other = open(subject)?;
    if other.session.range_fingerprint() != Ok(fingerprint) {
        return Err("two sessions of one model have different fingerprints".to_owned());
    }
    Ok(Some([probe, other]))
}

fn error<T>(what: &str, result: Result<T, SessionError>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Computes a sequence.
fn compute(probe: &mut TestSession, tokens: &[u32]) -> Result<SequenceId, String> {
    let sequence = probe.create()?;
    for row in tokens.chunks(LONGEST_ROW) {
        probe.logits(sequence, row, 0)?;
    }
    Ok(sequence)
}

/// Copies a sequence's ranges of `step` positions up to `len`, with their media, into a new sequence
/// of the other session.
pub(super) fn copy_ranges(
    [probe, other]: &mut [TestSession; 2],
    (source, len): (SequenceId, usize),
    step: usize,
) -> Result<SequenceId, String> {
    let imported = other.create()?;
    for start in (0..len).step_by(step) {
        let (end, mut bytes) = ((start + step).min(len), Vec::new());
        let exported = probe.session.export_range(source, start..end, &mut bytes);
        error("export_range", exported)?;
        let exported = probe
            .session
            .export_range_media(source, start..end, &mut bytes);
        error("export_range_media", exported)?;
        let appended = other.session.import_range(imported, end - start, &bytes);
        error("import_range", appended)?;
    }
    Ok(imported)
}

/// The parts of the tail at a length, of about `most` bytes.
pub(super) fn parts(
    probe: &TestSession,
    (source, len): (SequenceId, usize),
    most: usize,
) -> Result<Vec<Vec<u8>>, String> {
    let (mut parts, mut offset) = (Vec::new(), 0);
    loop {
        let mut part = vec![7];
        let range = offset..offset + most;
        let exported = probe.session.export_tail(source, len, range, &mut part);
        let is_last = error("export_tail", exported)?;
        part.remove(0);
        offset += part.len();
        if !is_last && part.is_empty() {
            return Err("a part of a tail is empty".to_owned());
        }
        parts.push(part);
        if is_last {
            return Ok(parts);
        }
    }
}

pub fn imported_equal_computed(subject: &Subject) -> Result<(), String> {
    let Some(mut sessions) = open_two(subject)? else {
        return Ok(());
    };
    let longest = LONG.min(sessions[0].session.capabilities().max_context - 8);
    for (len, step, most) in [(1, 64, 1 << 20), (90, 64, 5000), (longest, 50, 1 << 12)] {
        let len = len.min(longest);
        let (tokens, tail) = (sessions[0].tokens(70, len), sessions[0].tokens(71, 3));
        let source = compute(&mut sessions[0], &tokens)?;
        let imported = copy_ranges(&mut sessions, (source, len), step)?;
        let parts = parts(&sessions[0], (source, len), most)?;
        let [probe, other] = &mut sessions;
        for (at, part) in (1..).zip(&parts) {
            check_incomplete(other, imported)?;
            let complete = error("import_tail", other.session.import_tail(imported, part))?;
            if complete != (at == parts.len()) {
                return Err(format!("{complete} after part {at} of {}", parts.len()));
            }
        }
        if other.session.reusable(imported, len) != Ok(len) {
            return Err("an imported sequence cannot be cut at its end".to_owned());
        }
        let held = |session: &TestSession, id| error("held", session.session.held(&[id]));
        let (computed, copied) = (held(probe, source)?, held(other, imported)?);
        if copied.kv_tokens > computed.kv_tokens || copied.states > computed.states {
            return Err(format!("{copied:?} imported, {computed:?} exported"));
        }
        cuts_equal_fresh(other, (imported, &tokens), &tail)?;
        for token in &tail {
            let expected = probe.logits(source, &[*token], 1)?;
            let found = other.logits(imported, &[*token], 1)?;
            probe.same(&format!("an imported tail at {len}"), &expected, &found)?;
        }
        let (before, last) = (len + tail.len() - 1, &tail[tail.len() - 1..]);
        // The last row can be undone, as any other.
        error("truncate", other.session.truncate(imported, before))?;
        error("truncate", probe.session.truncate(source, before))?;
        let expected = probe.logits(source, last, 1)?;
        let found = other.logits(imported, last, 1)?;
        probe.same("an undone row", &expected, &found)?;
        // The tail before the last row is left, too.
        tail_before_the_end(&mut sessions, (source, before), last)?;
        tail_before_the_end(&mut sessions, (source, 1), last)?;
        let [probe, other] = &mut sessions;
        error("release", probe.session.release(source))?;
        error("release", other.session.release(imported))?;
    }
    let [_, other] = &sessions;
    let memory = other.session.memory();
    if memory.kv_in_use > 0 || memory.states_in_use > 0 {
        return Err(format!("released sequences hold memory: {memory:?}"));
    }
    Ok(())
}

/// The tail at a length before the end of a sequence, which continues with `next` from there.
fn tail_before_the_end(
    sessions: &mut [TestSession; 2],
    (source, len): (SequenceId, usize),
    next: &[u32],
) -> Result<(), String> {
    let is_left = |session: &TestSession| session.session.reusable(source, len) == Ok(len);
    if !is_left(&sessions[0]) {
        let exported = sessions[0]
            .session
            .export_tail(source, len, 0..100, &mut Vec::new());
        return match exported {
            Err(_) => Ok(()),
            Ok(_) => Err(format!("a tail at {len} is exported, which is not left")),
        };
    }
    let imported = copy_ranges(sessions, (source, len), 64)?;
    for part in parts(&sessions[0], (source, len), 1 << 20)? {
        error(
            "import_tail",
            sessions[1].session.import_tail(imported, &part),
        )?;
    }
    let [probe, other] = sessions;
    let fork = error("fork", probe.session.fork(source, len))?;
    let expected = probe.logits(fork, next, 1)?;
    let found = other.logits(imported, next, 1)?;
    error("release", probe.session.release(fork))?;
    error("release", other.session.release(imported))?;
    probe.same(
        &format!("a tail at {len}, before the end"),
        &expected,
        &found,
    )
}

/// A sequence without its tail is not used.
fn check_incomplete(probe: &mut TestSession, sequence: SequenceId) -> Result<(), String> {
    let token = probe.tokens(72, 1);
    let refused = Some(SessionError::MissingTail(sequence));
    let stepped = probe.try_step(&[(sequence, &token, Emit::Nothing)])?;
    if stepped[0] != refused {
        return Err(format!("a row without a tail: {:?}", stepped[0]));
    }
    let len = error("len", probe.session.len(sequence))?;
    if probe.session.reusable(sequence, len) != Ok(0) || probe.session.fork(sequence, len).is_ok() {
        return Err("a sequence without its tail can be forked".to_owned());
    }
    if probe.session.export(sequence).err() != refused {
        return Err("a sequence without its tail is exported".to_owned());
    }
    let exported = probe
        .session
        .export_tail(sequence, len, 0..100, &mut Vec::new());
    if exported.err() != refused {
        return Err("a missing tail is exported".to_owned());
    }
    Ok(())
}

pub fn wrong_tails_are_refused(subject: &Subject) -> Result<(), String> {
    let Some(mut sessions) = open_two(subject)? else {
        return Ok(());
    };
    let tokens = sessions[0].tokens(73, 40);
    let source = compute(&mut sessions[0], &tokens)?;
    let whole = parts(&sessions[0], (source, 40), 1 << 20)?.concat();
    let [probe, other] = &mut sessions;
    let computed = compute(other, &tokens)?;
    if other.session.import_tail(computed, &[]).is_ok() {
        return Err("a computed sequence takes a tail".to_owned());
    }
    let mut range = Vec::new();
    let exported = probe.session.export_range(source, 0..10, &mut range);
    error("export_range", exported)?;
    if other.session.import_range(computed, 10, &range).is_ok() {
        return Err("a computed sequence takes a range".to_owned());
    }
    let beyond = whole.len() + 1;
    let exported = probe
        .session
        .export_tail(source, 40, beyond..beyond + 100, &mut range);
    if exported.is_ok() {
        return Err("a tail is exported beyond its end".to_owned());
    }
    // It can be released at any point, and cut to nothing.
    for is_cut in [false, true] {
        let imported = copy_ranges(&mut sessions, (source, 40), 64)?;
        let [probe, other] = &mut sessions;
        let mut part = Vec::new();
        let exported = probe.session.export_tail(source, 40, 0..1, &mut part);
        error("export_tail", exported)?;
        error("import_tail", other.session.import_tail(imported, &part))?;
        let too_long = [&whole[..], &[0; 4]].concat();
        if other.session.import_tail(imported, &too_long).is_ok() {
            return Err("a tail beyond its end is imported".to_owned());
        }
        if is_cut {
            error("truncate", other.session.truncate(imported, 0))?;
            let found = other.logits(imported, &tokens, 1)?;
            let fresh = other.create()?;
            let expected = other.logits(fresh, &tokens, 1)?;
            other.same("cut to nothing", &expected, &found)?;
        }
        error("release", other.session.release(imported))?;
    }
    Ok(())
}
