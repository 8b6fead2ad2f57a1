//! Workloads on a bare session.

use std::fmt;
use std::time::{Duration, Instant};

use loquat_session::{Emit, SequenceId, Session, SessionError, StepBatch, StepOutput};

use crate::Failure;
use crate::model::prompt;

/// Decoded tokens that are not counted.
pub const WARM_UP: usize = 8;

/// A prompt alone, or sequences that decode together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Prompt {
        tokens: usize,
    },
    Decode {
        tokens: usize,
        depth: usize,
        batch: usize,
    },
}

impl Workload {
    pub fn batch(&self) -> usize {
        match self {
            Self::Prompt { .. } => 1,
            Self::Decode { batch, .. } => *batch,
        }
    }

    pub fn prompt_tokens(&self) -> usize {
        match *self {
            Self::Prompt { tokens } => tokens,
            Self::Decode { depth, .. } => depth,
        }
    }

    /// Tokens that a sequence generates through the engine: the first comes with the prompt, and the
    /// first sequences decode while the last prompts run.
    pub fn generated(&self, step_tokens: usize) -> usize {
        match *self {
            Self::Prompt { .. } => 1,
            Self::Decode {
                tokens,
                depth,
                batch,
            } => {
                let step = step_tokens.saturating_sub(batch).max(1);
                tokens + 2 + (depth * (batch - 1)).div_ceil(step)
            }
        }
    }

    pub fn with_tokens(self, count: usize) -> Self {
        match self {
            Self::Prompt { .. } => self,
            Self::Decode { depth, batch, .. } => Self::Decode {
                tokens: count,
                depth,
                batch,
            },
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt { tokens } => write!(f, "prompt of {tokens}"),
            Self::Decode { depth, batch, .. } => {
                write!(f, "decode at {depth}, batch {batch}")
            }
        }
    }
}

/// What the bare session reached.
pub struct BareRun {
    pub tokens_per_second: f64,
    /// Decoded tokens per sequence that were counted.
    pub tokens: usize,
    /// Tokens that a sequence held in the middle of what was counted.
    pub mean_depth: f64,
}

/// Runs the workload once; `at_end` sees the session before its sequences are released.
pub fn run(
    session: &mut dyn Session,
    work: Workload,
    limit: Duration,
    at_end: &mut dyn FnMut(&dyn Session),
) -> Result<BareRun, Failure> {
    let mut decoding = Decoding::default();
    let started = Instant::now();
    for index in 0..work.batch() {
        decoding.prompt(session, work.prompt_tokens(), index)?;
    }
    let prompted = started.elapsed();
    let run = match work {
        Workload::Prompt { tokens } => BareRun {
            tokens_per_second: tokens as f64 / prompted.as_secs_f64(),
            tokens: 0,
            mean_depth: 0.0,
        },
        Workload::Decode {
            tokens,
            depth,
            batch,
        } => {
            for _ in 0..WARM_UP {
                decoding.step(session)?;
            }
            let started = Instant::now();
            let mut done = 0;
            while done < tokens && started.elapsed() < limit {
                decoding.step(session)?;
                done += 1;
            }
            let seconds = started.elapsed().as_secs_f64();
            BareRun {
                tokens_per_second: (done * batch) as f64 / seconds,
                tokens: done,
                mean_depth: (depth + WARM_UP) as f64 + (done + 1) as f64 / 2.0,
            }
        }
    };
    at_end(session);
    decoding.release(session)?;
    Ok(run)
}

/// Sequences that decode together, each its likeliest tokens.
#[derive(Default)]
pub struct Decoding {
    /// Each with its next token.
    pub sequences: Vec<(SequenceId, u32)>,
    batch: StepBatch,
    output: StepOutput,
}

impl Decoding {
    /// Adds a sequence with a prompt of its own.
    pub fn prompt(
        &mut self,
        session: &mut dyn Session,
        len: usize,
        index: usize,
    ) -> Result<(), Failure> {
        let capabilities = session.capabilities();
        let tokens = prompt(capabilities.vocab_size, len, index);
        let step_tokens = capabilities.max_step_tokens;
        let sequence = session.create()?;
        let mut left = tokens.as_slice();
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(step_tokens));
            let emit = if later.is_empty() {
                Emit::Greedy { positions: 1 }
            } else {
                Emit::Nothing
            };
            self.batch.clear();
            self.batch.push(sequence, now, emit);
            self.run(session)?;
            left = later;
        }
        self.sequences.push((sequence, self.output.tokens(0)[0]));
        Ok(())
    }

    /// Appends the next token of every sequence.
    pub fn step(&mut self, session: &mut dyn Session) -> Result<(), Failure> {
        self.push_all(Emit::Greedy { positions: 1 });
        self.run(session)?;
        for (row, (_, token)) in self.sequences.iter_mut().enumerate() {
            *token = self.output.tokens(row)[0];
        }
        Ok(())
    }

    /// Appends the next token of every sequence, for hidden states or logits.
    pub fn last_step(
        &mut self,
        session: &mut dyn Session,
        emit: Emit,
    ) -> Result<&StepOutput, Failure> {
        self.push_all(emit);
        self.run(session)?;
        Ok(&self.output)
    }

    pub fn release(self, session: &mut dyn Session) -> Result<(), SessionError> {
        let mut sequences = self.sequences.into_iter();
        sequences.try_for_each(|(sequence, _)| session.release(sequence))
    }

    fn push_all(&mut self, emit: Emit) {
        self.batch.clear();
        for (sequence, token) in &self.sequences {
            self.batch.push(*sequence, &[*token], emit);
        }
    }

    fn run(&mut self, session: &mut dyn Session) -> Result<(), Failure> {
        session.step(&self.batch, &mut self.output)?;
        match self.output.rows().iter().find_map(|row| row.error.clone()) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// Refuses to measure a model whose logits are not numbers or all alike.
pub fn check_logits(session: &mut dyn Session, depth: usize) -> Result<(), Failure> {
    let mut decoding = Decoding::default();
    decoding.prompt(session, depth, 0)?;
    let output = decoding.last_step(session, Emit::Logits { positions: 1 })?;
    let logits = output.logits(0, 0);
    let (low, high) = logits
        .iter()
        .fold((f32::MAX, f32::MIN), |(low, high), logit| {
            (low.min(*logit), high.max(*logit))
        });
    if !logits.iter().all(|logit| logit.is_finite()) || low >= high {
        return Err(format!("the logits are not usable: from {low} to {high}").into());
    }
    decoding.release(session)?;
    Ok(())
}
