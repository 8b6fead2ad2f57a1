//! Bad input is a typed error, and nothing changes.

use super::{Subject, TestSession};
use crate::{Emit, MemoryBudget, SequenceId, SessionError, SessionOptions};

const ONE: Emit = Emit::Logits { positions: 1 };

/// A small session, with KV for four sequences.
fn open_small(subject: &Subject) -> Result<TestSession, String> {
    const SEQUENCES: usize = 4;
    let options = |kv_tokens| SessionOptions {
        context: Some(96),
        kv_tokens: Some(kv_tokens),
        max_sequences: 6,
        max_step_tokens: 64,
        // Media that must enter a step whole would allow larger ones.
        media_positions: Some(0),
        ..SessionOptions::default()
    };
    let probe = TestSession::open(subject, &options(SEQUENCES * 64))?;
    match probe.session.memory().kv_granularity {
        run if run > 64 => TestSession::open(subject, &options(SEQUENCES * run)),
        _ => Ok(probe),
    }
}

fn expect(
    what: &str,
    found: Option<&SessionError>,
    right: fn(&SessionError) -> bool,
) -> Result<(), String> {
    match found {
        Some(error) if right(error) => Ok(()),
        Some(error) => Err(format!("{what}: the wrong refusal, `{error}`")),
        None => Err(format!("{what}: was not refused")),
    }
}

pub fn bad_rows(subject: &Subject) -> Result<(), String> {
    let mut probe = open_small(subject)?;
    let vocab = probe.vocab() as u32;
    let prompt = probe.tokens(21, 40);
    let sequence = probe.create()?;
    probe.logits(sequence, &prompt, 0)?;
    let before = probe.session.memory();
    let sixty = probe.tokens(22, 60);
    let hundred = probe.tokens(22, 100);
    type Case<'a> = (
        &'a str,
        SequenceId,
        &'a [u32],
        Emit,
        fn(&SessionError) -> bool,
    );
    let cases: [Case; 9] = [
        ("unknown sequence", SequenceId(9999), &[1], ONE, |e| {
            matches!(e, SessionError::UnknownSequence(_))
        }),
        ("no tokens", sequence, &[], Emit::Nothing, |e| {
            matches!(e, SessionError::EmptyRow)
        }),
        (
            "token past the vocabulary",
            sequence,
            &[0, vocab],
            ONE,
            |e| matches!(e, SessionError::TokenOutOfRange { .. }),
        ),
        ("largest token", sequence, &[u32::MAX], ONE, |e| {
            matches!(e, SessionError::TokenOutOfRange { .. })
        }),
        (
            "more positions than tokens",
            sequence,
            &[1],
            Emit::Logits { positions: 2 },
            |e| matches!(e, SessionError::EmitOutOfRange { .. }),
        ),
        (
            "more hidden states than tokens",
            sequence,
            &[1],
            Emit::Hidden { positions: 2 },
            |e| {
                matches!(
                    e,
                    SessionError::EmitOutOfRange { .. } | SessionError::Unsupported(_)
                )
            },
        ),
        (
            "no positions",
            sequence,
            &[1],
            Emit::Greedy { positions: 0 },
            |e| matches!(e, SessionError::EmitOutOfRange { .. }),
        ),
        ("beyond the context", sequence, &sixty, ONE, |e| {
            matches!(e, SessionError::ContextExceeded { .. })
        }),
        ("beyond context and step", sequence, &hundred, ONE, |e| {
            matches!(
                e,
                SessionError::ContextExceeded { .. } | SessionError::StepTooLarge { .. }
            )
        }),
    ];
    for (what, id, tokens, emit, right) in cases {
        let errors = probe.try_step(&[(id, tokens, emit)])?;
        expect(what, errors[0].as_ref(), right)?;
    }
    let fresh = probe.create()?;
    let most = probe.session.capabilities().max_step_tokens;
    let long = probe.tokens(29, most + 1);
    let errors = probe.try_step(&[(fresh, &long, ONE)])?;
    expect("too large a step", errors[0].as_ref(), |e| match e {
        SessionError::StepTooLarge { .. } => true,
        // A step may be as long as the context.
        SessionError::ContextExceeded {
            wanted,
            max_context,
        } => *wanted == max_context + 1,
        _ => false,
    })?;
    if probe.session.len(sequence) != Ok(40) || probe.session.memory() != before {
        return Err("a refused row changed its sequence or the memory in use".into());
    }
    Ok(())
}

