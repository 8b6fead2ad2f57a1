//! A session without a model: its logits are a hash of the sequence's whole history, so that a
//! token fed twice, dropped, or fed to the wrong sequence shows as different output.
//!
//! It is quick, the same every time, and as hostile as its options say: memory runs out, rows
//! and steps fail, a recurrent model forgets. Under a [`VirtualClock`] its steps take time
//! without anybody waiting.

mod cache;
mod clock;
mod counters;
mod model;
mod options;
mod pool;
#[cfg(test)]
mod tests;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use loquat_session::{
    Capabilities, Emit, Held, Memory, PrefixCopy, Row, SequenceId, Session, SessionError,
    StepBatch, StepOutput,
};

use cache::{Cache, RowStates};
pub use clock::{Cost, VirtualClock};
pub use counters::{FakeCounters, StepShape};
use model::{History, Model};
pub use options::{FakeOptions, Fault, Snapshots};

const KV_BYTES_PER_TOKEN: u64 = 4;
/// As much as many tokens' KV, as recurrent states are.
const STATE_BYTES: u64 = 64 * KV_BYTES_PER_TOKEN;

pub struct FakeSession {
    options: FakeOptions,
    capabilities: Capabilities,
    model: Model,
    cache: Cache,
    counters: Arc<FakeCounters>,
}

impl FakeSession {
    pub fn new(options: FakeOptions) -> Self {
        Self {
            capabilities: capabilities(&options),
            model: Model {
                vocab_size: options.vocab_size,
                script: options.script.clone(),
                opening: options.opening.clone(),
            },
            cache: Cache::new(&options),
            counters: Arc::default(),
            options,
        }
    }

    pub fn counters(&self) -> Arc<FakeCounters> {
        Arc::clone(&self.counters)
    }

    fn publish(&self) {
        let (live, kv) = (self.cache.sequences(), self.cache.tokens_in_use());
        self.counters.record_held(live, kv);
    }

    fn made(&self, id: SequenceId) -> SequenceId {
        self.counters.record_created();
        self.publish();
        id
    }

    fn spend(&self, time: Duration) {
        if let Some(clock) = &self.options.clock {
            clock.advance(time);
        }
    }

    /// Checks each row and makes room for it; one that is refused changes nothing.
    fn accept(
        &mut self,
        batch: &StepBatch,
        fault: Option<Fault>,
    ) -> Vec<Result<Option<RowStates>, SessionError>> {
        let mut taken = 0;
        let accept = |(index, row): (usize, &Row)| {
            let tokens = batch.tokens(row).len();
            refusal(fault, index, tokens)?;
            self.check(batch, index, taken)?;
            let states = self.cache.reserve(row.sequence, tokens);
            let states = states.inspect_err(|_| self.counters.record_starved())?;
            taken += tokens;
            Ok(states)
        };
        batch.rows().iter().enumerate().map(accept).collect()
    }

    /// Checks a row that comes after `taken` tokens of the step.
    fn check(&self, batch: &StepBatch, index: usize, taken: usize) -> Result<(), SessionError> {
        let row = &batch.rows()[index];
        let len = self.cache.len(row.sequence)?;
        batch.check(index, len, taken, &self.capabilities)?;
        let tokens = batch.tokens(row);
        let poison = self.options.poison;
        match poison.filter(|poison| tokens.contains(poison)) {
            Some(poison) => Err(SessionError::Device(format!("token {poison} is poison"))),
            None => Ok(()),
        }
    }

    /// Appends the tokens of a row that was accepted.
    fn run(
        &mut self,
        row: &Row,
        tokens: &[u32],
        states: Option<RowStates>,
    ) -> Result<(), SessionError> {
        let len = self.cache.len(row.sequence)?;
        self.spend(self.options.cost.of_row(len, tokens.len()));
        self.counters.record_computed(tokens.len());
        self.cache.commit(row.sequence, tokens, states)
    }

