//! An accepted request, queued or running, without its KV.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_session::{AppliedAdapter, Draw};
use loquat_text::Tokenizer;

use crate::active_constraint::ActiveConstraint;
use crate::adapters::Scope;
use crate::generation::EventSink;
use crate::pooling::EmbeddingPool;
use crate::sampling::Sampler;
use crate::shared::QueueSlot;
use crate::speculation::ProposalRecord;
use crate::text_stream::TextStream;
use crate::usage::Stopwatch;
use crate::{
    DraftCounts, EngineError, FinishReason, GenerateRequest, Logprobs, PromptMedia, TokenInfo,
    Usage,
};

#[derive(Debug)]
pub(crate) struct Sequence {
    pub sink: EventSink,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    /// In the prompt; their positions in `tokens` hold keys of the media cache.
    pub media: Vec<PromptMedia>,
    pub max_tokens: usize,
    pub logprobs: Option<Logprobs>,
    /// Whether sampling needs logits, not only the most likely token.
    pub emit_logits: bool,
    /// The prompt's log-probabilities so far; `None` if not requested or already sent.
    pub scores: Option<Vec<TokenInfo>>,
    /// The prompt's embedding so far; `None` if not requested or already sent.
    pub pool: Option<EmbeddingPool>,
    pub sampler: Sampler,
    /// `None` without a constraint, or while the constraint worker has it.
    pub constraint: Option<Box<ActiveConstraint>>,
    pub is_constrained: bool,
    pub client: Option<Arc<str>>,
    pub scope: Scope,
    pub adapters: Vec<AppliedAdapter>,
    /// Choices of one request always share their prompt.
    pub group: Option<u64>,
    pub watch: Stopwatch,
    /// Prompt tokens found in the cache at every start.
    pub cached_tokens: usize,
    /// Sampled in this step and not settled yet.
    pub sampled: Option<TokenInfo>,
    /// Most drafts in a step; `None` uses the engine's limit.
    pub draft_tokens: Option<usize>,
    pub proposals: ProposalRecord,
    pub drafts: DraftCounts,
    pub(super) stop_ids: Vec<u32>,
    pub(super) seed: u64,
    pub(super) text: TextStream,
    pub priority: i32,
    /// Arrival order.
    pub ordinal: u64,
    wait: QueueWait,
    queue_timeout: Option<Duration>,
    first_token_timeout: Option<Duration>,
    ending: Option<SequenceEnd>,
    /// `None` once it has ended.
    queue_slot: Option<QueueSlot>,
}

/// Time in the queue, without time running.
#[derive(Debug)]
struct QueueWait {
    before: Duration,
    since: Instant,
}

/// Why a sequence ended.
#[derive(Debug)]
pub(crate) enum SequenceEnd {
    Finished {
        reason: FinishReason,
        /// Remaining text.
        text: String,
    },
    Failed(EngineError),
    Cancelled,
}

/// The inputs of a new sequence.
pub(crate) struct NewSequence<'a> {
    pub request: GenerateRequest,
    pub seed: u64,
    pub text: TextStream,
    pub tokenizer: Option<&'a Tokenizer>,
    pub sink: EventSink,
    pub queue_slot: QueueSlot,
    pub group: Option<u64>,
    pub now: Instant,
}

/// The prompt without positions of media, which penalties must not count.
fn text_of<'a>(prompt: &'a [u32], media: &[PromptMedia]) -> Cow<'a, [u32]> {
    if media.is_empty() {
        return Cow::Borrowed(prompt);
    }
    let is_text = |at: &usize| !media.iter().any(|span| (span.at..span.end()).contains(at));
    let positions = (0..prompt.len()).filter(is_text);
    Cow::Owned(positions.map(|at| prompt[at]).collect())
}

