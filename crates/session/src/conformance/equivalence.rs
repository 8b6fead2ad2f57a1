//! A sequence's output depends on its tokens, not on how they were fed.

use super::{Subject, TestSession};
use crate::{Emit, PrefixCopy, SequenceId, SessionError, SessionOptions};

/// Longer than any page, window or chunk a tiny model uses.
const LENGTH: usize = 75;
const ONE: Emit = Emit::Logits { positions: 1 };

fn open(subject: &Subject) -> Result<TestSession, String> {
    TestSession::open(subject, &SessionOptions::default())
}

fn fresh(probe: &mut TestSession, tokens: &[u32]) -> Result<Vec<f32>, String> {
    let sequence = probe.create()?;
    let logits = probe.logits(sequence, tokens, 1)?;
    release(probe, sequence)?;
    Ok(logits)
}

fn release(probe: &mut TestSession, sequence: SequenceId) -> Result<(), String> {
    probe
        .session
        .release(sequence)
        .map_err(|error| format!("release: {error}"))
}

pub fn chunked_equals_whole(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(1, LENGTH);
    let whole = fresh(&mut probe, &tokens)?;
    for chunk in [1, 2, 7, 16, 31, 32, 33, 64] {
        let sequence = probe.create()?;
        let mut last = Vec::new();
        for tokens in tokens.chunks(chunk) {
            last = probe.logits(sequence, tokens, 1)?;
        }
        probe.same(&format!("chunks of {chunk}"), &whole, &last)?;
        release(&mut probe, sequence)?;
    }
    Ok(())
}

pub fn batched_equals_single(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let lengths = [1, 3, 17, 32, 40, 5, 2, 64, 1, 9, 12];
    let prompts: Vec<Vec<u32>> = (0..)
        .zip(lengths)
        .map(|(i, n)| probe.tokens(i + 2, n))
        .collect();
    let next = probe.tokens(99, 1);
    let mut alone = Vec::new();
    for prompt in &prompts {
        let sequence = probe.create()?;
        let first = probe.logits(sequence, prompt, 1)?;
        let second = probe.logits(sequence, &next, 1)?;
        release(&mut probe, sequence)?;
        alone.push((first, second));
    }
    let mut rows = Vec::new();
    for prompt in &prompts {
        rows.push((probe.create()?, prompt.as_slice(), ONE));
    }
    probe.step(&rows)?;
    for (row, (first, _)) in alone.iter().enumerate() {
        probe.same_row(&format!("prompt row {row}"), first, &probe.row_logits(row)?)?;
    }
    // Decoding rows beside a new prompt, in another order.
    let newcomer = probe.create()?;
    let mut mixed: Vec<_> = rows
        .iter()
        .rev()
        .map(|(id, ..)| (*id, next.as_slice(), ONE))
        .collect();
    mixed.insert(3, (newcomer, &prompts[4], ONE));
    probe.step(&mixed)?;
    probe.same_row("newcomer", &alone[4].0, &probe.row_logits(3)?)?;
    for (row, (_, second)) in alone.iter().rev().enumerate() {
        let place = if row < 3 { row } else { row + 1 };
        probe.same_row(
            &format!("decode row {row}"),
            second,
            &probe.row_logits(place)?,
        )?;
    }
    Ok(())
}

/// The longest reusable length up to `len`. Checks that `len` itself is refused if it is longer.
fn nearest(probe: &mut TestSession, sequence: SequenceId, len: usize) -> Result<usize, String> {
    let reusable = probe.session.reusable(sequence, len);
    let reusable = reusable.map_err(|error| format!("reusable: {error}"))?;
    let any = probe.session.capabilities().prefix_copy == PrefixCopy::AnyLength;
    if reusable > len || (any && reusable != len) {
        return Err(format!("{reusable} is reported as reusable for {len}"));
    }
    if reusable < len {
        let expected = Err(SessionError::NoSnapshot { len, reusable });
        if probe.session.fork(sequence, len) != expected {
            return Err(format!("a fork at {len} is not refused"));
        }
        if probe.session.truncate(sequence, len) != Err(SessionError::NoSnapshot { len, reusable })
        {
            return Err(format!("a cut at {len} is not refused"));
        }
    }
    Ok(reusable)
}

