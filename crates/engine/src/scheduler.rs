//! Which sequences run, and how many tokens each brings to the next step.

use std::collections::VecDeque;

use loquat_session::{Capabilities, Memory, Session, StepBatch};

use crate::Event;
use crate::sequence::{Arrival, Sequence};

/// Floats of logits that scored prompts may ask for in one step (32 MiB).
const SCORED_LOGITS: usize = 8 << 20;

/// The waiting requests and the limits they wait for.
#[derive(Debug)]
pub(crate) struct Scheduler {
    queue: VecDeque<Arrival>,
    step_tokens: usize,
    /// At most as many as a step has tokens, so that every sequence gets at least one: while a
    /// prompt is pending, the others cannot use up the step.
    max_running: usize,
    kv_capacity: usize,
    kv_granularity: usize,
    scored_positions: usize,
}

/// A row of the batch: which running sequence, and how many of its tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheduled {
    pub index: usize,
    pub tokens: usize,
}

impl Scheduler {
    pub fn new(capabilities: &Capabilities, memory: Memory, step_tokens: usize) -> Self {
        let scored_positions = match capabilities.speculative_decoding {
            true => (SCORED_LOGITS / capabilities.vocab_size.max(1)).max(1),
            false => 1,
        };
        Self {
            queue: VecDeque::new(),
            step_tokens,
            max_running: capabilities.max_sequences.min(step_tokens),
            kv_capacity: memory.kv_capacity,
            kv_granularity: memory.kv_granularity,
            scored_positions,
        }
    }

    pub fn enqueue(&mut self, arrival: Arrival) {
        self.queue.push_back(arrival);
    }

    pub fn forget_cancelled(&mut self) {
        self.queue.retain(|arrival| !arrival.sink.is_cancelled());
    }

    /// Starts waiting requests, first come first, while there is room for all that they may come
    /// to hold.
    pub fn admit(&mut self, running: &mut Vec<Sequence>, session: &mut dyn Session) {
        while let Some(arrival) = self.queue.front() {
            let wanted = arrival.request.kv_tokens(self.kv_granularity);
            let full = running.len() >= self.max_running;
            if full || reserved(running) + wanted > self.kv_capacity {
                return;
            }
            let created = session.create();
            if let Err(error) = &created
                && error.is_retryable()
                && !running.is_empty()
            {
                return;
            }
            let Some(arrival) = self.queue.pop_front() else {
                return;
            };
            match created {
                Ok(id) => running.push(Sequence::new(id, arrival, wanted)),
                Err(error) => arrival.sink.send(Event::Failed(error.into())),
            }
        }
    }

    /// Fills the batch: first the sequences that lack one token, then longer stretches in order
    /// of arrival, as far as the step's tokens go.
    pub fn fill(&self, running: &[Sequence], rows: &mut Vec<Scheduled>, batch: &mut StepBatch) {
        rows.clear();
        batch.clear();
        let mut tokens_left = self.step_tokens;
        let mut scored_left = self.scored_positions;
        for one_pending in [true, false] {
            for (index, sequence) in running.iter().enumerate() {
                let pending = sequence.pending();
                if (pending == 1) != one_pending {
                    continue;
                }
                let mut tokens = pending.min(tokens_left);
                if sequence.scores_prompt() {
                    tokens = tokens.min(scored_left);
                }
                if tokens == 0 || !sequence.sink.has_room() {
                    continue;
                }
                if sequence.scores_prompt() {
                    scored_left -= tokens;
                }
                tokens_left -= tokens;
                let (next, emit) = sequence.next(tokens);
                batch.push(sequence.id, next, emit);
                rows.push(Scheduled { index, tokens });
            }
        }
    }
}

/// KV tokens set aside over all running sequences.
pub(crate) fn reserved(running: &[Sequence]) -> usize {
    running.iter().map(|sequence| sequence.reservation).sum()
}
