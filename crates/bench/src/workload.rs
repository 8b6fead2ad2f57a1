//! One workload on the bare session and through the engine.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineError, EngineOptions, GenerateRequest, Generation};
use loquat_session::{
    AppliedAdapter, Capabilities, Emit, Memory, SequenceId, Session, SessionError, StepBatch,
    StepOutput,
};

use futures_util::future::join_all;
use pollster::block_on;

use super::error::BenchError;
use super::plain_options;
use super::random::Random;
use super::timed_answer::{greedy, read};

/// Tokens that the warm-up request generates.
const WARM_UP_TOKENS: usize = 2;

/// Prompt processing or decoding of a fixed size.
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
            Workload::Prompt { .. } => 1,
            Workload::Decode { batch, .. } => *batch,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Workload::Prompt { tokens } => format!("prompt {tokens}"),
            Workload::Decode {
                tokens,
                depth,
                batch: 1,
            } => format!("decode {tokens} at {depth}"),
            Workload::Decode {
                tokens,
                depth,
                batch,
            } => format!("decode {tokens} × {batch} at {depth}"),
        }
    }

    fn prompt_tokens(&self) -> usize {
        match *self {
            Workload::Prompt { tokens } => tokens,
            Workload::Decode { depth, .. } => depth,
        }
    }

    /// Tokens one sequence generates through the engine; `None` on overflow.
    ///
    /// The first token comes with the prompt, outside the measured time. Sequences whose prompts
    /// finish early decode during the others' prefill: they get that many more tokens, so that
    /// all sequences decode together while the clock runs.
    fn generated(&self, step_tokens: usize) -> Option<usize> {
        match *self {
            Workload::Prompt { .. } => Some(1),
            Workload::Decode {
                tokens, batch: 1, ..
            } => tokens.checked_add(1),
            Workload::Decode {
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

    /// Length of one sequence at its end; `None` on overflow.
    pub fn len(&self, step_tokens: usize) -> Option<usize> {
        self.prompt_tokens()
            .checked_add(self.generated(step_tokens)?)
    }

    /// Length of the warm-up sequence.
    fn warm_up_len(&self, step_tokens: usize) -> Option<usize> {
        let prompt = self.prompt_tokens().min(step_tokens);
        prompt.checked_add(WARM_UP_TOKENS)
    }

    /// The context that it needs, including the warm-up; `None` on overflow.
    pub fn context(&self, step_tokens: usize) -> Option<usize> {
        Some(self.len(step_tokens)?.max(self.warm_up_len(step_tokens)?))
    }

    /// Tokens of KV for all sequences and the warm-up, each rounded up to the largest block of any
    /// backend; `None` on overflow.
    pub fn kv_tokens(&self, step_tokens: usize) -> Option<usize> {
        // MLX's block; the CPU's pages are smaller.
        const BLOCK: usize = 256;
        let warm_up = self.warm_up_len(step_tokens)?;
        let all = self
            .len(step_tokens)?
            .checked_next_multiple_of(BLOCK)?
            .checked_mul(self.batch())?;
        all.checked_add(warm_up.checked_next_multiple_of(BLOCK)?)
    }
}

/// `prompt:512`, `decode:64@2048`, `decode:64@1x8`.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Workload::Prompt { tokens } => write!(f, "prompt:{tokens}"),
            Workload::Decode {
                tokens,
                depth,
                batch: 1,
            } => write!(f, "decode:{tokens}@{depth}"),
            Workload::Decode {
                tokens,
                depth,
                batch,
            } => write!(f, "decode:{tokens}@{depth}x{batch}"),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "must look like prompt:512, decode:64@2048 or decode:64@1x8".to_owned();
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let parsed = match text.split_once(':') {
            Some(("prompt", tokens)) => number(tokens).map(|tokens| Workload::Prompt { tokens }),
            Some(("decode", rest)) => rest.split_once('@').and_then(|(tokens, size)| {
                let (depth, batch) = size.split_once('x').unwrap_or((size, "1"));
                Some(Workload::Decode {
                    tokens: number(tokens)?,
                    depth: number(depth)?,
                    batch: number(batch)?,
                })
            }),
            _ => None,
        };
        parsed.ok_or_else(expected)
    }
}