pub fn bad_calls(subject: &Subject) -> Result<(), String> {
    let mut probe = open_small(subject)?;
    let sequence = probe.create()?;
    let tokens = probe.tokens(23, 10);
    probe.logits(sequence, &tokens, 0)?;
    let session = &mut probe.session;
    let length = |e: &SessionError| matches!(e, SessionError::LengthOutOfRange { .. });
    let unknown = |e: &SessionError| matches!(e, SessionError::UnknownSequence(_));
    expect(
        "fork too long",
        session.fork(sequence, 11).err().as_ref(),
        length,
    )?;
    expect(
        "truncate too long",
        session.truncate(sequence, 11).err().as_ref(),
        length,
    )?;
    expect(
        "truncate to the largest",
        session.truncate(sequence, usize::MAX).err().as_ref(),
        length,
    )?;
    session
        .release(sequence)
        .map_err(|error| error.to_string())?;
    expect(
        "release twice",
        session.release(sequence).err().as_ref(),
        unknown,
    )?;
    expect(
        "length of a dead sequence",
        session.len(sequence).err().as_ref(),
        unknown,
    )?;
    expect(
        "fork a dead sequence",
        session.fork(sequence, 0).err().as_ref(),
        unknown,
    )?;
    expect(
        "truncate a dead sequence",
        session.truncate(sequence, 0).err().as_ref(),
        unknown,
    )?;
    expect(
        "export a dead sequence",
        session.export(sequence).err().as_ref(),
        |e| {
            matches!(
                e,
                SessionError::UnknownSequence(_) | SessionError::Unsupported(_)
            )
        },
    )?;
    let next = session.create().map_err(|error| error.to_string())?;
    if next == sequence {
        return Err("a released id was used again".into());
    }
    Ok(())
}

pub fn other_rows_survive(subject: &Subject) -> Result<(), String> {
    let mut probe = open_small(subject)?;
    let tokens = probe.tokens(24, 20);
    let alone = probe.create()?;
    let expected = probe.logits(alone, &tokens, 1)?;
    let (good, bad) = (probe.create()?, probe.create()?);
    let errors = probe.try_step(&[
        (bad, &[u32::MAX], ONE),
        (good, &tokens, ONE),
        (good, &tokens, ONE),
        (SequenceId(777), &tokens, ONE),
    ])?;
    expect("bad token", errors[0].as_ref(), |e| {
        matches!(e, SessionError::TokenOutOfRange { .. })
    })?;
    expect("second row", errors[2].as_ref(), |e| {
        matches!(e, SessionError::DuplicateSequence(_))
    })?;
    expect("stranger", errors[3].as_ref(), |e| {
        matches!(e, SessionError::UnknownSequence(_))
    })?;
    if let Some(error) = &errors[1] {
        return Err(format!("a good row was refused: {error}"));
    }
    probe.same_row("the good row", &expected, &probe.row_logits(1)?)
}

pub fn kv_runs_out(subject: &Subject) -> Result<(), String> {
    let mut probe = open_small(subject)?;
    let memory = probe.session.memory();
    let mut held = Vec::new();
    let tokens = probe.tokens(25, 64);
    let refused = loop {
        let sequence = probe.create()?;
        held.push(sequence);
        let errors = probe.try_step(&[(sequence, &tokens, ONE)])?;
        if errors[0].is_some() {
            break errors.into_iter().next().flatten();
        }
        if held.len() * 64 > memory.kv_capacity {
            return Err("more tokens were taken than the stated capacity".into());
        }
    };
    expect("no room", refused.as_ref(), |e| {
        matches!(e, SessionError::KvExhausted { .. })
    })?;
    if refused.is_some_and(|error| !error.is_retryable()) {
        return Err("a lack of room must be retryable".into());
    }
    if probe.session.capabilities().export {
        let bytes = probe
            .session
            .export(held[0])
            .map_err(|error| error.to_string())?;
        let imported = probe.session.import(&bytes);
        expect("an import without room", imported.err().as_ref(), |e| {
            matches!(e, SessionError::KvExhausted { .. })
        })?;
    }
    let last = held[held.len() - 1];
    if probe.session.len(last) != Ok(0) {
        return Err("the refused row left tokens behind".into());
    }
    for sequence in held {
        probe
            .session
            .release(sequence)
            .map_err(|error| error.to_string())?;
    }
    if probe.session.memory().kv_in_use != 0 {
        return Err("released sequences still hold KV".into());
    }
    let again = probe.create()?;
    probe.logits(again, &tokens, 1).map(|_| ())
}

