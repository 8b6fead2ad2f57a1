//! The contract's tests as a library: a backend's own test file is a few lines that call
//! [`run`].
//!
//! Results of the same rows beside other ones are equal bits if a session is batch-invariant, results
//! of other rows if it is chunk-invariant too; otherwise they are equal within the subject's
//! tolerance.

mod adapters;
mod drawing;
mod equivalence;
mod hidden;
mod holding;
mod media;
mod refusal;
mod snapshots;
mod tails;
mod windows;

use crate::{
    AdapterWeights, Emit, Media, OpenError, SequenceId, Session, SessionError, SessionOptions,
    StepBatch, StepOutput,
};

type Opened = Result<Box<dyn Session>, OpenError>;

/// What is tested: a way to open sessions over one model.
pub struct Subject<'a> {
    /// Opens a fresh session.
    pub open: &'a dyn Fn(&SessionOptions) -> Opened,
    /// Largest difference between logits that should be equal, for sessions that do not
    /// promise equal bits.
    pub tolerance: f32,
    /// Media that the model's tower takes, if it has one. Raw embeddings are tested in any case.
    pub media: &'a [Media],
    /// Two or more adapters of the model that can be combined, with different content; may be
    /// empty.
    pub adapters: &'a [AdapterWeights],
}

/// Logits of a reference: `logits[i]` follows `tokens[..=i]`.
pub struct Golden<'a> {
    /// The tokens of one sequence.
    pub tokens: &'a [u32],
    /// `[token][vocab]`
    pub logits: &'a [f32],
    /// Largest accepted difference from the session's logits.
    pub tolerance: f32,
}

/// One check's name and what went wrong, if anything.
pub type Outcome = (&'static str, Result<(), String>);

type Check = fn(&Subject) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    (
        "chunked prefill equals whole",
        equivalence::chunked_equals_whole,
    ),
    (
        "batched rows equal single ones",
        equivalence::batched_equals_single,
    ),
    (
        "a fork equals a fresh sequence",
        equivalence::fork_equals_fresh,
    ),
    ("forks are independent", equivalence::forks_are_independent),
    (
        "a truncated fork does not change its source",
        equivalence::truncated_fork_is_independent,
    ),
    (
        "truncation equals a fresh sequence",
        equivalence::truncated_equals_fresh,
    ),
    (
        "long prefixes can be reused",
        equivalence::long_prefixes_are_reusable,
    ),
    (
        "the last row can be undone",
        snapshots::last_row_can_be_undone,
    ),
    (
        "windows bound the memory of a sequence",
        windows::bounded_memory,
    ),
    (
        "prompts beyond windows do not depend on their rows",
        windows::chunks_equal_whole,
    ),
    (
        "forks at the edges of windows equal fresh sequences",
        windows::forks_at_edges,
    ),
    (
        "cuts behind windows are refused",
        windows::cuts_behind_windows_are_refused,
    ),
    (
        "an import beyond windows equals the exported one",
        windows::imported_equals_exported,
    ),
    (
        "ended sequences free their memory",
        equivalence::ended_sequences_free_memory,
    ),
    ("held memory adds up to memory in use", holding::adds_up),
    ("shared memory is counted once", holding::shared_once),
    (
        "an imported sequence equals the exported one",
        equivalence::imported_equals_exported,
    ),
    (
        "imported ranges equal computed ones",
        equivalence::imported_ranges_equal_computed,
    ),
    (
        "adjacent ranges make one",
        equivalence::adjacent_ranges_make_one,
    ),
    (
        "imported tails equal computed ones",
        tails::imported_equal_computed,
    ),
    (
        "tails that do not fit are refused",
        tails::wrong_tails_are_refused,
    ),
    (
        "greedy is the argmax of the logits",
        equivalence::greedy_is_argmax,
    ),
    (
        "several emitted positions equal one at a time",
        equivalence::positions_equal_steps,
    ),
    (
        "hidden states do not depend on batching, or are refused",
        hidden::independent_of_batching,
    ),
    (
        "emitting hidden states changes nothing",
        hidden::emitting_changes_nothing,
    ),
    (
        "drawn tokens follow the distribution, or are refused",
        drawing::drawn_from_the_logits,
    ),
    (
        "drawn tokens do not depend on other rows",
        drawing::drawn_beside_others,
    ),
    ("empty batches and full contexts work", equivalence::edges),
    ("bad rows are refused and change nothing", refusal::bad_rows),
    ("bad lengths and ids are refused", refusal::bad_calls),
    (
        "a refused row does not affect others",
        refusal::other_rows_survive,
    ),
    (
        "exhausted KV refuses rows, and release frees it",
        refusal::kv_runs_out,
    ),
    (
        "too many sequences are refused",
        refusal::too_many_sequences,
    ),
    (
        "media are refused by sessions without room for them",
        media::refused_without_room,
    ),
    (
        "media in chunks equal media as a whole",
        media::chunked_equals_whole,
    ),
    (
        "rows with media do not depend on other rows",
        media::batched_equals_single,
    ),
    (
        "greedy tokens after media have the largest logits",
        media::greedy_after_media,
    ),
    (
        "forks inside and after media equal fresh sequences",
        media::fork_equals_fresh,
    ),
    (
        "an imported sequence with media equals the exported one",
        media::imported_equals_exported,
    ),
    (
        "imported ranges with media equal computed ones",
        media::imported_ranges_equal_computed,
    ),
    (
        "released media free their memory",
        media::released_media_free_memory,
    ),
    (
        "wrong media and spans are refused",
        media::wrong_media_are_refused,
    ),
    (
        "adapters are refused by sessions without room for them",
        adapters::refused_without_room,
    ),
    (
        "rows with adapters do not depend on other rows",
        adapters::batched_equals_single,
    ),
    (
        "adapters have an effect unless their scale is 0",
        adapters::adapters_have_effect,
    ),
    (
        "prompts with adapters in chunks equal whole ones",
        adapters::chunked_equals_whole,
    ),
    ("forks inherit adapters", adapters::forks_inherit),
    (
        "an imported sequence keeps its adapters",
        adapters::imported_equals_exported,
    ),
    ("wrong adapter calls are refused", adapters::bad_calls),
    (
        "unloaded adapters free their memory",
        adapters::unloaded_adapters_free_memory,
    ),
    ("damaged imports are refused", refusal::damaged_imports),
    ("illegal options are refused", refusal::illegal_options),
];

