//! Speculative decoding: drafts of the next tokens, verified in one step.
//!
//! A row's drafts follow its known tokens. The step emits after each of them, and the tokens are
//! chosen from that one after another, exactly as they would be step by step: with the sequence's
//! own random numbers, penalties and constraint. Drafts that differ from what is chosen are removed
//! from the session, and what came after them is not read. So drafts change no event of a request,
//! only when it comes.

mod acceptance;
mod lookup;
mod proposer;
mod step_cost;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use loquat_session::{Capabilities, PrefixCopy};

pub(crate) use acceptance::ProposalRecord;
pub(crate) use proposer::{ProposalRequest, Proposer};

use crate::EngineError;
use crate::running::Running;
use crate::scheduler::Scheduled;
use acceptance::Acceptance;
use lookup::PromptLookup;
use step_cost::StepCosts;

/// Drafts must promise this much more than decoding without, because measurements are noisy.
const LEAST_GAIN: f64 = 1.05;
/// How much longer a step may get for streams that have no drafts in it. A batch takes as long as its
/// slowest stream, so drafts of a few speed up no batch: eight streams of prose, of which one or two
/// had drafts at a time, took 6 % longer together than without at 1.2, and 1 % at 1.05.
const MAX_SLOWDOWN_OF_OTHERS: f64 = 1.02;
/// Each draft of a constrained sequence costs a fork of the constraint and a mask.
const MAX_CONSTRAINED_DRAFTS: usize = 8;
/// With at least this many streams, proposing takes time too: if the last steps verified nothing,
/// only one in [`PROPOSAL_INTERVAL`] proposes.
const MANY_STREAMS: usize = 8;
const PROPOSAL_INTERVAL: u64 = 8;
const STEPS_WITHOUT_DRAFTS: u64 = 32;
/// Numbers of drafts to choose from. Few, so that the cost of each is soon measured.
const DEPTHS: [usize; 14] = [1, 2, 3, 4, 5, 7, 9, 11, 15, 19, 23, 31, 47, 63];

/// Who proposes drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpeculationMode {
    /// Prompt lookup, if the session promises that results do not depend on how tokens are cut into
    /// steps; otherwise nobody.
    #[default]
    Auto,
    /// Nobody.
    Off,
    /// Prompt lookup: drafts are what followed the last tokens when they occurred before.
    Lookup,
}

impl SpeculationMode {
    /// All modes by name.
    pub const ALL: [(&'static str, Self); 3] = [
        ("auto", Self::Auto),
        ("off", Self::Off),
        ("lookup", Self::Lookup),
    ];

    /// The mode's name.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(_, mode)| *mode == self);
        named.map_or("auto", |(name, _)| name)
    }
}

/// How drafts are proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeculationOptions {
    /// Who proposes them.
    pub mode: SpeculationMode,
    /// Most drafts of a sequence in a step. How many there are is measured: as many as pay.
    pub max_tokens: usize,
}

impl SpeculationOptions {
    /// Most drafts of a sequence in a step, whatever the options.
    pub const MOST_TOKENS: usize = 64;
}

impl Default for SpeculationOptions {
    fn default() -> Self {
        Self {
            mode: SpeculationMode::default(),
            max_tokens: 31,
        }
    }
}

/// Drafts since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SpeculationStats {
    /// Rows with drafts.
    pub drafts: u64,
    /// Tokens in them.
    pub draft_tokens: u64,
    /// Those that were right, and delivered.
    pub accepted_tokens: u64,
    /// The same by position in the row; later positions count as the last.
    pub accepted_at: [u64; Self::POSITIONS],
    /// Seconds of steps that drafts saved, by what steps without cost; negative if they cost more.
    pub saved_seconds: f64,
}

impl SpeculationStats {
    /// Positions that are counted separately.
    pub const POSITIONS: usize = 16;
}