pub fn too_many_sequences(subject: &Subject) -> Result<(), String> {
    let mut probe = open_small(subject)?;
    for _ in 0..6 {
        probe.create()?;
    }
    expect(
        "a seventh sequence",
        probe.session.create().err().as_ref(),
        |e| matches!(e, SessionError::TooManySequences { max: 6 }),
    )
}

pub fn damaged_imports(subject: &Subject) -> Result<(), String> {
    let mut probe = open_small(subject)?;
    if !probe.session.capabilities().export {
        return expect("import", probe.session.import(&[]).err().as_ref(), |e| {
            matches!(e, SessionError::Unsupported(_))
        });
    }
    let sequence = probe.create()?;
    let tokens = probe.tokens(26, 10);
    probe.logits(sequence, &tokens, 0)?;
    let bytes = probe
        .session
        .export(sequence)
        .map_err(|error| error.to_string())?;
    let before = probe.session.memory();
    let refused = |probe: &mut TestSession, what: &str, bytes: &[u8]| {
        expect(what, probe.session.import(bytes).err().as_ref(), |e| {
            matches!(
                e,
                SessionError::BadImport(_) | SessionError::ContextExceeded { .. }
            )
        })
    };
    for cut in [0, 1, 7, 8, 23, bytes.len() / 2, bytes.len() - 1] {
        refused(&mut probe, &format!("cut to {cut} bytes"), &bytes[..cut])?;
    }
    let steps = (bytes.len() / 64).max(1);
    for place in (0..bytes.len()).step_by(steps) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x40;
        refused(&mut probe, &format!("byte {place} flipped"), &damaged)?;
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refused(&mut probe, "one byte more", &longer)?;
    if probe.session.memory() != before {
        return Err("a refused import left something behind".into());
    }
    Ok(())
}

pub fn illegal_options(subject: &Subject) -> Result<(), String> {
    let base = SessionOptions::default();
    let cases = [
        (
            "context of 0",
            SessionOptions {
                context: Some(0),
                ..base.clone()
            },
        ),
        (
            "context past the model's",
            SessionOptions {
                context: Some(usize::MAX),
                ..base.clone()
            },
        ),
        (
            "no KV",
            SessionOptions {
                kv_tokens: Some(0),
                ..base.clone()
            },
        ),
        (
            "no memory",
            SessionOptions {
                memory: Some(MemoryBudget::Bytes(0)),
                ..base.clone()
            },
        ),
        (
            "none of the memory",
            SessionOptions {
                memory: Some(MemoryBudget::Percent(0)),
                ..base.clone()
            },
        ),
        (
            "more than all of the memory",
            SessionOptions {
                memory: Some(MemoryBudget::Percent(101)),
                ..base.clone()
            },
        ),
        (
            "no sequences",
            SessionOptions {
                max_sequences: 0,
                ..base.clone()
            },
        ),
        (
            "no step",
            SessionOptions {
                max_step_tokens: 0,
                ..base.clone()
            },
        ),
        (
            "no threads",
            SessionOptions {
                threads: Some(0),
                ..base
            },
        ),
    ];
    for (what, options) in cases {
        match (subject.open)(&options) {
            Err(crate::OpenError::Option { .. }) => {}
            Err(error) => return Err(format!("{what}: the wrong refusal, `{error}`")),
            Ok(_) => return Err(format!("{what}: was not refused")),
        }
    }
    Ok(())
}