    fn emit(&self, emit: Emit, history: &History, output: &mut StepOutput) {
        let lengths = history.len() + 1 - emit.positions()..=history.len();
        match emit {
            Emit::Nothing => output.push_nothing(),
            Emit::Greedy { positions } => {
                let chosen = output.push_tokens(positions);
                for (slot, len) in chosen.iter_mut().zip(lengths) {
                    *slot = self.model.greedy(history, len);
                }
            }
            Emit::Drawn(draw) => {
                let mut logits = vec![0.0; self.options.vocab_size];
                self.model.logits(history, history.len(), &mut logits);
                let drawn = draw.choose(&logits);
                output.push_tokens(1)[0] = drawn.unwrap_or_default();
            }
            Emit::Logits { positions } => {
                let rows = output.push_logits(positions);
                let rows = rows.chunks_exact_mut(self.options.vocab_size);
                for (logits, len) in rows.zip(lengths) {
                    self.model.logits(history, len, logits);
                }
            }
            Emit::Hidden { positions } => {
                let width = self.options.hidden_size.unwrap_or(1);
                let states = output.push_hidden(positions).chunks_exact_mut(width);
                for (state, len) in states.zip(lengths) {
                    self.model.hidden(history, len, state);
                }
            }
        }
    }
}

fn capabilities(options: &FakeOptions) -> Capabilities {
    Capabilities {
        device: "fake".into(),
        vocab_size: options.vocab_size,
        max_context: options.max_context,
        max_sequences: options.max_sequences,
        max_step_tokens: options.max_step_tokens,
        logits: true,
        hidden_size: options.hidden_size,
        draws: options.draws,
        prefix_copy: match options.snapshots {
            Some(_) => PrefixCopy::AtSnapshots,
            None => PrefixCopy::AnyLength,
        },
        export: true,
        kv_format: "tokens",
        batch_invariant: true,
    }
}

/// What a fault says to a row.
fn refusal(fault: Option<Fault>, index: usize, tokens: usize) -> Result<(), SessionError> {
    match fault {
        Some(Fault::KvExhausted) => Err(SessionError::KvExhausted {
            wanted: tokens,
            available: 0,
        }),
        Some(Fault::RowFails) if index == 0 => Err(SessionError::Device("the first row".into())),
        _ => Ok(()),
    }
}

fn check_context(wanted: usize, max_context: usize) -> Result<(), SessionError> {
    if wanted > max_context {
        return Err(SessionError::ContextExceeded {
            wanted,
            max_context,
        });
    }
    Ok(())
}

impl Session for FakeSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        Memory {
            weight_bytes: 0,
            kv_bytes_per_token: KV_BYTES_PER_TOKEN,
            kv_capacity: self.cache.capacity_tokens(),
            kv_in_use: self.cache.tokens_in_use(),
            kv_granularity: self.options.kv_granularity,
            state_bytes: self.options.snapshots.map_or(0, |_| STATE_BYTES),
            states_in_use: self.cache.states_in_use(),
        }
    }

    fn create(&mut self) -> Result<SequenceId, SessionError> {
        let id = self.cache.create()?;
        Ok(self.made(id))
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        self.cache.len(sequence)
    }

    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        self.cache.reusable(sequence, at_most)
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<Held, SessionError> {
        self.cache.held(sequences)
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let id = self.cache.fork(source, len)?;
        Ok(self.made(id))
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        self.cache.truncate(sequence, len)?;
        self.publish();
        Ok(())
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.cache.release(sequence)?;
        self.publish();
        Ok(())
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        let step = self.counters.record_step(StepShape {
            rows: batch.rows().len(),
            tokens: batch.token_count(),
        });
        std::thread::sleep(self.options.delay);
        self.spend(self.options.cost.step);
        let fault = self.options.fault_at(step);
        match fault {
            Some(Fault::Fail) => return Err(SessionError::Device(format!("step {step}"))),
            Some(Fault::Panic) => panic!("the fake panics at step {step}"),
            _ => {}
        }

        output.reset(&self.capabilities);
        let accepted = self.accept(batch, fault);
        for (row, accepted) in batch.rows().iter().zip(accepted) {
            match accepted {
                Err(error) => output.push_error(error),
                Ok(states) => {
                    self.run(row, batch.tokens(row), states)?;
                    match fault {
                        Some(Fault::Withhold) => output.push_nothing(),
                        _ => self.emit(row.emit, self.cache.history(row.sequence)?, output),
                    }
                }
            }
        }
        self.publish();
        Ok(())
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        Ok(transfer::export(self.cache.history(sequence)?))
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let tokens = transfer::import(bytes, self.options.vocab_size)?;
        check_context(tokens.len(), self.options.max_context)?;
        let id = self.cache.import(&tokens)?;
        Ok(self.made(id))
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.counters.record_dropped();
    }
}