/// Proposes drafts, and decides how many of them are worth verifying.
pub(crate) struct Speculator {
    /// `None` if nobody proposes.
    proposer: Option<Box<dyn Proposer>>,
    max_tokens: usize,
    vocab_size: usize,
    /// Positions of a step that may emit logits.
    max_positions: usize,
    /// Rejected drafts are removed with the tokens before them, which are computed again.
    replays: bool,
    /// Verifies all drafts, whether or not they pay.
    #[cfg(test)]
    verifies_all: bool,
    shared: Acceptance,
    costs: StepCosts,
    step: StepShape,
    /// Steps since the last one with drafts.
    without_drafts: u64,
    stats: SpeculationStats,
}

/// What a step with drafts was expected to cost without.
#[derive(Debug, Clone, Copy, Default)]
struct StepShape {
    streams: usize,
    /// Tokens beyond one of each stream, without drafts.
    forced: usize,
    drafts: usize,
    /// Whether other rows are in it, so that its duration says nothing.
    is_mixed: bool,
}

/// A draft that could be verified.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    row: usize,
    at: usize,
    /// That it and all before it are right.
    probability: f64,
}

impl Speculator {
    pub fn new(
        options: SpeculationOptions,
        capabilities: &Capabilities,
        (max_positions, replays): (usize, bool),
    ) -> Self {
        let can_cut = capabilities.prefix_copy != PrefixCopy::None;
        let looks_up = match options.mode {
            SpeculationMode::Off => false,
            SpeculationMode::Lookup => can_cut,
            // Verified drafts are rows of several tokens, beside others.
            SpeculationMode::Auto => {
                can_cut && capabilities.batch_invariant && capabilities.chunk_invariant
            }
        };
        let proposer = looks_up.then(|| Box::new(PromptLookup::default()) as Box<dyn Proposer>);
        Self {
            proposer,
            max_tokens: options.max_tokens,
            vocab_size: capabilities.vocab_size,
            max_positions,
            replays,
            #[cfg(test)]
            verifies_all: false,
            shared: Acceptance::default(),
            costs: StepCosts::default(),
            step: StepShape::default(),
            without_drafts: 0,
            stats: SpeculationStats::default(),
        }
    }

    /// Lets another proposer take over.
    #[cfg(test)]
    pub fn replace(&mut self, proposer: Box<dyn Proposer>, verifies_all: bool) {
        self.proposer = Some(proposer);
        self.verifies_all = verifies_all;
    }

    pub fn is_on(&self) -> bool {
        self.proposer.is_some()
    }

    pub fn stats(&self) -> SpeculationStats {
        self.stats
    }