pub fn fork_equals_fresh(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(3, LENGTH);
    let tail = probe.tokens(4, 5);
    let source = probe.create()?;
    probe.logits(source, &tokens, 1)?;
    for len in [0, 1, 31, 32, 33, 64, LENGTH] {
        let len = nearest(&mut probe, source, len)?;
        let prompt: Vec<u32> = tokens[..len].iter().chain(&tail).copied().collect();
        let expected = fresh(&mut probe, &prompt)?;
        let fork = probe
            .session
            .fork(source, len)
            .map_err(|error| format!("fork: {error}"))?;
        let found = probe.logits(fork, &tail, 1)?;
        probe.same(&format!("fork at {len}"), &expected, &found)?;
        release(&mut probe, fork)?;
    }
    Ok(())
}

pub fn forks_are_independent(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(5, 40);
    let (left, right) = (probe.tokens(6, 30), probe.tokens(7, 30));
    let join = |tail: &[u32]| tokens.iter().chain(tail).copied().collect::<Vec<u32>>();
    let expected_left = fresh(&mut probe, &join(&left))?;
    let expected_right = fresh(&mut probe, &join(&right))?;
    let source = probe.create()?;
    probe.logits(source, &tokens, 0)?;
    let fork = probe
        .session
        .fork(source, 40)
        .map_err(|error| format!("fork: {error}"))?;
    // Interleaved, so that each writes to shared pages while the other still reads them.
    for (l, r) in left.iter().zip(&right).take(29) {
        probe.step(&[(source, &[*l], Emit::Nothing), (fork, &[*r], Emit::Nothing)])?;
    }
    let found_left = probe.logits(source, &left[29..], 1)?;
    release(&mut probe, source)?;
    let found_right = probe.logits(fork, &right[29..], 1)?;
    probe.same("source after the fork wrote", &expected_left, &found_left)?;
    probe.same("fork after the source ended", &expected_right, &found_right)
}

pub fn truncated_fork_is_independent(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(14, 45);
    let (tail, next) = (probe.tokens(15, 10), probe.tokens(16, 1));
    let join = |len: usize, tail: &[u32]| -> Vec<u32> {
        tokens[..len].iter().chain(tail).copied().collect()
    };
    let source = probe.create()?;
    // In two steps: a session that keeps snapshots has one between them.
    probe.logits(source, &tokens[..40], 0)?;
    probe.logits(source, &tokens[40..], 0)?;
    let forked = probe.session.fork(source, 45);
    let fork = forked.map_err(|error| format!("fork: {error}"))?;
    let len = nearest(&mut probe, fork, 40)?;
    let expected_fork = fresh(&mut probe, &join(len, &tail))?;
    let expected_source = fresh(&mut probe, &join(45, &next))?;
    // Cut inside the shared part, then overwritten by the fork alone.
    let cut = probe.session.truncate(fork, len);
    cut.map_err(|error| format!("truncate: {error}"))?;
    let found_fork = probe.logits(fork, &tail, 1)?;
    let found_source = probe.logits(source, &next, 1)?;
    probe.same("the fork", &expected_fork, &found_fork)?;
    probe.same("its source", &expected_source, &found_source)
}

pub fn edges(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    probe.step(&[])?;
    for context in [1, 33] {
        let options = SessionOptions {
            context: Some(context),
            ..SessionOptions::default()
        };
        let mut small = TestSession::open(subject, &options)?;
        let tokens = small.tokens(17, context);
        let expected = fresh(&mut probe, &tokens)?;
        let sequence = small.create()?;
        let found = small.logits(sequence, &tokens, 1)?;
        probe.same(&format!("a full context of {context}"), &expected, &found)?;
    }
    Ok(())
}

