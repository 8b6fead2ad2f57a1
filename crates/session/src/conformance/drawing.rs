//! Tokens that a session draws on the device.

use super::{Subject, TestSession};
use crate::{Draw, Emit, SessionError, SessionOptions};

/// Sums in another order or precision move the edges between two tokens by this much.
const EDGE: f32 = 1e-3;

pub fn drawn_from_the_logits(subject: &Subject) -> Result<(), String> {
    let mut probe = TestSession::open(subject, &SessionOptions::default())?;
    let tokens = probe.tokens(61, 12);
    if !probe.session.capabilities().draws {
        return refused(&mut probe, &tokens, ANY, |error| {
            matches!(error, SessionError::Unsupported(_))
        });
    }
    let sequence = probe.create()?;
    let logits = probe.logits(sequence, &tokens, 1)?;
    for draw in draws() {
        let sequence = probe.create()?;
        probe.step(&[(sequence, &tokens, Emit::Drawn(draw))])?;
        let drawn = probe.output.tokens(0).first().copied();
        let near = [-EDGE, 0.0, EDGE].map(|by| Draw {
            unit: (draw.unit + by).clamp(0.0, 1.0 - f32::EPSILON),
            ..draw
        });
        if !near.iter().any(|draw| draw.choose(&logits) == drawn) {
            let expected = draw.choose(&logits);
            return Err(format!("{draw:?}: {drawn:?} drawn, {expected:?} expected"));
        }
        let released = probe.session.release(sequence);
        released.map_err(|error| format!("release: {error}"))?;
    }
    let bad = Draw {
        temperature: 0.0,
        ..ANY
    };
    refused(&mut probe, &tokens, bad, |error| {
        *error == SessionError::DrawOutOfRange("temperature")
    })
}

/// Drawn tokens do not depend on other rows.
pub fn drawn_beside_others(subject: &Subject) -> Result<(), String> {
    let mut probe = TestSession::open(subject, &SessionOptions::default())?;
    if !probe.session.capabilities().draws {
        return Ok(());
    }
    let tokens = probe.tokens(62, 9);
    let alone = probe.create()?;
    probe.step(&[(alone, &tokens, Emit::Drawn(ANY))])?;
    let expected = probe.output.tokens(0).to_vec();
    let sequences = [probe.create()?, probe.create()?, probe.create()?];
    let greedy = Emit::Greedy { positions: 1 };
    probe.step(&[
        (sequences[0], &tokens[..4], greedy),
        (sequences[1], &tokens, Emit::Drawn(ANY)),
        (sequences[2], &tokens, Emit::Logits { positions: 1 }),
    ])?;
    let logits = probe.row_logits(2)?;
    let near = [-EDGE, 0.0, EDGE].map(|by| Draw {
        unit: ANY.unit + by,
        ..ANY
    });
    let drawn = probe.output.tokens(1);
    let right = near
        .iter()
        .any(|draw| draw.choose(&logits).as_slice() == drawn);
    if right && drawn == expected {
        Ok(())
    } else {
        Err(format!(
            "{drawn:?} drawn among other rows, {expected:?} alone"
        ))
    }
}

const ANY: Draw = Draw {
    temperature: 0.8,
    top_k: 0,
    top_p: 0.95,
    min_p: 0.0,
    unit: 0.3,
};

fn draws() -> Vec<Draw> {
    let shapes = [
        Draw { top_p: 1.0, ..ANY },
        ANY,
        Draw { top_k: 5, ..ANY },
        Draw { min_p: 0.2, ..ANY },
        Draw {
            temperature: 2.0,
            top_k: 1,
            ..ANY
        },
    ];
    let units = [0.0, 0.21, 0.5, 0.83, 0.999];
    let all = shapes
        .iter()
        .flat_map(|shape| units.map(|unit| Draw { unit, ..*shape }));
    all.collect()
}

fn refused(
    probe: &mut TestSession,
    tokens: &[u32],
    draw: Draw,
    right: impl Fn(&SessionError) -> bool,
) -> Result<(), String> {
    let sequence = probe.create()?;
    let errors = probe.try_step(&[(sequence, tokens, Emit::Drawn(draw))])?;
    let error = errors.into_iter().next().flatten();
    if !error.as_ref().is_some_and(right) {
        Err(format!("{draw:?}: {error:?}"))
    } else if probe.session.len(sequence) == Ok(0) {
        Ok(())
    } else {
        Err("a refused draw left tokens behind".into())
    }
}