impl Sequence {
    pub fn new(arrival: NewSequence<'_>) -> Self {
        let NewSequence {
            request,
            seed,
            text,
            tokenizer,
            sink,
            queue_slot,
            group,
            now,
        } = arrival;
        let GenerateRequest {
            prompt,
            media,
            max_tokens,
            sampling,
            stop_ids,
            stop: _,
            logprobs,
            prompt_logprobs,
            embed,
            skip_special: _,
            shown_special: _,
            fresh_text: _,
            constraint,
            priority,
            client,
            cache_scope,
            adapters,
            queue_timeout,
            first_token_timeout,
            draft_tokens,
        } = request;
        let first = prompt.first().copied().map(TokenInfo::bare);
        let mut sampler = Sampler::new(sampling, seed, &text_of(&prompt, &media), &stop_ids);
        if let Some(tokenizer) = tokenizer {
            sampler = sampler.with_tokenizer(tokenizer);
        }
        let constraint = constraint.map(|constraint| Box::new(ActiveConstraint::new(constraint)));
        Self {
            sink,
            prompt_len: prompt.len(),
            media,
            max_tokens,
            logprobs,
            emit_logits: logprobs.is_some() || constraint.is_some() || !sampler.is_plain_greedy(),
            scores: prompt_logprobs.then(|| first.into_iter().collect()),
            pool: embed.map(|pooling| EmbeddingPool::new(pooling, prompt.len())),
            sampler,
            is_constrained: constraint.is_some(),
            constraint,
            client: client.map(Arc::from),
            scope: Scope::new(cache_scope, &adapters),
            adapters,
            group,
            watch: Stopwatch::start(now),
            cached_tokens: 0,
            sampled: None,
            draft_tokens,
            proposals: ProposalRecord::default(),
            drafts: DraftCounts::default(),
            tokens: prompt,
            stop_ids,
            seed,
            text,
            priority,
            ordinal: 0,
            wait: QueueWait {
                before: Duration::ZERO,
                since: now,
            },
            queue_timeout,
            first_token_timeout,
            ending: None,
            queue_slot: Some(queue_slot),
        }
    }

    /// How the session can draw the next token itself, if no logits are needed.
    pub fn next_draw(&mut self) -> Option<Draw> {
        if self.logprobs.is_some() || self.is_constrained {
            None
        } else {
            self.sampler.next_draw()
        }
    }

    /// The most tokens it may reach.
    pub fn max_len(&self) -> usize {
        self.prompt_len + self.max_tokens
    }

    /// How many tokens may come from a shared prefix. The rest is computed, because its output is
    /// needed.
    pub fn shareable(&self) -> usize {
        let last = self.tokens.len() - 1;
        let scored = self.scores.as_ref().map(|scores| scores.len() - 1);
        let pooled = self.pool.as_ref().and_then(EmbeddingPool::next);
        scored.or(pooled).unwrap_or(last)
    }

    /// Urgency, lower first: its priority minus one for each `aging` of waiting.
    pub fn urgency(&self, now: Instant, aging: Duration) -> i64 {
        let waited = self.wait.before + now.saturating_duration_since(self.wait.since);
        let levels = waited.as_nanos() / aging.as_nanos().max(1);
        i64::from(self.priority) - i64::try_from(levels).unwrap_or(i64::MAX / 2)
    }

    /// Leaves the queue.
    pub fn admit(&mut self, now: Instant, cached: usize) {
        if let Some(queue_slot) = &mut self.queue_slot {
            queue_slot.start();
        }
        self.wait.before += now.saturating_duration_since(self.wait.since);
        let cached = cached.min(self.prompt_len);
        self.cached_tokens = if self.watch.was_admitted() {
            cached.min(self.cached_tokens)
        } else {
            cached
        };
        self.watch.admit(now);
    }

    /// Makes room for another request.
    pub fn release_slot(&mut self) {
        self.queue_slot = None;
    }

    /// Returns to the queue.
    pub fn requeue(&mut self, now: Instant) {
        self.wait.since = now;
    }

    /// Whether it was preempted.
    pub fn was_preempted(&self) -> bool {
        self.queue_slot.as_ref().is_some_and(QueueSlot::has_started)
    }

    /// When it must have started or produced a token; `None` once it has.
    pub fn deadline(&self) -> Option<Instant> {
        let from = self.watch.submitted();
        let first_token = self
            .first_token_timeout
            .filter(|_| !self.watch.has_spoken());
        let queue = self.queue_timeout.filter(|_| !self.watch.was_admitted());
        let timeout = match (first_token, queue) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        from.checked_add(timeout?)
    }

    /// Fails it if its deadline has passed.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        let waited = now - self.watch.submitted();
        let queued = self.queue_timeout.is_some_and(|most| waited >= most);
        self.end(SequenceEnd::Failed(
            if queued && !self.watch.was_admitted() {
                EngineError::QueueTimeout { waited }
            } else {
                EngineError::FirstTokenTimeout { waited }
            },
        ));
        true
    }

    pub fn completion_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len,
            completion_tokens: self.completion_tokens(),
            cached_tokens: self.cached_tokens,
        }
    }

    /// Sets the reason; the first one is kept.
    pub fn end(&mut self, ending: SequenceEnd) {
        self.ending.get_or_insert(ending);
    }

    pub fn ending(&self) -> Option<&SequenceEnd> {
        self.ending.as_ref()
    }

    pub fn take_ending(&mut self) -> Option<SequenceEnd> {
        self.ending.take()
    }
}
