//! A session without a model: its logits are a hash of the sequence's whole history, so that a
//! token fed twice, dropped, or fed to the wrong sequence shows as different output.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use loquat_session::{
    Capabilities, Emit, Memory, PrefixCopy, Row, SequenceId, Session, SessionError, StepBatch,
    StepOutput,
};

const EXPORT_MAGIC: &[u8; 8] = b"loqfake1";

/// What the fake pretends to be.
#[derive(Debug, Clone)]
pub struct FakeOptions {
    pub vocab_size: usize,
    pub max_context: usize,
    pub max_sequences: usize,
    pub max_step_tokens: usize,
    pub kv_capacity: usize,
    pub kv_granularity: usize,
    /// How long each step takes.
    pub delay: Duration,
    /// When not empty, `script[(n - 1) % script.len()]` is by far the likeliest token after
    /// `n` tokens: a prompt of one token is answered with the script.
    pub script: Vec<u32>,
    /// A row that brings this token is refused.
    pub poison: Option<u32>,
    /// What goes wrong at which step, counted from zero.
    pub faults: Vec<(usize, Fault)>,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            vocab_size: 264,
            max_context: 4096,
            max_sequences: 64,
            max_step_tokens: 256,
            kv_capacity: 16 * 4096,
            kv_granularity: 16,
            delay: Duration::ZERO,
            script: Vec::new(),
            poison: None,
            faults: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device fails.
    Fail,
    /// The backend has a bug.
    Panic,
    /// The backend breaks the contract: rows come back without what they were to emit.
    Withhold,
}

/// What a test may watch while the engine owns the session.
#[derive(Debug, Default)]
pub struct FakeCounters {
    live: AtomicUsize,
    dropped: AtomicBool,
    steps: Mutex<Vec<StepShape>>,
}

/// The size of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    pub rows: usize,
    pub tokens: usize,
}

impl FakeCounters {
    /// Sequences not yet released.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Whether the session itself is gone.
    pub fn dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Every step so far, failed ones included.
    pub fn steps(&self) -> Vec<StepShape> {
        self.steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn record(&self, shape: StepShape) -> usize {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(shape);
        steps.len() - 1
    }
}

pub struct FakeSession {
    options: FakeOptions,
    capabilities: Capabilities,
    counters: Arc<FakeCounters>,
    sequences: BTreeMap<SequenceId, Sequence>,
    /// Holders of each page; a page no one holds is not listed.
    pages: BTreeMap<u64, usize>,
    next_sequence: u64,
    next_page: u64,
}

#[derive(Debug, Default)]
struct Sequence {
    tokens: Vec<u32>,
    pages: Vec<u64>,
}

impl FakeSession {
    pub fn new(options: FakeOptions) -> Self {
        let capabilities = Capabilities {
            device: "fake".into(),
            vocab_size: options.vocab_size,
            max_context: options.max_context,
            max_sequences: options.max_sequences,
            max_step_tokens: options.max_step_tokens,
            structured_output: true,
            speculative_decoding: true,
            prefix_copy: PrefixCopy::AnyLength,
            multimodal: false,
            batched_serving: true,
            export: true,
            kv_format: "tokens",
            batch_invariant: true,
        };
        Self {
            options,
            capabilities,
            counters: Arc::default(),
            sequences: BTreeMap::new(),
            pages: BTreeMap::new(),
            next_sequence: 0,
            next_page: 0,
        }
    }

    pub fn counters(&self) -> Arc<FakeCounters> {
        Arc::clone(&self.counters)
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, SessionError> {
        self.sequences
            .get(&id)
            .ok_or(SessionError::UnknownSequence(id))
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next_sequence);
        self.next_sequence += 1;
        self.sequences.insert(id, sequence);
        self.publish_live();
        id
    }

    fn publish_live(&self) {
        self.counters
            .live
            .store(self.sequences.len(), Ordering::SeqCst);
    }

    fn check_slot(&self) -> Result<(), SessionError> {
        let max = self.options.max_sequences;
        if self.sequences.len() >= max {
            return Err(SessionError::TooManySequences { max });
        }
        Ok(())
    }

    fn free_tokens(&self) -> usize {
        let granularity = self.options.kv_granularity;
        (self.options.kv_capacity / granularity).saturating_sub(self.pages.len()) * granularity
    }

    fn check_room(&self, pages: usize) -> Result<(), SessionError> {
        let (wanted, available) = (pages * self.options.kv_granularity, self.free_tokens());
        if wanted > available {
            return Err(SessionError::KvExhausted { wanted, available });
        }
        Ok(())
    }

