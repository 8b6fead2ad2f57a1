//! The memory held by sequences adds up to the memory in use.

use super::{Subject, TestSession};
use crate::{HeldMemory, SequenceId, SessionError, SessionOptions};

fn held(probe: &TestSession, sequences: &[SequenceId]) -> Result<HeldMemory, String> {
    let held = probe.session.held(sequences);
    held.map_err(|error| format!("held: {error}"))
}

/// All sequences together hold all memory in use: no less than any one, no more than the sum.
fn check_sums(probe: &TestSession, what: &str, alive: &[SequenceId]) -> Result<(), String> {
    let memory = probe.session.memory();
    let all = held(probe, alive)?;
    let in_use = HeldMemory {
        kv_tokens: memory.kv_in_use,
        states: memory.states_in_use,
    };
    if all != in_use {
        return Err(format!("{what}: {all:?} held, {in_use:?} in use"));
    }
    let mut sum = HeldMemory::default();
    for sequence in alive {
        let one = held(probe, &[*sequence])?;
        sum.kv_tokens += one.kv_tokens;
        sum.states += one.states;
        let len = probe.session.len(*sequence);
        let len = len.map_err(|error| format!("len: {error}"))?;
        // Without keys, tokens may be counted or not.
        let least = memory
            .kv_groups
            .tokens_in_pages(1, |group| len - group.reach.first_seen(len).min(len));
        if one.kv_tokens < least && memory.kv_bytes_per_token > 0 {
            return Err(format!("{what}: {one:?} held by {len} tokens"));
        }
        let pages_are_equal = memory.kv_groups.count() == 1;
        if pages_are_equal && !one.kv_tokens.is_multiple_of(memory.kv_granularity.max(1)) {
            return Err(format!("{what}: {one:?} is not in whole pages"));
        }
        if one.kv_tokens > all.kv_tokens || one.states > all.states {
            return Err(format!("{what}: one holds {one:?}, all hold {all:?}"));
        }
        if held(probe, &[*sequence, *sequence])? != one {
            return Err(format!("{what}: a sequence named twice counts twice"));
        }
    }
    // Each count is rounded up.
    if all.kv_tokens > sum.kv_tokens || all.states > sum.states {
        return Err(format!("{what}: together {all:?}, one by one {sum:?}"));
    }
    Ok(())
}

pub fn adds_up(subject: &Subject) -> Result<(), String> {
    let mut probe = TestSession::open(subject, &SessionOptions::default())?;
    if held(&probe, &[])? != HeldMemory::default() {
        return Err("zero sequences hold memory".into());
    }
    let mut alive = Vec::new();
    for len in [0, 1, 31, 32, 33, 75] {
        let sequence = probe.create()?;
        alive.push(sequence);
        let tokens = probe.tokens(41, len);
        if len > 0 {
            probe.logits(sequence, &tokens, 0)?;
        }
        check_sums(&probe, &format!("{len} tokens more"), &alive)?;
    }
    if held(&probe, &alive[..1])? != HeldMemory::default() {
        return Err("an empty sequence holds memory".into());
    }
    let stranger = SequenceId(9999);
    let unknown = Err(SessionError::UnknownSequence(stranger));
    if probe.session.held(&[alive[1], stranger]) != unknown {
        return Err("an unknown sequence is not refused".into());
    }
    while let Some(sequence) = alive.pop() {
        let released = probe.session.release(sequence);
        released.map_err(|error| format!("release: {error}"))?;
        check_sums(&probe, "after a release", &alive)?;
        if probe.session.held(&[sequence]) != Err(SessionError::UnknownSequence(sequence)) {
            return Err("a released sequence is not refused".into());
        }
    }
    Ok(())
}

pub fn shared_once(subject: &Subject) -> Result<(), String> {
    let mut probe = TestSession::open(subject, &SessionOptions::default())?;
    let granularity = probe.session.memory().kv_granularity.max(1);
    // One more token must fit.
    let most = probe.session.capabilities().max_context - 1;
    let whole = 64usize.next_multiple_of(granularity).min(most);
    let tokens = probe.tokens(42, whole);
    let source = probe.create()?;
    probe.logits(source, &tokens, 0)?;
    let alone = held(&probe, &[source])?;
    let fork = probe.session.fork(source, whole);
    let fork = match fork {
        Ok(fork) => fork,
        Err(SessionError::Unsupported(_)) => return Ok(()),
        Err(error) => return Err(format!("fork: {error}")),
    };
    check_sums(&probe, "a fork", &[source, fork])?;
    let shares = probe.session.memory().kv_in_use == alone.kv_tokens;
    if shares && held(&probe, &[source, fork])? != alone {
        return Err("a fork that shares everything costs memory".into());
    }
    let next = probe.tokens(43, 1);
    probe.logits(fork, &next, 0)?;
    check_sums(&probe, "a fork that went on", &[source, fork])?;
    let cut = probe.session.reusable(source, whole / 2);
    let cut = cut.map_err(|error| format!("reusable: {error}"))?;
    let truncated = probe.session.truncate(source, cut);
    truncated.map_err(|error| format!("truncate: {error}"))?;
    check_sums(&probe, "a cut source", &[source, fork])?;
    let released = probe.session.release(source);
    released.map_err(|error| format!("release: {error}"))?;
    check_sums(&probe, "a fork that outlives its source", &[fork])
}
