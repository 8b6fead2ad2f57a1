//! A request at the engine: submits it, passes on the events of its choices, and records it in
//! metrics, traces and limits.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use loquat_engine::{
    Completion, CompletionBuilder, EngineError, Event, GenerateRequest, Generation, Usage,
};
use loquat_session::SessionError;

use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;
use crate::in_flight::{CancelledBy, Ticket};
use crate::metrics::{Outcome, QueuedRequest, RequestMeter};
use crate::models::{Lease, adapter_gone};
use crate::telemetry::{Content, RequestTrace};

/// A request for the engine.
pub struct Submission<'a> {
    pub app: &'a Arc<App>,
    pub caller: &'a Caller,
    pub lease: Lease,
    /// The route: `/v1/chat/completions`.
    pub route: &'static str,
    pub choices: usize,
}

/// A limit of as many tokens as fit.
pub const UNLIMITED: usize = usize::MAX;

impl Submission<'_> {
    /// The request's limit, reduced to the room that its prompt leaves. With `strict_limits` the
    /// engine refuses one that exceeds it.
    pub fn limit_tokens(&self, requested: usize, prompt_len: usize) -> usize {
        let is_strict = self.app.config().server.strict_limits && requested != UNLIMITED;
        if is_strict {
            requested
        } else {
            self.fit_tokens(requested, prompt_len)
        }
    }

    /// The same, whatever the configuration says.
    pub fn fit_tokens(&self, requested: usize, prompt_len: usize) -> usize {
        let fitting = self.lease.model.fit_tokens(requested, prompt_len);
        if fitting < requested && requested != UNLIMITED {
            self.caller.notes.limit_tokens(fitting);
        }
        fitting
    }
}

/// Dropping it cancels the choices that have not ended.
pub struct ActiveRequest {
    app: Arc<App>,
    caller: Caller,
    lease: Lease,
    ticket: Ticket,
    trace: RequestTrace,
    content: Option<Content>,
    generations: Vec<Generation>,
    /// The choice to poll first, so that none starves the others.
    next: usize,
    /// `None` once the request is recorded.
    meter: Option<RequestMeter>,
    /// Set when the request ends.
    usage: Usage,
}

impl ActiveRequest {
    /// Queues the request, or refuses it.
    pub fn submit(submission: Submission<'_>, request: GenerateRequest) -> Result<Self, ApiError> {
        let Submission {
            app,
            caller,
            lease,
            route,
            choices,
        } = submission;
        if request.priority < 0 {
            let allowed = caller.check_may_manage("a negative `priority`");
            allowed.map_err(|error| error.param(Field::Priority))?;
        }
        let trace = RequestTrace::for_current(caller, route, &lease.id, &request);
        let content = Content::wanted(&app.config().log, &lease, &request, choices);
        let queued = QueuedRequest {
            model: &lease.id,
            route,
            received: caller.received,
            prompt_tokens: request.prompt.len(),
            choices,
            max_tokens: request.max_tokens,
        };
        let request = GenerateRequest {
            client: caller.client(),
            adapters: lease.applied(),
            ..request
        };
        let submitted = match choices {
            1 => lease.engine().submit(request).map(|one| vec![one]),
            n => lease
                .engine()
                .submit_choices(request, n)
                .map(|choices| choices.into_generations()),
        };
        let generations = submitted.inspect_err(|_| app.metrics.refused(&lease.id, route))?;
        let ticket = (app.in_flight).begin(caller, route, &lease.id, queued.prompt_tokens);
        let meter = Some(app.metrics.began(queued));
        Ok(Self {
            app: Arc::clone(app),
            caller: caller.clone(),
            lease,
            ticket,
            trace,
            content,
            generations,
            next: 0,
            meter,
            usage: Usage::default(),
        })
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Usage so far, over all choices. The prompt counts once.
    pub fn usage(&self) -> Usage {
        let all = self.generations.iter().map(Generation::usage);
        total_usage(all).unwrap_or(self.usage)
    }

    /// The next event of any choice; `None` after the last. Nothing follows an error.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        self.meter.as_ref()?;
        let received = tokio::select! {
            biased;
            by = self.ticket.cancelled() => Err((Outcome::Cancelled, cancelled(by))),
            late = self.caller.out_of_time() => Err((Outcome::Failed, late)),
            received = receive(&mut self.generations, &mut self.next) => match received {
                Some((_, Event::Failed(error))) => {
                    Err((Outcome::Failed, failed(error, &self.lease)))
                }
                received => Ok(received),
            },
        };
        match received {
            Err((outcome, error)) => {
                self.record(outcome);
                Some(Err(error))
            }
            Ok(None) => {
                self.record(Outcome::Finished);
                None
            }
            Ok(Some((choice, event))) => {
                self.observe(choice, &event);
                Some(Ok((choice, event)))
            }
        }
    }

