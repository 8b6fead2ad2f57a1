//! Counts one request, from queueing to its end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use loquat_engine::{Event, FinishReason, Timings, Usage};

use super::recent::FinishedRequest;
use super::{Metrics, Outcome, reason};
use crate::metrics::families::Meters;

/// A queued request.
#[derive(Debug, Clone, Copy)]
pub struct QueuedRequest<'a> {
    pub model: &'a str,
    pub route: &'static str,
    pub received: Instant,
    pub prompt_tokens: usize,
    pub choices: usize,
    pub max_tokens: usize,
}

/// Counts a request's events.
pub struct RequestMeter {
    meters: Arc<Meters>,
    model: String,
    route: &'static str,
    began: SystemTime,
    received: Instant,
    prompt_tokens: usize,
    /// Until the first token of any choice.
    first_token: Option<Duration>,
    choices: Vec<Choice>,
}

#[derive(Clone, Default)]
struct Choice {
    /// When the engine sent its last tokens.
    last: Option<Instant>,
    end: Option<(FinishReason, Timings)>,
}

/// A request's outcome, for its span and its access log line.
#[derive(Debug, Clone)]
pub struct Summary {
    pub past: FinishedRequest,
    pub usage: Usage,
}

impl RequestMeter {
    pub(super) fn new(meters: Arc<Meters>, queued: QueuedRequest<'_>) -> Self {
        meters.params_n.observe(queued.choices as f64);
        meters.params_max_tokens.observe(queued.max_tokens as f64);
        Self {
            meters,
            model: queued.model.to_owned(),
            route: queued.route,
            began: SystemTime::now(),
            received: queued.received,
            prompt_tokens: queued.prompt_tokens,
            first_token: None,
            choices: vec![Choice::default(); queued.choices],
        }
    }

    pub fn first_token(&self) -> Option<Duration> {
        self.first_token
    }

    /// Counts an event, with the time at which the engine sent it.
    pub fn event(&mut self, choice: usize, event: &Event, sent_at: Option<Instant>) {
        match event {
            Event::Tokens { tokens, .. } => self.tokens(choice, tokens.len(), sent_at),
            Event::Finished {
                reason,
                usage,
                timings,
                ..
            } => self.finished(choice, *reason, usage, *timings),
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_) => {}
        }
    }

    fn tokens(&mut self, choice: usize, count: usize, sent_at: Option<Instant>) {
        self.meters.generation_tokens.inc_by(count as u64);
        let choice = &mut self.choices[choice];
        match (choice.last, sent_at) {
            (Some(last), Some(now)) => {
                let gap = now.saturating_duration_since(last);
                self.meters.between_tokens.observe(gap.as_secs_f64());
            }
            _ => {
                let elapsed = self.received.elapsed();
                self.meters.first_token.observe(elapsed.as_secs_f64());
                if self.first_token.is_none() {
                    self.first_token = Some(elapsed);
                    self.meters.prompt_tokens.inc_by(self.prompt_tokens as u64);
                }
            }
        }
        choice.last = sent_at;
    }

    fn finished(&mut self, choice: usize, why: FinishReason, usage: &Usage, timings: Timings) {
        let meters = &self.meters;
        match why {
            FinishReason::Length => meters.cut.inc(),
            _ => meters.stopped.inc(),
        }
        let Timings {
            queued,
            first_token,
            decode,
            total,
            drafts: _,
        } = timings;
        let seconds = |time: Duration| time.as_secs_f64();
        meters.queued.observe(seconds(queued));
        meters
            .inference
            .observe(seconds(total.saturating_sub(queued)));
        meters
            .prefill
            .observe(seconds(first_token.saturating_sub(queued)));
        meters.decode.observe(seconds(decode));
        if let Some(each) = timings.per_token(usage.completion_tokens) {
            meters.per_token.observe(seconds(each));
        }
        meters.request_prompt.observe(usage.prompt_tokens as f64);
        meters
            .request_generation
            .observe(usage.completion_tokens as f64);
        meters.whole.observe(seconds(self.received.elapsed()));
        self.choices[choice].end = Some((why, timings));
    }

    /// Ends the request. Unfinished choices get the request's outcome.
    pub fn ended(self, metrics: &Metrics, outcome: Outcome, usage: Usage) -> Summary {
        let total = self.received.elapsed();
        let unfinished = self.choices.iter().filter(|choice| choice.end.is_none());
        for _ in unfinished {
            self.meters.whole.observe(total.as_secs_f64());
            match outcome {
                Outcome::Failed => self.meters.failed.inc(),
                Outcome::Cancelled | Outcome::Finished => self.meters.aborted.inc(),
            }
        }
        let finished = outcome == Outcome::Finished;
        if finished {
            self.meters.cached_tokens.inc_by(usage.cached_tokens as u64);
            if self.first_token.is_none() {
                self.meters.prompt_tokens.inc_by(self.prompt_tokens as u64);
            }
        }
        metrics.count(&self.model, self.route, outcome.as_str());
        let first = self.choices.first().and_then(|choice| choice.end);
        let past = FinishedRequest {
            route: self.route,
            model: self.model,
            outcome,
            finish_reason: first.map(|(why, _)| reason(why)),
            began: self.began,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: finished.then_some(usage.cached_tokens),
            queued: first.map(|(_, timings)| timings.queued),
            first_token: self.first_token,
            total,
        };
        metrics.recent.add(past.clone());
        Summary { past, usage }
    }
}