pub fn truncated_equals_fresh(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(8, LENGTH);
    let tail = probe.tokens(9, 3);
    for len in [0, 1, 31, 32, 33, 64, LENGTH] {
        let sequence = probe.create()?;
        for tokens in tokens.chunks(33) {
            probe.logits(sequence, tokens, 0)?;
        }
        let len = nearest(&mut probe, sequence, len)?;
        let prompt: Vec<u32> = tokens[..len].iter().chain(&tail).copied().collect();
        let expected = fresh(&mut probe, &prompt)?;
        let cut = probe.session.truncate(sequence, len);
        cut.map_err(|error| format!("truncate: {error}"))?;
        if probe.session.len(sequence) != Ok(len) {
            return Err(format!("length is not {len} after truncation"));
        }
        let found = probe.logits(sequence, &tail, 1)?;
        probe.same(&format!("truncated to {len}"), &expected, &found)?;
        release(&mut probe, sequence)?;
    }
    Ok(())
}

/// Long enough for snapshots at intervals.
pub fn long_prefixes_are_reusable(subject: &Subject) -> Result<(), String> {
    const LONG: usize = 600;
    let mut probe = open(subject)?;
    let capabilities = probe.session.capabilities();
    let most = capabilities.max_context.min(capabilities.max_step_tokens);
    let length = LONG.min(most - 8);
    let (tokens, tail) = (probe.tokens(18, length), probe.tokens(19, 3));
    let source = probe.create()?;
    for tokens in tokens.chunks(97) {
        probe.logits(source, tokens, 0)?;
    }
    for len in [length - 1, length - 50, length / 2] {
        let len = nearest(&mut probe, source, len)?;
        let forked = probe.session.fork(source, len);
        let fork = forked.map_err(|error| format!("fork: {error}"))?;
        let prompt: Vec<u32> = tokens[..len].iter().chain(&tail).copied().collect();
        let expected = fresh(&mut probe, &prompt)?;
        let found = probe.logits(fork, &tail, 1)?;
        probe.same(&format!("fork at {len} of {length}"), &expected, &found)?;
        release(&mut probe, fork)?;
    }
    Ok(())
}

/// Ended sequences free their KV, states and snapshots.
pub fn ended_sequences_free_memory(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(20, 40);
    for _ in 0..3 {
        let sequence = probe.create()?;
        for token in &tokens {
            probe.logits(sequence, &[*token], 0)?;
        }
        let forked = probe.session.fork(sequence, tokens.len());
        release(&mut probe, sequence)?;
        release(
            &mut probe,
            forked.map_err(|error| format!("fork: {error}"))?,
        )?;
        let memory = probe.session.memory();
        if (memory.kv_in_use, memory.states_in_use) != (0, 0) {
            return Err(format!("still in use: {memory:?}"));
        }
    }
    Ok(())
}

pub fn imported_equals_exported(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    if !probe.session.capabilities().export {
        return Ok(());
    }
    let mut other = open(subject)?;
    let tail = probe.tokens(11, 3);
    for len in [0, 1, 32, 50] {
        let sequence = probe.create()?;
        let tokens = probe.tokens(10, len);
        if len > 0 {
            probe.logits(sequence, &tokens, 0)?;
        }
        let bytes = probe
            .session
            .export(sequence)
            .map_err(|error| format!("export: {error}"))?;
        let imported = other
            .session
            .import(&bytes)
            .map_err(|error| format!("import: {error}"))?;
        if other.session.len(imported) != Ok(len) {
            return Err(format!("imported length is not {len}"));
        }
        let expected = probe.logits(sequence, &tail, 1)?;
        let found = other.logits(imported, &tail, 1)?;
        probe.same_row(&format!("import of {len}"), &expected, &found)?;
    }
    Ok(())
}