/// The sequences that the largest workload runs at once.
pub fn max_batch(workloads: &[Workload]) -> usize {
    workloads.iter().map(Workload::batch).max().unwrap_or(1)
}

/// Refuses workloads that do not fit the session.
pub fn check(
    workloads: &[Workload],
    capabilities: &Capabilities,
    memory: &Memory,
) -> Result<(), BenchError> {
    let context = capabilities.max_context;
    for work in workloads {
        let batch = work.batch();
        if batch > capabilities.max_step_tokens {
            return Err(BenchError::Usage {
                what: format!("`--batch {batch}`"),
                expected: format!(
                    "at most {}, the tokens of a step",
                    capabilities.max_step_tokens
                ),
            });
        }
        let len = work.len(capabilities.max_step_tokens);
        let fits_context = work
            .context(capabilities.max_step_tokens)
            .is_some_and(|tokens| tokens <= context);
        let fits = len
            .filter(|_| fits_context)
            .and_then(|len| memory.sequence_tokens(len).checked_mul(batch))
            .is_some_and(|all| all <= memory.kv_capacity);
        if !fits {
            let what = format!("`{}`", work.name());
            return Err(BenchError::does_not_fit(what, context, memory));
        }
    }
    Ok(())
}

/// Prompts without a common prefix, the same in every round.
pub fn prompt(vocab_size: usize, len: usize, sequence: usize) -> Vec<u32> {
    Random::new(0, sequence as u64).tokens(vocab_size, len)
}

/// Tokens per second of a plain loop over the session, without the engine.
pub fn on_session(session: &mut dyn Session, work: Workload) -> Result<f64, BenchError> {
    on_session_adapted(session, work, &[])
}

/// The same; sequences have one of the adapters each, in turn.
pub fn on_session_adapted(
    session: &mut dyn Session,
    work: Workload,
    adapters: &[AppliedAdapter],
) -> Result<f64, BenchError> {
    let prompt_len = work.prompt_tokens();
    let generated = match work {
        Workload::Prompt { .. } => 0,
        Workload::Decode { tokens, .. } => tokens,
    };
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let started = Instant::now();
    let mut rows = Vec::new();
    for index in 0..work.batch() {
        let tokens = prompt(session.capabilities().vocab_size, prompt_len, index);
        let own = adapters.iter().cycle().skip(index).take(1);
        let own: Vec<AppliedAdapter> = own.copied().collect();
        let created = session.create_adapted(&own);
        let sequence = created.map_err(EngineError::from)?;
        let token = prefill(session, (sequence, &tokens), &mut batch, &mut output)?;
        rows.push((sequence, token));
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
        Workload::Prompt { tokens } => tokens as f64 / (prompted - started).as_secs_f64(),
        Workload::Decode { .. } => {
            (generated * rows.len()) as f64 / (ended - prompted).as_secs_f64()
        }
    })
}

/// Computes a sequence's prompt; returns the token that follows it.
fn prefill(
    session: &mut dyn Session,
    (sequence, tokens): (SequenceId, &[u32]),
    batch: &mut StepBatch,
    output: &mut StepOutput,
) -> Result<u32, BenchError> {
    let chunks = tokens.chunks(session.capabilities().max_step_tokens);
    let last = chunks.len() - 1;
    for (index, tokens) in chunks.enumerate() {
        let emit = if index == last {
            Emit::Greedy { positions: 1 }
        } else {
            Emit::Nothing
        };
        batch.clear();
        batch.push(sequence, tokens, emit);
        step(session, batch, output)?;
    }
    Ok(output.tokens(0)[0])
}

fn step(
    session: &mut dyn Session,
    batch: &StepBatch,
    output: &mut StepOutput,
) -> Result<(), BenchError> {
    let failed = |error: SessionError| BenchError::Engine(error.into());
    session.step(batch, output).map_err(failed)?;
    match output.rows().iter().find_map(|row| row.error.clone()) {
        Some(error) => Err(failed(error)),
        None => Ok(()),
    }
}

/// A workload measured through the engine.
pub struct EngineRun {
    pub tokens_per_second: f64,
    /// The engine's own time per step; `None` if the workload was one step.
    pub overhead: Option<Duration>,
}