/// Checks that compare a prompt in several rows with the same prompt in one. A session whose first
/// row is a prompt that attends to itself promises no such equality.
const CUT_PROMPTS: &[&str] = &[
    "chunked prefill equals whole",
    "a fork equals a fresh sequence",
    "forks are independent",
    "a truncated fork does not change its source",
    "truncation equals a fresh sequence",
    "long prefixes can be reused",
    "several emitted positions equal one at a time",
    "hidden states do not depend on batching, or are refused",
    "prompts with adapters in chunks equal whole ones",
    "imported ranges equal computed ones",
    "imported tails equal computed ones",
    "tails that do not fit are refused",
];

/// Runs every check; a panic inside one is a failure of the backend and is passed on.
pub fn run(subject: &Subject) -> Vec<Outcome> {
    let probe = (subject.open)(&SessionOptions::default());
    let whole_prompt = probe.is_ok_and(|probe| probe.capabilities().media.whole_prompt);
    CHECKS
        .iter()
        .filter(|(name, _)| !(whole_prompt && CUT_PROMPTS.contains(name)))
        .map(|(name, check)| (*name, check(subject)))
        .collect()
}

/// Largest difference from a reference's logits, and whether it is within tolerance.
pub fn golden(subject: &Subject, golden: &Golden) -> Result<f32, String> {
    let mut probe = TestSession::open(subject, &SessionOptions::default())?;
    let sequence = probe.create()?;
    let found = probe.logits(sequence, golden.tokens, golden.tokens.len())?;
    if found.len() != golden.logits.len() {
        return Err(format!(
            "{} logits, expected {}",
            found.len(),
            golden.logits.len()
        ));
    }
    let difference = max_difference(&found, golden.logits);
    if difference <= golden.tolerance {
        Ok(difference)
    } else {
        Err(format!(
            "differs by {difference}, more than {}",
            golden.tolerance
        ))
    }
}

/// NaN counts as an infinite difference.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |max, d| {
        if d.is_nan() {
            f32::INFINITY
        } else {
            max.max(d)
        }
    })
}