    fn observe(&mut self, choice: usize, event: &Event) {
        let sent_at = self.generations[choice].sent_at();
        if let Some(meter) = &mut self.meter {
            meter.event(choice, event, sent_at);
            if let Some(time) = meter.first_token() {
                self.ticket.first_token_took(time);
            }
        }
        if let Some(content) = &mut self.content {
            content.event(choice, event);
        }
        match event {
            Event::Tokens { tokens, .. } => {
                self.ticket.delivered(tokens.len());
                if let Some((clock, sent_at)) = self.caller.clock.as_ref().zip(sent_at) {
                    clock.took(sent_at);
                }
            }
            // Callers that see the last event may not poll again.
            Event::Finished { .. } if self.generations.iter().all(Generation::has_ended) => {
                self.record(Outcome::Finished);
            }
            _ => {}
        }
    }

    /// Records the outcome, once.
    fn record(&mut self, outcome: Outcome) {
        let Some(meter) = self.meter.take() else {
            return;
        };
        self.usage = self.usage();
        self.generations.clear();
        let summary = meter.ended(&self.app.metrics, outcome, self.usage);
        if let Some(key) = &self.caller.key {
            key.used(&self.usage);
        }
        self.trace.ended(&summary);
        if let Some(content) = self.content.take() {
            content.log();
        }
    }

    /// Waits for the end of every choice.
    pub async fn collect(mut self) -> Result<Vec<Completion>, ApiError> {
        let mut gathered = vec![CompletionBuilder::default(); self.generations.len()];
        let mut completions = vec![None; self.generations.len()];
        while let Some(next) = self.next().await {
            let (choice, event) = next?;
            if let Some(completion) = gathered[choice].add(event) {
                completions[choice] = Some(completion?);
            }
        }
        let completions: Option<Vec<_>> = completions.into_iter().collect();
        completions.ok_or_else(|| EngineError::ShutDown.into())
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.record(Outcome::Cancelled);
    }
}

/// The usage of a prompt's choices. The prompt counts once.
pub fn total_usage(choices: impl Iterator<Item = Usage>) -> Option<Usage> {
    choices.reduce(|sum, each| Usage {
        prompt_tokens: sum.prompt_tokens,
        completion_tokens: sum.completion_tokens + each.completion_tokens,
        // Later choices reuse the first one's prompt, which is not a cache hit.
        cached_tokens: sum.cached_tokens.min(each.cached_tokens),
    })
}

fn failed(error: EngineError, lease: &Lease) -> ApiError {
    match error {
        EngineError::Session(SessionError::UnknownAdapter(_)) => adapter_gone(lease.name()),
        error => error.into(),
    }
}

fn cancelled(by: CancelledBy) -> ApiError {
    match by {
        CancelledBy::Operator => ApiError::new(
            ErrorKind::Cancelled,
            "the request was cancelled by an operator",
        )
        .code("request_cancelled"),
        CancelledBy::Stop => ApiError::overloaded("the server is stopping"),
    }
}

/// The next event of any generation, polled round-robin; `None` when all have ended.
async fn receive(generations: &mut [Generation], next: &mut usize) -> Option<(usize, Event)> {
    let count = generations.len();
    poll_fn(|context| {
        let mut live = false;
        for step in 0..count {
            let choice = (*next + step) % count;
            let generation = &mut generations[choice];
            if generation.has_ended() {
                continue;
            }
            live = true;
            if let Poll::Ready(Some(event)) = generation.poll_recv(context) {
                *next = choice + 1;
                return Poll::Ready(Some((choice, event)));
            }
        }
        if live {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    })
    .await
}