    /// Adds drafts to the rows of a step: at most `room` tokens. Steps with other rows than streams
    /// get none: their prompts use the device's arithmetic already, and how long they may take is
    /// measured.
    pub fn draft(
        &mut self,
        running: &mut [Running],
        rows: &[Scheduled],
        (is_mixed, room): (bool, usize),
    ) {
        self.step = StepShape {
            streams: rows.len(),
            forced: rows.iter().map(|row| row.tokens - 1).sum(),
            drafts: 0,
            is_mixed,
        };
        let Some(proposer) = &mut self.proposer else {
            return;
        };
        if is_mixed || rows.is_empty() {
            return;
        }
        self.without_drafts += 1;
        let rests = self.without_drafts > STEPS_WITHOUT_DRAFTS && rows.len() >= MANY_STREAMS;
        if rests && !self.without_drafts.is_multiple_of(PROPOSAL_INTERVAL) {
            return;
        }
        let mut requests = Vec::with_capacity(rows.len());
        let mut records = Vec::with_capacity(rows.len());
        let mut next = 0;
        for (index, running) in running.iter_mut().enumerate() {
            // Rows of streams are in the order of the running sequences.
            let Some(row) = rows.get(next).filter(|row| row.index == index) else {
                continue;
            };
            next += 1;
            let most = running.max_drafts(row.tokens, self.max_tokens, self.replays);
            if most == 0 {
                continue;
            }
            let sequence = &mut running.sequence;
            sequence
                .proposals
                .compare(&sequence.tokens, &mut self.shared);
            running.drafts.clear();
            requests.push(ProposalRequest {
                sequence: sequence.ordinal,
                tokens: &sequence.tokens,
                most,
                drafts: &mut running.drafts,
                evidence: 0,
            });
            records.push(&mut sequence.proposals);
        }
        proposer.propose(&mut requests);
        let mut candidates = Vec::new();
        for (row, (request, record)) in requests.iter_mut().zip(records).enumerate() {
            let drafts = &mut *request.drafts;
            drafts.truncate(request.most);
            let is_token = |id: &u32| (*id as usize) < self.vocab_size;
            drafts.truncate(drafts.iter().take_while(|id| is_token(id)).count());
            record.propose(drafts, request.evidence, request.tokens.len());
            let mut probability = 1.0;
            for at in 0..drafts.len() {
                let evidence = request.evidence + at;
                probability *= record.acceptance.probability(evidence, &self.shared);
                candidates.push(Candidate {
                    row,
                    at,
                    probability,
                });
            }
        }
        candidates.sort_by(|a, b| {
            let order = b.probability.total_cmp(&a.probability);
            order.then(a.at.cmp(&b.at)).then(a.row.cmp(&b.row))
        });
        let proposed = requests.iter().filter(|request| !request.drafts.is_empty());
        let all_have_drafts = proposed.count() == rows.len();
        let mut room = room.min(self.max_positions.saturating_sub(rows.len()));
        let count = self.worthwhile(&candidates, all_have_drafts).min(room);
        room -= count;
        let mut depths = vec![0; requests.len()];
        for candidate in &candidates[..count] {
            depths[candidate.row] += 1;
        }
        for (request, depth) in requests.into_iter().zip(depths) {
            request.drafts.truncate(depth);
        }
        for row in rows {
            let running = &mut running[row.index];
            let most = running.max_drafts(row.tokens, self.max_tokens, self.replays);
            room -= constrain(running, most.min(room));
            if !running.drafts.is_empty() {
                self.stats.drafts += 1;
                self.step.drafts += running.drafts.len();
            }
        }
        self.stats.draft_tokens += self.step.drafts as u64;
        if self.step.drafts > 0 {
            self.without_drafts = 0;
        }
    }

    /// How many of the candidates, likeliest first, make the most of a step.
    fn worthwhile(&self, candidates: &[Candidate], all_have_drafts: bool) -> usize {
        #[cfg(test)]
        if self.verifies_all {
            return candidates.len();
        }
        let StepShape {
            streams, forced, ..
        } = self.step;
        let Some(alone) = self.costs.estimate(streams, forced) else {
            return 0;
        };
        let most = candidates
            .len()
            .min(self.costs.longest_stride(streams).saturating_sub(forced));
        let (mut best, mut best_rate) = (0, streams as f64 / alone * LEAST_GAIN);
        let (mut gained, mut added) = (0.0, 0);
        for depth in DEPTHS.into_iter().filter(|depth| *depth <= most) {
            let next = &candidates[added..depth];
            gained += next.iter().map(|draft| draft.probability).sum::<f64>();
            added = depth;
            let estimate = |extra: usize| self.costs.estimate(streams, extra);
            let Some(mut seconds) = estimate(forced + depth) else {
                break;
            };
            if !all_have_drafts && seconds > MAX_SLOWDOWN_OF_OTHERS * alone {
                break;
            }
            if self.replays {
                // Unless all are right, the next step computes those that were again.
                let all_right = candidates[depth - 1].probability;
                let again = estimate(forced + gained.round() as usize);
                seconds += (1.0 - all_right) * (again.unwrap_or(alone) - alone);
            }
            let rate = (streams as f64 + gained) / seconds;
            if rate > best_rate {
                (best, best_rate) = (depth, rate);
            }
        }
        best
    }

