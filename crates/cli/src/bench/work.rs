//! The same work on the bare session and through the engine.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineError, EngineOptions, GenerateRequest, Generation};
use loquat_session::{
    Capabilities, Emit, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

use super::held;
use super::random::Random;
use super::reading::{greedy, read};
use crate::error::CliError;
use crate::wait::{block_on, join_all};

/// Tokens that a request generates before any is counted.
const WARMING_TOKENS: usize = 2;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Prompt {
        tokens: usize,
    },
    Decode {
        tokens: usize,
        depth: usize,
        batch: usize,
    },
}

impl Work {
    pub fn batch(&self) -> usize {
        match self {
            Work::Prompt { .. } => 1,
            Work::Decode { batch, .. } => *batch,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Work::Prompt { tokens } => format!("prompt {tokens}"),
            Work::Decode {
                tokens,
                depth,
                batch: 1,
            } => format!("decode {tokens} at {depth}"),
            Work::Decode {
                tokens,
                depth,
                batch,
            } => format!("decode {tokens} × {batch} at {depth}"),
        }
    }

    fn prompt_tokens(&self) -> usize {
        match *self {
            Work::Prompt { tokens } => tokens,
            Work::Decode { depth, .. } => depth,
        }
    }

    /// Tokens one sequence generates through the engine; `None` where that is no number.
    ///
    /// The first token comes with the prompt, outside the measured time. Sequences whose prompts
    /// were done early decode beside the others' prompts: they get that many tokens more, so
    /// that all decode together for as long as is measured.
    fn generated(&self, step_tokens: usize) -> Option<usize> {
        match *self {
            Work::Prompt { .. } => Some(1),
            Work::Decode {
                tokens, batch: 1, ..
            } => tokens.checked_add(1),
            Work::Decode {
                tokens,
                depth,
                batch,
            } => {
                let step = step_tokens.saturating_sub(batch).max(1);
                let head_start = depth.checked_mul(batch - 1)?.div_ceil(step);
                tokens.checked_add(head_start)?.checked_add(2)
            }
        }
    }

    /// Tokens one sequence comes to hold in steps of so many; `None` where that is no number.
    pub fn len(&self, step_tokens: usize) -> Option<usize> {
        self.prompt_tokens()
            .checked_add(self.generated(step_tokens)?)
    }

    /// Tokens that the request before it comes to hold.
    fn warming(&self, step_tokens: usize) -> Option<usize> {
        let prompt = self.prompt_tokens().min(step_tokens);
        prompt.checked_add(WARMING_TOKENS)
    }

    /// The context that it needs, the request before it included; `None` where that is no number.
    pub fn context(&self, step_tokens: usize) -> Option<usize> {
        Some(self.len(step_tokens)?.max(self.warming(step_tokens)?))
    }

    /// Tokens of KV for all sequences and the request that warms them up, each in runs as long
    /// as any backend has them; `None` where that is no number.
    pub fn room(&self, step_tokens: usize) -> Option<usize> {
        // MLX's; the CPU's pages are shorter.
        const RUN: usize = 256;
        let warming = self.warming(step_tokens)?;
        let all = self
            .len(step_tokens)?
            .checked_next_multiple_of(RUN)?
            .checked_mul(self.batch())?;
        all.checked_add(warming.checked_next_multiple_of(RUN)?)
    }
}

/// `prompt:512`, `decode:64@2048`, `decode:64@1x8`.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Work::Prompt { tokens } => write!(f, "prompt:{tokens}"),
            Work::Decode {
                tokens,
                depth,
                batch: 1,
            } => write!(f, "decode:{tokens}@{depth}"),
            Work::Decode {
                tokens,
                depth,
                batch,
            } => write!(f, "decode:{tokens}@{depth}x{batch}"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "must be such as prompt:512, decode:64@2048 or decode:64@1x8".to_owned();
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let parsed = match text.split_once(':') {
            Some(("prompt", tokens)) => number(tokens).map(|tokens| Work::Prompt { tokens }),
            Some(("decode", rest)) => rest.split_once('@').and_then(|(tokens, place)| {
                let (depth, batch) = place.split_once('x').unwrap_or((place, "1"));
                Some(Work::Decode {
                    tokens: number(tokens)?,
                    depth: number(depth)?,
                    batch: number(batch)?,
                })
            }),
            _ => None,
        };
        parsed.ok_or_else(wanted)
    }
}

