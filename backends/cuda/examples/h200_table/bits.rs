//! Compares long decodes with and without dependent launches, bit for bit.

use std::time::Instant;

use loquat_cuda::{CudaBackend, InterpretedBackend};
use loquat_session::{Backend, Emit};

use crate::Failure;
use crate::model::{Model, prompt};
use crate::options::Options;
use crate::session_loop::Decoding;

/// Every so many steps the next token is another than the likeliest: random models repeat
/// themselves soon, and a token that was guessed ahead must also be wrong at times.
const DETOUR: usize = 61;

/// What a decode leaves.
struct Decoded {
    tokens: Vec<u32>,
    hidden: Vec<u32>,
    /// All keys and values.
    state: Vec<u8>,
    tokens_per_second: f64,
}

/// An error if anything differs.
pub fn compare(options: &Options, steps: usize) -> Result<(), Failure> {
    for name in &options.models {
        let model = Model::new(name)?;
        let dependent = CudaBackend::AUTO;
        let plain = CudaBackend::AUTO.without_dependent_launches();
        let backends: [(&str, &dyn Backend); 2] = if options.interpreter {
            [
                ("first", &InterpretedBackend::AUTO),
                ("second", &InterpretedBackend::AUTO),
            ]
        } else {
            [("dependent", &dependent), ("plain", &plain)]
        };
        let mut results = Vec::new();
        for (launches, backend) in backends {
            let decoded = decode(backend, &model, options, steps)?;
            let speed = decoded.tokens_per_second;
            println!("{name}, {steps} steps, {launches} launches: {speed:.0} tokens/s");
            results.push(decoded);
        }
        let [a, b] = &results[..] else {
            continue;
        };
        let first = a.tokens.iter().zip(&b.tokens).position(|(a, b)| a != b);
        if let Some(step) = first {
            return Err(format!("{name}: the tokens differ from step {step} on").into());
        }
        let differing = a
            .hidden
            .iter()
            .zip(&b.hidden)
            .filter(|(a, b)| a != b)
            .count();
        if differing > 0 {
            let all = a.hidden.len();
            return Err(format!("{name}: {differing} of {all} hidden values differ").into());
        }
        if a.state != b.state {
            let at = a.state.iter().zip(&b.state).position(|(a, b)| a != b);
            return Err(format!("{name}: the keys and values differ, first in byte {at:?}").into());
        }
        let mut distinct = a.tokens.clone();
        distinct.sort_unstable();
        distinct.dedup();
        println!(
            "{name}: equal in all {steps} tokens ({} distinct), the last hidden state ({} values) \
             and all keys and values ({:.0} MB)",
            distinct.len(),
            a.hidden.len(),
            a.state.len() as f64 / 1e6
        );
    }
    Ok(())
}

fn decode(
    backend: &dyn Backend,
    model: &Model,
    options: &Options,
    steps: usize,
) -> Result<Decoded, Failure> {
    let session_options = options.long_session(steps);
    let mut session = backend.open(model.source.clone(), &session_options, &mut |_| {})?;
    let session = session.as_mut();
    let detours = prompt(session.capabilities().vocab_size, steps / DETOUR + 1, 1);
    let mut decoding = Decoding::default();
    decoding.prompt(session, options.depth, 0)?;
    let mut tokens = Vec::with_capacity(steps);
    let started = Instant::now();
    for step in 0..steps {
        decoding.step(session)?;
        let next = &mut decoding.sequences[0].1;
        tokens.push(*next);
        if step % DETOUR == DETOUR - 1 {
            *next = detours[step / DETOUR];
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let output = decoding.last_step(session, Emit::Hidden { positions: 1 })?;
    let hidden = output.hidden(0, 0).iter().map(|value| value.to_bits());
    let hidden = hidden.collect();
    let state = session.export(decoding.sequences[0].0)?;
    decoding.release(session)?;
    Ok(Decoded {
        tokens,
        hidden,
        state,
        tokens_per_second: steps as f64 / seconds,
    })
}
