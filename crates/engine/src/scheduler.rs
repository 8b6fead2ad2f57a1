//! Decides how many tokens of each running sequence the next step computes.

use loquat_session::Capabilities;

use crate::pacing::PromptPacer;
use crate::running::Running;

/// Most logits (floats) for scored prompts per step: 32 MiB.
const SCORED_LOGITS: usize = 8 << 20;

/// Up to this many forced tokens count as decoding: they cost little more than one. Longer runs are
/// paced like prompts.
pub(crate) const SHORT_RUN: usize = 16;

#[derive(Debug)]
pub(crate) struct Scheduler {
    step_tokens: usize,
    scored_positions: usize,
    /// Prompts end one token early, so that the state before the last token can be cached.
    stops_short: bool,
    pace: PromptPacer,
    /// Reused from step to step.
    grants: Vec<Scheduled>,
}

/// A row of the batch: a running sequence and its token count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheduled {
    pub index: usize,
    pub tokens: usize,
}

/// The composition of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StepMix {
    /// Sequences with one pending token or a short forced run.
    pub streams: usize,
    /// Tokens of all other sequences.
    pub prompt_tokens: usize,
}

impl Scheduler {
    pub fn new(
        capabilities: &Capabilities,
        step_tokens: usize,
        stops_short: bool,
        pace: PromptPacer,
    ) -> Self {
        Self {
            step_tokens,
            scored_positions: (SCORED_LOGITS / capabilities.vocab_size.max(1)).max(1),
            stops_short,
            pace,
            grants: Vec::new(),
        }
    }

    /// Records the duration of a step.
    pub fn record(&mut self, mix: StepMix, record_event: std::time::Duration) {
        self.pace
            .record(mix.streams, mix.prompt_tokens, record_event);
    }

    /// Fills the rows: first sequences with one pending token, then prompts, within the step's
    /// token limit and the pacing of running streams.
    pub fn fill(&mut self, running: &[Running], rows: &mut Vec<Scheduled>) -> StepMix {
        rows.clear();
        self.grants.clear();
        // One token each for all, before any takes more.
        let mut room = self.step_tokens.saturating_sub(running.len());
        for (index, sequence) in running.iter().enumerate() {
            if sequence.paused.is_some() {
                continue;
            }
            let tokens = sequence.ready();
            let scheduled = Scheduled { index, tokens };
            let is_run = (2..=SHORT_RUN).contains(&tokens) && sequence.is_generating();
            match tokens {
                0 => {}
                1 => rows.push(scheduled),
                _ if is_run && tokens <= room => {
                    room -= tokens;
                    rows.push(scheduled);
                }
                _ => self.grants.push(scheduled),
            }
        }
        let streams = rows.len();
        let taken: usize = rows.iter().map(|row| row.tokens).sum();
        let room = self.step_tokens.saturating_sub(taken);
        let prompt_tokens = if self.grants.is_empty() {
            0
        } else {
            let room = self.pace.allowance(streams, room);
            self.share_out(running, room)
        };
        let prompt_tokens = match self.keep_media_whole(running, taken) {
            Ok(excess) => prompt_tokens.saturating_add_signed(excess),
            // Alone, so that a large picture does not wait for streams to end.
            Err(row) => {
                rows.clear();
                self.grants.clear();
                self.grants.push(row);
                row.tokens
            }
        };
        let streams = rows.len().min(streams);
        rows.extend(self.grants.iter().filter(|grant| grant.tokens > 0));
        StepMix {
            streams,
            prompt_tokens,
        }
    }

    /// Whether the step's rows include prompts, or leave them out because of pacing.
    pub fn has_prompts(&self) -> bool {
        !self.grants.is_empty()
    }

    /// The tokens that all rows together may have.
    pub fn step_tokens(&self) -> usize {
        self.step_tokens
    }

    /// Positions whose logits a step may emit.
    pub fn scored_positions(&self) -> usize {
        self.scored_positions
    }

    /// Moves the ends of rows to where their media and masks allow it. Returns how many tokens the
    /// grants gained, or the row that fits only a step of its own.
    fn keep_media_whole(&mut self, running: &[Running], taken: usize) -> Result<isize, Scheduled> {
        if !running.iter().any(Running::restricts_rows) {
            return Ok(0);
        }
        let before: usize = self.grants.iter().map(|grant| grant.tokens).sum();
        let mut all = taken + before;
        for grant in &mut self.grants {
            let sequence = &running[grant.index];
            if grant.tokens == 0 || !sequence.restricts_rows() {
                continue;
            }
            let (longest, shortest) = sequence.row_lengths(grant.tokens);
            let others = all - grant.tokens;
            grant.tokens = if longest > 0 {
                longest
            } else if others + shortest <= self.step_tokens {
                shortest
            } else {
                return Err(Scheduled {
                    tokens: shortest.min(self.step_tokens),
                    ..*grant
                });
            };
            all = others + grant.tokens;
        }
        Ok(all as isize - (taken + before) as isize)
    }

    /// Cuts the grants to `room` tokens in total; returns the tokens granted. Half goes to the
    /// longest running prompt, so that none starves; the rest to the shortest, so that a short
    /// prompt does not wait for a long one.
    fn share_out(&mut self, running: &[Running], room: usize) -> usize {
        let mut left = room;
        let mut scored_left = self.scored_positions;
        let mut order: Vec<usize> = (1..self.grants.len()).collect();
        order.sort_by_key(|&grant| self.grants[grant].tokens);
        let alone = order.is_empty();
        let wanted: Vec<usize> = self.grants.iter().map(|grant| grant.tokens).collect();
        self.grants.iter_mut().for_each(|grant| grant.tokens = 0);
        let first = if alone { room } else { room.div_ceil(2) };
        let rounds = [(0, first)].into_iter();
        let rounds = rounds.chain(order.into_iter().map(|grant| (grant, usize::MAX)));
        for (grant, most) in rounds.chain([(0, usize::MAX)]) {
            let sequence = &running[self.grants[grant].index];
            let given = self.grants[grant].tokens;
            let stops_short = self.stops_short && !sequence.is_generating();
            let wanted = wanted[grant] - usize::from(stops_short);
            let mut tokens = (wanted - given).min(most).min(left);
            if sequence.scores_prompt() {
                tokens = tokens.min(scored_left);
                scored_left -= tokens;
            }
            left -= tokens;
            self.grants[grant].tokens += tokens;
        }
        room - left
    }
}