    /// Records how long the step took.
    pub fn record(&mut self, duration: Duration) {
        let StepShape {
            streams,
            forced,
            drafts,
            is_mixed,
        } = self.step;
        if is_mixed || streams == 0 || !self.is_on() {
            return;
        }
        let seconds = duration.as_secs_f64();
        self.costs.record(streams, forced + drafts, seconds);
        if drafts > 0 {
            self.stats.saved_seconds -= seconds;
        }
    }

    /// Records a row's drafts that were right. Each saved its share of a step.
    pub fn accept(&mut self, accepted: usize) {
        self.stats.accepted_tokens += accepted as u64;
        for at in 0..accepted {
            self.stats.accepted_at[at.min(SpeculationStats::POSITIONS - 1)] += 1;
        }
    }

    /// Counts what the tokens of a step with drafts would have cost without.
    pub fn settle(&mut self, tokens: usize) {
        let StepShape {
            streams,
            forced,
            drafts,
            ..
        } = self.step;
        if drafts > 0
            && let Some(alone) = self.costs.estimate(streams, forced)
        {
            self.stats.saved_seconds += alone * tokens as f64 / streams as f64;
        }
    }

    /// Whether the step has drafts.
    pub fn has_drafts(&self) -> bool {
        self.step.drafts > 0
    }

    pub fn forget(&mut self, sequence: u64) {
        if let Some(proposer) = &mut self.proposer {
            proposer.forget(sequence);
        }
    }

    /// Refuses options that the session cannot follow.
    pub fn check(
        options: &SpeculationOptions,
        capabilities: &Capabilities,
    ) -> Result<(), EngineError> {
        let can_cut = capabilities.prefix_copy != PrefixCopy::None;
        if options.mode == SpeculationMode::Lookup && !can_cut {
            return Err(EngineError::Unsupported {
                field: "speculation",
                why: "this model's sequences cannot be cut, so rejected drafts could not be removed",
            });
        }
        Ok(())
    }
}

/// Forks the row's constraint along its drafts, which changes them to those that it allows and
/// forces. Without drafts, tokens that are forced already are drafts that cannot fail, at most
/// `room`; returns how many. A constraint that panics does so again without drafts, and then ends
/// its request.
fn constrain(running: &mut Running, room: usize) -> usize {
    let Some(constraint) = &mut running.sequence.constraint else {
        return 0;
    };
    let drafts = &mut running.drafts;
    drafts.truncate(MAX_CONSTRAINED_DRAFTS);
    let mut free = 0;
    if drafts.is_empty() {
        drafts.extend(
            constraint
                .forced_ahead()
                .take(room.min(MAX_CONSTRAINED_DRAFTS)),
        );
        free = drafts.len();
    }
    if drafts.is_empty() {
        return 0;
    }
    let walked = catch_unwind(AssertUnwindSafe(|| constraint.look_ahead(drafts)));
    if walked.is_err() {
        drafts.clear();
        constraint.forget_ahead();
    }
    free
}

#[cfg(test)]
mod tests {
    use loquat_session::Session;
    use loquat_testkit::fake_session::{FakeOptions, FakeSession};

    use super::*;

    /// A verified draft is a row of several tokens where decoding has rows of one.
    #[test]
    fn auto_needs_equal_bits_however_tokens_are_cut() {
        let session = FakeSession::new(FakeOptions::default());
        for (batch_invariant, chunk_invariant) in [(true, true), (true, false), (false, false)] {
            let capabilities = Capabilities {
                batch_invariant,
                chunk_invariant,
                ..session.capabilities().clone()
            };
            let proposes = |mode| {
                let options = SpeculationOptions {
                    mode,
                    ..SpeculationOptions::default()
                };
                let speculator = Speculator::new(options, &capabilities, (64, false));
                speculator.proposer.is_some()
            };
            let keeps_bits = batch_invariant && chunk_invariant;
            assert_eq!(proposes(SpeculationMode::Auto), keeps_bits);
            assert!(proposes(SpeculationMode::Lookup) && !proposes(SpeculationMode::Off));
        }
    }
}