    fn new_page(&mut self) -> u64 {
        let page = self.next_page;
        self.next_page += 1;
        self.pages.insert(page, 1);
        page
    }

    fn drop_page(&mut self, page: u64) {
        if let Some(holders) = self.pages.get_mut(&page) {
            *holders -= 1;
            if *holders == 0 {
                self.pages.remove(&page);
            }
        }
    }

    /// Appends the row's tokens, or says why not and changes nothing.
    fn append(&mut self, row: &Row, tokens: &[u32]) -> Result<(), SessionError> {
        self.check_row(row, tokens)?;
        let granularity = self.options.kv_granularity;
        let sequence = self.get(row.sequence)?;
        let len = sequence.tokens.len();
        let shared_tail = match sequence.pages.last() {
            Some(page) if !len.is_multiple_of(granularity) => {
                self.pages.get(page).is_some_and(|n| *n > 1)
            }
            _ => false,
        };
        let fresh = (len + tokens.len()).div_ceil(granularity) - sequence.pages.len();
        self.check_room(fresh + usize::from(shared_tail))?;

        let Some(mut sequence) = self.sequences.remove(&row.sequence) else {
            return Err(SessionError::UnknownSequence(row.sequence));
        };
        if shared_tail && let Some(page) = sequence.pages.pop() {
            self.drop_page(page);
            sequence.pages.push(self.new_page());
        }
        for _ in 0..fresh {
            sequence.pages.push(self.new_page());
        }
        sequence.tokens.extend_from_slice(tokens);
        self.sequences.insert(row.sequence, sequence);
        Ok(())
    }

    fn check_row(&self, row: &Row, tokens: &[u32]) -> Result<(), SessionError> {
        let options = &self.options;
        let wanted = self.get(row.sequence)?.tokens.len() + tokens.len();
        if tokens.is_empty() {
            return Err(SessionError::EmptyRow);
        }
        let positions = row.emit.positions();
        if positions > tokens.len() || (positions == 0 && row.emit != Emit::Nothing) {
            return Err(SessionError::EmitOutOfRange {
                positions,
                tokens: tokens.len(),
            });
        }
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= options.vocab_size) {
            return Err(SessionError::TokenOutOfRange {
                token,
                vocab_size: options.vocab_size,
            });
        }
        if wanted > options.max_context {
            return Err(SessionError::ContextExceeded {
                wanted,
                max_context: options.max_context,
            });
        }
        if let Some(poison) = options.poison.filter(|poison| tokens.contains(poison)) {
            return Err(SessionError::Device(format!("token {poison} is poison")));
        }
        Ok(())
    }

    fn emit(&self, row: &Row, output: &mut StepOutput) {
        let Some(sequence) = self.sequences.get(&row.sequence) else {
            return output.push_nothing();
        };
        let tokens = &sequence.tokens;
        let lengths = tokens.len() + 1 - row.emit.positions()..=tokens.len();
        match row.emit {
            Emit::Nothing => output.push_nothing(),
            Emit::Greedy { positions } => {
                let chosen = output.push_greedy(positions);
                for (slot, len) in chosen.iter_mut().zip(lengths) {
                    *slot = argmax(&self.logits(&tokens[..len]));
                }
            }
            Emit::Logits { positions } => {
                let vocab = self.options.vocab_size;
                let rows = output.push_logits(positions).chunks_exact_mut(vocab);
                for (slot, len) in rows.zip(lengths) {
                    slot.copy_from_slice(&self.logits(&tokens[..len]));
                }
            }
        }
    }

    /// The fake's whole model: a pure function of the history, spread over [-8, 8).
    fn logits(&self, history: &[u32]) -> Vec<f32> {
        let state = state_of(history);
        let mut logits: Vec<f32> = (0..self.options.vocab_size as u32)
            .map(|token| (mix(state, token) >> 40) as f32 / (1 << 20) as f32 - 8.0)
            .collect();
        let script = &self.options.script;
        if let Some(turn) = history.len().checked_sub(1).filter(|_| !script.is_empty())
            && let Some(logit) = logits.get_mut(script[turn % script.len()] as usize)
        {
            *logit = 64.0;
        }
        logits
    }
}

/// A history in one number.
fn state_of(history: &[u32]) -> u64 {
    history.iter().fold(0, |state, &token| mix(state, token))
}