/// Refuses works that the session has no room for.
pub fn check(works: &[Work], capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
    let context = capabilities.max_context;
    for work in works {
        let batch = work.batch();
        if batch > capabilities.max_step_tokens {
            return Err(CliError::Usage {
                what: format!("`--batch {batch}`"),
                expected: format!("at most {}, a step's tokens", capabilities.max_step_tokens),
            });
        }
        let len = work.len(capabilities.max_step_tokens);
        let fits_context = work
            .context(capabilities.max_step_tokens)
            .is_some_and(|tokens| tokens <= context);
        let held = len.filter(|_| fits_context).map(|len| held(len, memory));
        let fits = held
            .and_then(|held| held.checked_mul(batch))
            .is_some_and(|all| all <= memory.kv_capacity);
        if !fits {
            let capacity = memory.kv_capacity;
            return Err(CliError::Usage {
                what: format!("`{}`", work.name()),
                expected: format!("within the context of {context} and {capacity} tokens of KV"),
            });
        }
    }
    Ok(())
}

/// Prompts that share no prefix, the same in every round.
pub fn prompt(vocab_size: usize, len: usize, sequence: usize) -> Vec<u32> {
    Random::new(0, sequence as u64).tokens(vocab_size, len)
}

/// Tokens per second of the loop a program without an engine would write.
pub fn bare(session: &mut dyn Session, work: Work) -> Result<f64, CliError> {
    let prompt_len = work.prompt_tokens();
    let generated = match work {
        Work::Prompt { .. } => 0,
        Work::Decode { tokens, .. } => tokens,
    };
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let started = Instant::now();
    let mut rows = Vec::new();
    for index in 0..work.batch() {
        let tokens = prompt(session.capabilities().vocab_size, prompt_len, index);
        rows.push(prefill(session, &tokens, &mut batch, &mut output)?);
    }
    let prompted = Instant::now();
    for _ in 0..generated {
        batch.clear();
        for (sequence, token) in &rows {
            batch.push(*sequence, &[*token], Emit::Greedy { positions: 1 });
        }
        step(session, &batch, &mut output)?;
        for (row, (_, token)) in rows.iter_mut().enumerate() {
            *token = output.tokens(row)[0];
        }
    }
    let ended = Instant::now();
    for (sequence, _) in &rows {
        session.release(*sequence).map_err(EngineError::from)?;
    }
    Ok(match work {
        Work::Prompt { tokens } => tokens as f64 / (prompted - started).as_secs_f64(),
        Work::Decode { .. } => (generated * rows.len()) as f64 / (ended - prompted).as_secs_f64(),
    })
}

/// A new sequence with its prompt computed, and the token that follows it.
fn prefill(
    session: &mut dyn Session,
    tokens: &[u32],
    batch: &mut StepBatch,
    output: &mut StepOutput,
) -> Result<(SequenceId, u32), CliError> {
    let sequence = session.create().map_err(EngineError::from)?;
    let chunks = tokens.chunks(session.capabilities().max_step_tokens);
    let last = chunks.len() - 1;
    for (place, tokens) in chunks.enumerate() {
        let emit = if place == last {
            Emit::Greedy { positions: 1 }
        } else {
            Emit::Nothing
        };
        batch.clear();
        batch.push(sequence, tokens, emit);
        step(session, batch, output)?;
    }
    Ok((sequence, output.tokens(0)[0]))
}

fn step(
    session: &mut dyn Session,
    batch: &StepBatch,
    output: &mut StepOutput,
) -> Result<(), CliError> {
    let failed = |error: SessionError| CliError::Engine(error.into());
    session.step(batch, output).map_err(failed)?;
    match output.rows().iter().find_map(|row| row.error.clone()) {
        Some(error) => Err(failed(error)),
        None => Ok(()),
    }
}

/// What the engine made of some work.
pub struct Measured {
    pub tokens_per_second: f64,
    /// The engine's own part of a step; `None` where one step was all.
    pub overhead: Option<Duration>,
}

