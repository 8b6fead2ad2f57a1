//! Hidden states do not depend on batching, and emitting them changes nothing.

use super::{Subject, TestSession};
use crate::{Emit, SequenceId, SessionError, SessionOptions};

/// Longer than any page, window or chunk a tiny model uses.
const LENGTH: usize = 75;
const LAST: Emit = Emit::Hidden { positions: 1 };

fn open(subject: &Subject) -> Result<TestSession, String> {
    TestSession::open(subject, &SessionOptions::default())
}

/// Steps one row and returns the hidden states of its last `positions`.
fn hidden(
    probe: &mut TestSession,
    sequence: SequenceId,
    tokens: &[u32],
    positions: usize,
) -> Result<Vec<f32>, String> {
    probe.step(&[(sequence, tokens, Emit::Hidden { positions })])?;
    probe.row_hidden(0)
}

pub fn independent_of_batching(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    let Some(width) = probe.session.capabilities().hidden_size else {
        return refused(&mut probe);
    };
    let tokens = probe.tokens(31, LENGTH);
    let sequence = probe.create()?;
    let whole = hidden(&mut probe, sequence, &tokens, LENGTH)?;
    if whole.len() != LENGTH * width {
        return Err(format!("{} values for {LENGTH} × {width}", whole.len()));
    }
    if whole
        .chunks(width)
        .skip(1)
        .any(|each| *each == whole[..width])
    {
        return Err("a later position's hidden state is the first one's".into());
    }
    chunked(&mut probe, &tokens, &whole)?;
    beside_others(&mut probe, &tokens, &whole)
}

fn refused(probe: &mut TestSession) -> Result<(), String> {
    let sequence = probe.create()?;
    let errors = probe.try_step(&[(sequence, &[1], LAST)])?;
    match &errors[0] {
        Some(SessionError::Unsupported(_)) if probe.session.len(sequence) == Ok(0) => Ok(()),
        found => Err(format!("no refusal that leaves the row out: {found:?}")),
    }
}

fn chunked(probe: &mut TestSession, tokens: &[u32], whole: &[f32]) -> Result<(), String> {
    for chunk in [1, 7, 32, 33] {
        let sequence = probe.create()?;
        let mut all = Vec::new();
        for tokens in tokens.chunks(chunk) {
            all.extend(hidden(probe, sequence, tokens, tokens.len())?);
        }
        probe.same(&format!("chunks of {chunk}"), whole, &all)?;
    }
    Ok(())
}

fn beside_others(probe: &mut TestSession, tokens: &[u32], whole: &[f32]) -> Result<(), String> {
    let width = whole.len() / tokens.len();
    let others = probe.tokens(32, 40);
    let [a, b, c, d] = [(); 4].map(|()| probe.create());
    let rows: [(SequenceId, &[u32], Emit); 4] = [
        (a?, &others, Emit::Logits { positions: 3 }),
        (b?, tokens, Emit::Hidden { positions: 2 }),
        (c?, &others[..9], Emit::Greedy { positions: 1 }),
        (d?, &tokens[..20], LAST),
    ];
    probe.step(&rows)?;
    let last_two = &whole[whole.len() - 2 * width..];
    probe.same_row("among other rows", last_two, &probe.row_hidden(1)?)?;
    let twentieth = &whole[19 * width..20 * width];
    probe.same("the second such row", twentieth, &probe.row_hidden(3)?)?;
    if probe.output.logit_positions(1) + probe.output.hidden_positions(0) > 0 {
        return Err("a row has outputs it did not request".into());
    }
    Ok(())
}

pub fn emitting_changes_nothing(subject: &Subject) -> Result<(), String> {
    let mut probe = open(subject)?;
    if probe.session.capabilities().hidden_size.is_none() {
        return Ok(());
    }
    let (tokens, tail) = (probe.tokens(33, 40), probe.tokens(34, 5));
    let [emitting, other] = [probe.create()?, probe.create()?];
    hidden(&mut probe, emitting, &tokens, tokens.len())?;
    probe.logits(other, &tokens, 0)?;
    let found = probe.logits(emitting, &tail, 1)?;
    let expected = probe.logits(other, &tail, 1)?;
    probe.same("the logits afterwards", &expected, &found)
}