/// A session with helpers for the checks.
struct TestSession {
    session: Box<dyn Session>,
    tolerance: f32,
    batch: StepBatch,
    output: StepOutput,
}

impl TestSession {
    fn open(subject: &Subject, options: &SessionOptions) -> Result<Self, String> {
        let session = (subject.open)(options).map_err(|error| format!("open: {error}"))?;
        Ok(Self {
            tolerance: subject.tolerance,
            session,
            batch: StepBatch::default(),
            output: StepOutput::default(),
        })
    }

    fn create(&mut self) -> Result<SequenceId, String> {
        self.session
            .create()
            .map_err(|error| format!("create: {error}"))
    }

    /// Steps one row and returns the logits of its last `positions`.
    fn logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        positions: usize,
    ) -> Result<Vec<f32>, String> {
        let emit = match positions {
            0 => Emit::Nothing,
            positions => Emit::Logits { positions },
        };
        self.step(&[(sequence, tokens, emit)])?;
        self.row_logits(0)
    }

    /// Steps rows that must all be accepted.
    fn step(&mut self, rows: &[(SequenceId, &[u32], Emit)]) -> Result<(), String> {
        let errors = self.try_step(rows)?;
        match errors.iter().flatten().next() {
            Some(error) => Err(format!("row refused: {error}")),
            None => Ok(()),
        }
    }

    /// Steps rows and returns each one's refusal.
    fn try_step(
        &mut self,
        rows: &[(SequenceId, &[u32], Emit)],
    ) -> Result<Vec<Option<SessionError>>, String> {
        self.batch.clear();
        for (sequence, tokens, emit) in rows {
            self.batch.push(*sequence, tokens, *emit);
        }
        let stepped = self.session.step(&self.batch, &mut self.output);
        stepped.map_err(|error| format!("step: {error}"))?;
        let outputs = self.output.rows();
        if outputs.len() != rows.len() {
            return Err(format!("{} outputs for {} rows", outputs.len(), rows.len()));
        }
        Ok(outputs.iter().map(|row| row.error.clone()).collect())
    }

    fn row_logits(&self, row: usize) -> Result<Vec<f32>, String> {
        let positions = 0..self.output.logit_positions(row);
        let logits: Vec<f32> = positions
            .flat_map(|position| self.output.logits(row, position).iter().copied())
            .collect();
        if logits.iter().all(|value| value.is_finite()) {
            Ok(logits)
        } else {
            Err("logits are not finite".into())
        }
    }

    fn row_hidden(&self, row: usize) -> Result<Vec<f32>, String> {
        let positions = 0..self.output.hidden_positions(row);
        let hidden: Vec<f32> = positions
            .flat_map(|position| self.output.hidden(row, position).iter().copied())
            .collect();
        if hidden.iter().all(|value| value.is_finite()) {
            Ok(hidden)
        } else {
            Err("hidden states are not finite".into())
        }
    }

    /// Results of rows that may have been cut otherwise.
    fn same(&self, what: &str, a: &[f32], b: &[f32]) -> Result<(), String> {
        let promises = self.session.capabilities();
        let exact = promises.batch_invariant && promises.chunk_invariant;
        self.compare(what, (a, b), exact)
    }

    /// Results of the same rows, in steps with and without others.
    fn same_row(&self, what: &str, a: &[f32], b: &[f32]) -> Result<(), String> {
        self.compare(what, (a, b), self.session.capabilities().batch_invariant)
    }

    /// How much a row may differ beside others.
    fn row_tolerance(&self) -> f32 {
        if self.session.capabilities().batch_invariant {
            0.0
        } else {
            self.tolerance
        }
    }

    fn compare(&self, what: &str, (a, b): (&[f32], &[f32]), exact: bool) -> Result<(), String> {
        let equal = if exact {
            a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        } else {
            max_difference(a, b) <= self.tolerance
        };
        if equal && a.len() == b.len() {
            Ok(())
        } else {
            Err(format!("{what}: differs by {}", max_difference(a, b)))
        }
    }

    fn vocab(&self) -> usize {
        self.session.capabilities().vocab_size
    }

    /// Pseudo-random tokens of a seed.
    fn tokens(&self, seed: u64, len: usize) -> Vec<u32> {
        let vocab = self.vocab() as u64;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % vocab
        };
        (0..len).map(|_| next() as u32).collect()
    }
}