/// Measures the workload through the engine and returns the session.
pub fn through_engine(
    session: Box<dyn Session>,
    work: Workload,
) -> Result<(EngineRun, Box<dyn Session>), BenchError> {
    let vocab_size = session.capabilities().vocab_size;
    // `check` refused an overflow.
    let step = session.capabilities().max_step_tokens;
    let max_tokens = work.generated(step).unwrap_or(1);
    // If prefill were throttled, the first sequences would end before the last begin.
    let options = EngineOptions {
        max_slowdown: f32::INFINITY,
        ..plain_options()
    };
    let engine = Engine::start(session, None, options)?;
    let request = |tokens, index, max_tokens| greedy(prompt(vocab_size, tokens, index), max_tokens);
    // Some devices set up each thread on first use, so the engine's thread runs a prompt first.
    let warm_up = request(work.prompt_tokens().min(step), work.batch(), WARM_UP_TOKENS);
    arrivals(vec![engine.submit(warm_up)?], Instant::now())?;
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
        Workload::Prompt { tokens } => tokens as f64 / (arrivals[0][0] - started).as_secs_f64(),
        Workload::Decode { .. } => overlapping_speed(&arrivals),
    };
    let one_step = matches!(work, Workload::Prompt { tokens } if tokens <= step);
    let overhead = Some(engine.stats().overhead);
    let run = EngineRun {
        tokens_per_second,
        overhead: overhead.filter(|own| !own.is_zero() && !one_step),
    };
    Ok((run, engine.into_session()?))
}

/// Arrival times of each generation's tokens.
fn arrivals(
    generations: Vec<Generation>,
    started: Instant,
) -> Result<Vec<Vec<Instant>>, BenchError> {
    let readers = generations.into_iter().map(|stream| read(stream, started));
    let answers = block_on(join_all(readers)).into_iter();
    answers
        .map(|answer| answer.map(|answer| answer.arrivals))
        .collect()
}

/// Tokens per second while all sequences decode: from the latest first token to the earliest last
/// token. Sequences too short to overlap are counted over the whole time.
pub fn overlapping_speed(arrivals: &[Vec<Instant>]) -> f64 {
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
    fn workloads_round_trip_as_text() {
        for (text, work) in [
            ("prompt:512", Workload::Prompt { tokens: 512 }),
            (
                "decode:64@2048",
                Workload::Decode {
                    tokens: 64,
                    depth: 2048,
                    batch: 1,
                },
            ),
            (
                "decode:64@1x8",
                Workload::Decode {
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
            let error = Workload::from_str(text).unwrap_err();
            assert!(error.contains("look like prompt:512"), "{text}: {error}");
        }
    }

    #[test]
    fn kv_covers_all_sequences_and_warm_up() {
        for (tokens, expected) in [(63, 65), (512, 514), (2048, 2049)] {
            assert_eq!(Workload::Prompt { tokens }.context(512), Some(expected));
        }
        let decode = |depth, batch| Workload::Decode {
            tokens: 30,
            depth,
            batch,
        };
        for (work, expected) in [
            (Workload::Prompt { tokens: 63 }, 256 + 256),
            (Workload::Prompt { tokens: 2048 }, 2304 + 768),
            (decode(2048, 1), 2304 + 768),
            (decode(1, 16), 16 * 256 + 256),
            (
                Workload::Prompt {
                    tokens: usize::MAX - 1,
                },
                usize::MAX,
            ),
        ] {
            assert_eq!(
                work.kv_tokens(512).unwrap_or(usize::MAX),
                expected,
                "{work}"
            );
        }
    }

    #[test]
    fn only_overlapping_time_counts() {
        let zero = Instant::now();
        let at = |seconds: &[u64]| -> Vec<Instant> {
            seconds
                .iter()
                .map(|s| zero + Duration::from_secs(*s))
                .collect()
        };
        // The first decodes alone for two seconds, the second for one at the end.
        let arrivals = [at(&[1, 2, 3, 4, 5]), at(&[3, 4, 5, 6])];
        assert_eq!(overlapping_speed(&arrivals), 2.0);
        assert_eq!(overlapping_speed(&arrivals[..1]), 1.0);
        assert_eq!(overlapping_speed(&[at(&[1, 2]), at(&[2, 3])]), 1.5);
    }
}