/// Measures the work through the engine, and gives the session back.
pub fn through_engine(
    session: Box<dyn Session>,
    work: Work,
) -> Result<(Measured, Box<dyn Session>), CliError> {
    let vocab_size = session.capabilities().vocab_size;
    // What is no number was refused before anything ran.
    let step = session.capabilities().max_step_tokens;
    let max_tokens = work.generated(step).unwrap_or(1);
    // Prompts held back for the sake of those that decode already would have the first sequences
    // end before the last begin.
    let options = EngineOptions {
        max_slowdown: f32::INFINITY,
        ..EngineOptions::default()
    };
    let engine = Engine::start(session, None, options)?;
    let request = |tokens, index, max_tokens| greedy(prompt(vocab_size, tokens, index), max_tokens);
    // Some devices prepare themselves for each thread anew: the engine's has to have had a prompt.
    let warming = request(work.prompt_tokens().min(step), work.batch(), WARMING_TOKENS);
    arrivals(vec![engine.submit(warming)?], Instant::now())?;
    let requests: Vec<GenerateRequest> = (0..work.batch())
        .map(|index| request(work.prompt_tokens(), index, max_tokens))
        .collect();
    let started = Instant::now();
    let generations: Vec<Generation> = requests
        .into_iter()
        .map(|request| engine.submit(request))
        .collect::<Result<_, _>>()?;
    let arrivals = arrivals(generations, started)?;
    let tokens_per_second = match work {
        Work::Prompt { tokens } => tokens as f64 / (arrivals[0][0] - started).as_secs_f64(),
        Work::Decode { .. } => speed_together(&arrivals),
    };
    let one_step = matches!(work, Work::Prompt { tokens } if tokens <= step);
    let overhead = Some(engine.stats().overhead);
    let measured = Measured {
        tokens_per_second,
        overhead: overhead.filter(|own| !own.is_zero() && !one_step),
    };
    Ok((measured, engine.into_session()?))
}

/// When each generation's tokens came.
fn arrivals(generations: Vec<Generation>, started: Instant) -> Result<Vec<Vec<Instant>>, CliError> {
    let readers = generations.into_iter().map(|stream| read(stream, started));
    let answers = block_on(join_all(readers)).into_iter();
    answers
        .map(|answer| answer.map(|answer| answer.arrivals))
        .collect()
}

/// Tokens per second while all sequences decode: from the last one's first token to the first
/// one's last. Sequences so short that they hardly meet are counted over the whole time.
pub fn speed_together(arrivals: &[Vec<Instant>]) -> f64 {
    let starts = || arrivals.iter().filter_map(|times| times.first());
    let ends = || arrivals.iter().filter_map(|times| times.last());
    let together = starts()
        .max()
        .zip(ends().min())
        .filter(|(start, end)| start < end);
    let Some((start, end)) = together.or_else(|| starts().min().zip(ends().max())) else {
        return f64::NAN;
    };
    let inside = arrivals
        .iter()
        .flatten()
        .filter(|time| *time > start && *time <= end);
    inside.count() as f64 / (*end - *start).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_written_as_they_are_read() {
        for (text, work) in [
            ("prompt:512", Work::Prompt { tokens: 512 }),
            (
                "decode:64@2048",
                Work::Decode {
                    tokens: 64,
                    depth: 2048,
                    batch: 1,
                },
            ),
            (
                "decode:64@1x8",
                Work::Decode {
                    tokens: 64,
                    depth: 1,
                    batch: 8,
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(work));
            assert_eq!(work.to_string(), text);
        }
        for text in [
            "",
            "prompt",
            "prompt:0",
            "prompt:-1",
            "decode:64",
            "decode:64@0",
            "decode:64@1x0",
            "decode:64@1x8x",
            "embed:4",
        ] {
            let error = Work::from_str(text).unwrap_err();
            assert!(error.contains("such as prompt:512"), "{text}: {error}");
        }
    }

    #[test]
    fn room_is_for_every_sequence_and_the_one_before() {
        for (tokens, expected) in [(63, 65), (512, 514), (2048, 2049)] {
            assert_eq!(Work::Prompt { tokens }.context(512), Some(expected));
        }
        let decode = |depth, batch| Work::Decode {
            tokens: 30,
            depth,
            batch,
        };
        for (work, expected) in [
            (Work::Prompt { tokens: 63 }, 256 + 256),
            (Work::Prompt { tokens: 2048 }, 2304 + 768),
            (decode(2048, 1), 2304 + 768),
            (decode(1, 16), 16 * 256 + 256),
            (
                Work::Prompt {
                    tokens: usize::MAX - 1,
                },
                usize::MAX,
            ),
        ] {
            assert_eq!(work.room(512).unwrap_or(usize::MAX), expected, "{work}");
        }
    }

    #[test]
    fn only_the_time_together_counts() {
        let zero = Instant::now();
        let at = |seconds: &[u64]| -> Vec<Instant> {
            seconds
                .iter()
                .map(|s| zero + Duration::from_secs(*s))
                .collect()
        };
        // The first decodes alone for two seconds, the second for one at the end.
        let arrivals = [at(&[1, 2, 3, 4, 5]), at(&[3, 4, 5, 6])];
        assert_eq!(speed_together(&arrivals), 2.0);
        assert_eq!(speed_together(&arrivals[..1]), 1.0);
        assert_eq!(speed_together(&[at(&[1, 2]), at(&[2, 3])]), 1.5);
    }
}