pub fn imported_ranges_equal_computed(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let Ok(fingerprint) = probe.session.range_fingerprint() else {
        return Ok(());
    };
    if probe.session.capabilities().prefix_copy == PrefixCopy::AtSnapshots {
        // They need tails.
        return Ok(());
    }
    let mut other = open(subject)?;
    if other.session.range_fingerprint() != Ok(fingerprint) {
        return Err("two sessions of one model have different fingerprints".to_owned());
    }
    let (tokens, tail) = (probe.tokens(10, 90), probe.tokens(11, 3));
    let sequence = probe.create()?;
    probe.logits(sequence, &tokens, 0)?;
    let fail = |error: SessionError| error.to_string();
    // The ranges begin and end inside pages and at their edges.
    let cuts: [&[usize]; 3] = [&[0, 90], &[0, 32, 64, 90], &[0, 1, 45, 90]];
    for cuts in cuts {
        let imported = other.create()?;
        let mut per_token = None;
        for cut in cuts.windows(2) {
            let range = cut[0]..cut[1];
            let mut bytes = vec![7];
            let exported = probe
                .session
                .export_range(sequence, range.clone(), &mut bytes);
            exported.map_err(fail)?;
            let (bytes, count) = (&bytes[1..], range.len());
            if *per_token.get_or_insert(bytes.len() / count) * count != bytes.len() {
                return Err(format!("{} bytes for {count} positions", bytes.len()));
            }
            if other
                .session
                .import_range(imported, count + 1, bytes)
                .is_ok()
            {
                return Err("bytes of the wrong length are accepted".to_owned());
            }
            let appended = other.session.import_range(imported, count, bytes);
            appended.map_err(fail)?;
        }
        if other.session.len(imported) != Ok(tokens.len()) {
            return Err("the imported ranges have another length".to_owned());
        }
        // A fork first: the ranges may be shared like any others.
        let fork = other.session.fork(imported, 40).map_err(fail)?;
        let found = other.logits(fork, &tokens[40..], 1)?;
        let source = probe.session.fork(sequence, 89).map_err(fail)?;
        let expected = probe.logits(source, &tokens[89..], 1)?;
        probe.same("a fork of imported ranges", &expected, &found)?;
        let source = probe.session.fork(sequence, 90).map_err(fail)?;
        let expected = probe.logits(source, &tail, 1)?;
        let found = other.logits(imported, &tail, 1)?;
        probe.same("imported ranges", &expected, &found)?;
    }
    let mut out = Vec::new();
    if probe
        .session
        .export_range(sequence, 50..91, &mut out)
        .is_ok()
    {
        return Err("a range beyond the end is exported".to_owned());
    }
    Ok(())
}

/// Also if several groups of layers are in ranges: those whose windows are longer than the context.
pub fn adjacent_ranges_make_one(subject: &Subject) -> Result<(), String> {
    for context in [None, Some(7)] {
        let options = SessionOptions {
            context,
            ..SessionOptions::default()
        };
        let mut probe = TestSession::open(subject, &options)?;
        let media = &probe.session.capabilities().media;
        if probe.session.range_fingerprint().is_err() || media.whole_prompt {
            return Ok(());
        }
        let tokens = probe.tokens(13, 6);
        let sequence = probe.create()?;
        probe.logits(sequence, &tokens, 0)?;
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        let export = |range, out: &mut Vec<u8>| {
            let exported = probe.session.export_range(sequence, range, out);
            exported.map_err(|error| error.to_string())
        };
        export(0..6, &mut whole)?;
        export(0..1, &mut parts)?;
        export(1..4, &mut parts)?;
        export(4..6, &mut parts)?;
        if whole != parts {
            return Err(format!(
                "context {context:?}: the parts differ from the whole"
            ));
        }
    }
    Ok(())
}

pub fn greedy_is_argmax(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(12, 20);
    let sequence = probe.create()?;
    let logits = probe.logits(sequence, &tokens, 20)?;
    let other = probe.create()?;
    probe.step(&[(other, &tokens, Emit::Greedy { positions: 20 })])?;
    let argmax = |row: &[f32]| {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter()
            .position(|value| *value == best)
            .map(|place| place as u32)
    };
    for (position, row) in logits.chunks(probe.vocab()).enumerate() {
        if probe.output.tokens(0).get(position).copied() != argmax(row) {
            return Err(format!(
                "greedy token of position {position} is not the argmax"
            ));
        }
    }
    Ok(())
}

pub fn positions_equal_steps(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let tokens = probe.tokens(13, 45);
    let sequence = probe.create()?;
    let together = probe.logits(sequence, &tokens, 45)?;
    let other = probe.create()?;
    let mut apart = Vec::new();
    for token in &tokens {
        apart.extend(probe.logits(other, &[*token], 1)?);
    }
    probe.same("45 positions", &apart, &together)
}