/// SplitMix64's finaliser over a running state.
fn mix(state: u64, token: u32) -> u64 {
    let mut z = state
        .rotate_left(17)
        .wrapping_add(u64::from(token) + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

impl Session for FakeSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        Memory {
            weight_bytes: 0,
            kv_bytes_per_token: 4,
            kv_capacity: self.options.kv_capacity,
            kv_in_use: self.pages.len() * self.options.kv_granularity,
            kv_granularity: self.options.kv_granularity,
            state_bytes: 0,
            states_in_use: 0,
        }
    }

    fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.check_slot()?;
        Ok(self.insert(Sequence::default()))
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        Ok(self.get(sequence)?.tokens.len())
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let granularity = self.options.kv_granularity;
        let parent = self.get(source)?;
        let available = parent.tokens.len();
        if len > available {
            return Err(SessionError::LengthOutOfRange { len, available });
        }
        self.check_slot()?;
        let tokens = parent.tokens[..len].to_vec();
        let mut pages = parent.pages[..len / granularity].to_vec();
        let has_tail = !len.is_multiple_of(granularity);
        self.check_room(usize::from(has_tail))?;
        for page in &pages {
            *self.pages.entry(*page).or_default() += 1;
        }
        if has_tail {
            pages.push(self.new_page());
        }
        Ok(self.insert(Sequence { tokens, pages }))
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        let keep = len.div_ceil(self.options.kv_granularity);
        let Some(held) = self.sequences.get_mut(&sequence) else {
            return Err(SessionError::UnknownSequence(sequence));
        };
        let available = held.tokens.len();
        if len > available {
            return Err(SessionError::LengthOutOfRange { len, available });
        }
        held.tokens.truncate(len);
        for page in held.pages.split_off(keep) {
            self.drop_page(page);
        }
        Ok(())
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        let Some(held) = self.sequences.remove(&sequence) else {
            return Err(SessionError::UnknownSequence(sequence));
        };
        for page in held.pages {
            self.drop_page(page);
        }
        self.publish_live();
        Ok(())
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        let step = self.counters.record(StepShape {
            rows: batch.rows().len(),
            tokens: batch.token_count(),
        });
        std::thread::sleep(self.options.delay);
        let faults = self.options.faults.iter();
        let fault = faults.filter(|f| f.0 == step).map(|f| f.1).next();
        match fault {
            Some(Fault::Fail) => return Err(SessionError::Device(format!("step {step}"))),
            Some(Fault::Panic) => panic!("the fake panics at step {step}"),
            Some(Fault::Withhold) | None => {}
        }

        output.reset(self.options.vocab_size);
        let (mut seen, mut taken) = (BTreeSet::new(), 0);
        for row in batch.rows() {
            let tokens = batch.tokens(row);
            taken += tokens.len();
            let max = self.options.max_step_tokens;
            let appended = if !seen.insert(row.sequence) {
                Err(SessionError::DuplicateSequence(row.sequence))
            } else if taken > max {
                Err(SessionError::StepTooLarge { tokens: taken, max })
            } else {
                self.append(row, tokens)
            };
            match appended {
                Err(error) => output.push_error(error),
                Ok(()) if fault.is_some() => output.push_nothing(),
                Ok(()) => self.emit(row, output),
            }
        }
        Ok(())
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        let tokens = &self.get(sequence)?.tokens;
        let mut bytes = EXPORT_MAGIC.to_vec();
        bytes.extend(state_of(tokens).to_le_bytes());
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        Ok(bytes)
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let bad = |why: &str| SessionError::BadImport(why.into());
        let body = bytes
            .strip_prefix(EXPORT_MAGIC)
            .ok_or_else(|| bad("it does not start like an export of the fake"))?;
        let (state, body) = body
            .split_first_chunk::<8>()
            .ok_or_else(|| bad("it is cut short"))?;
        let (words, rest) = body.as_chunks::<4>();
        let tokens: Vec<u32> = words.iter().map(|w| u32::from_le_bytes(*w)).collect();
        if !rest.is_empty() || u64::from_le_bytes(*state) != state_of(&tokens) {
            return Err(bad("it is damaged"));
        }
        let vocab = self.options.vocab_size;
        if tokens.iter().any(|token| *token as usize >= vocab) {
            return Err(bad("it is from another vocabulary"));
        }
        if tokens.len() > self.options.max_context {
            return Err(SessionError::ContextExceeded {
                wanted: tokens.len(),
                max_context: self.options.max_context,
            });
        }
        let pages = tokens.len().div_ceil(self.options.kv_granularity);
        self.check_slot()?;
        self.check_room(pages)?;
        let pages = (0..pages).map(|_| self.new_page()).collect();
        Ok(self.insert(Sequence { tokens, pages }))
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.counters.live.store(0, Ordering::SeqCst);
        self.counters.dropped.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use loquat_session::{OpenError, SessionOptions, conformance};

    use super::*;

    fn feed(
        session: &mut FakeSession,
        id: SequenceId,
        tokens: &[u32],
    ) -> Result<u32, SessionError> {
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        batch.push(id, tokens, Emit::Greedy { positions: 1 });
        session.step(&batch, &mut output)?;
        match &output.rows()[0].error {
            Some(error) => Err(error.clone()),
            None => Ok(output.greedy(0)[0]),
        }
    }

    #[test]
    fn output_depends_on_the_history_and_not_on_how_it_came() {
        let mut session = FakeSession::new(FakeOptions::default());
        let [whole, cut, other] = std::array::from_fn(|_| session.create().unwrap());
        let expected = feed(&mut session, whole, &[1, 2, 3]).unwrap();
        feed(&mut session, cut, &[1, 2]).unwrap();
        assert_eq!(feed(&mut session, cut, &[3]).unwrap(), expected);
        assert_ne!(feed(&mut session, other, &[2, 1, 3]).unwrap(), expected);

        let fork = session.fork(whole, 2).unwrap();
        assert_eq!(feed(&mut session, fork, &[3]).unwrap(), expected);
        session.truncate(cut, 2).unwrap();
        assert_eq!(feed(&mut session, cut, &[3]).unwrap(), expected);

        let bytes = session.export(whole).unwrap();
        let twin = session.import(&bytes).unwrap();
        assert_eq!(
            feed(&mut session, twin, &[9]).unwrap(),
            feed(&mut session, whole, &[9]).unwrap()
        );
        assert!(session.import(&bytes[..bytes.len() - 1]).is_err());
    }

    /// Opens the fake as a backend opens a model.
    fn open(options: &SessionOptions) -> Result<Box<dyn Session>, OpenError> {
        let model = FakeOptions::default();
        let legal = |option, value: Option<usize>, max: usize| match value {
            Some(value) if !(1..=max).contains(&value) => Err(OpenError::Option {
                option,
                found: value.to_string(),
                expected: format!("from 1 to {max}"),
            }),
            _ => Ok(value),
        };
        let context = legal("context", options.context, model.max_context)?;
        let kv_tokens = legal("kv_tokens", options.kv_tokens, usize::MAX)?;
        legal("max_sequences", Some(options.max_sequences), usize::MAX)?;
        legal("max_step_tokens", Some(options.max_step_tokens), usize::MAX)?;
        legal("threads", options.threads, usize::MAX)?;
        Ok(Box::new(FakeSession::new(FakeOptions {
            max_context: context.unwrap_or(model.max_context),
            kv_capacity: kv_tokens.unwrap_or(model.kv_capacity),
            max_sequences: options.max_sequences,
            max_step_tokens: options.max_step_tokens,
            ..model
        })))
    }

    #[test]
    fn the_fake_keeps_the_contract() {
        let outcomes = conformance::run(&conformance::Subject {
            open: &open,
            tolerance: 0.0,
        });
        let failures: Vec<_> = outcomes.iter().filter(|(_, o)| o.is_err()).collect();
        assert!(failures.is_empty(), "{failures:#?}");
    }

    #[test]
    fn shared_pages_count_once_and_come_back() {
        let mut session = FakeSession::new(FakeOptions {
            kv_capacity: 64,
            ..FakeOptions::default()
        });
        let parent = session.create().unwrap();
        feed(&mut session, parent, &[7; 20]).unwrap();
        assert_eq!(session.memory().kv_in_use, 32);
        let child = session.fork(parent, 16).unwrap();
        assert_eq!(session.memory().kv_in_use, 32);
        session.truncate(parent, 8).unwrap();
        assert_eq!(session.memory().kv_in_use, 16);
        feed(&mut session, parent, &[5]).unwrap();
        assert_eq!(session.memory().kv_in_use, 32, "writing unshares the page");
        assert_eq!(
            feed(&mut session, child, &[1; 40]),
            Err(SessionError::KvExhausted {
                wanted: 48,
                available: 32
            })
        );
        session.release(parent).unwrap();
        session.release(child).unwrap();
        assert_eq!(session.memory().kv_in_use, 0);
        assert_eq!(session.counters().live(), 0);
    }
}
