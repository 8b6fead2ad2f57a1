//! A request at the engine: its choices' events as they come, counted as they go.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use loquat_engine::{
    Completion, CompletionBuilder, EngineError, Event, GenerateRequest, Generation, Usage,
};

use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::in_flight::{CancelledBy, Ticket};
use crate::metrics::{Asked, Outcome, RequestMeter};
use crate::models::Lease;
use crate::telemetry::{Content, RequestTrace};

/// What to generate, and in whose name.
pub struct Ask<'a> {
    pub app: &'a Arc<App>,
    pub caller: &'a Caller,
    pub lease: Lease,
    /// The route: `/v1/chat/completions`.
    pub route: &'static str,
    pub choices: usize,
}

/// Dropping it cancels what has not ended.
pub struct Turn {
    app: Arc<App>,
    caller: Caller,
    lease: Lease,
    ticket: Ticket,
    trace: RequestTrace,
    content: Option<Content>,
    generations: Vec<Generation>,
    /// Where to look first, so that no choice starves the others.
    next: usize,
    /// Until the request is counted.
    meter: Option<RequestMeter>,
    /// What was delivered when it ended.
    usage: Usage,
}

impl Turn {
    /// Queues the request, or refuses it at once.
    pub fn start(ask: Ask<'_>, request: GenerateRequest) -> Result<Self, ApiError> {
        let Ask {
            app,
            caller,
            lease,
            route,
            choices,
        } = ask;
        let trace = RequestTrace::of_current(caller, route, &lease.id, &request);
        let content = Content::wanted(&app.config().log, &lease, &request, choices);
        let asked = Asked {
            model: &lease.id,
            route,
            received: caller.received,
            prompt_tokens: request.prompt.len(),
            choices,
            max_tokens: request.max_tokens,
        };
        let request = GenerateRequest {
            client: caller.client(),
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
        let ticket = (app.in_flight).begin(caller, route, &lease.id, asked.prompt_tokens);
        let meter = Some(app.metrics.began(asked));
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

    /// What was delivered so far, over all choices. The prompt counts once.
    pub fn usage(&self) -> Usage {
        let all = self.generations.iter().map(Generation::usage);
        together(all).unwrap_or(self.usage)
    }

    /// The next event of any choice; `None` after the last. After an error there are no more.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        self.meter.as_ref()?;
        let received = tokio::select! {
            biased;
            by = self.ticket.cancelled() => Err((Outcome::Cancelled, cancelled(by))),
            late = self.caller.out_of_time() => Err((Outcome::Failed, late)),
            received = receive(&mut self.generations, &mut self.next) => match received {
                Some((_, Event::Failed(error))) => Err((Outcome::Failed, error.into())),
                received => Ok(received),
            },
        };
        match received {
            Err((outcome, error)) => {
                self.settle(outcome);
                Some(Err(error))
            }
            Ok(None) => {
                self.settle(Outcome::Finished);
                None
            }
            Ok(Some((choice, event))) => {
                self.note(choice, &event);
                Some(Ok((choice, event)))
            }
        }
    }

    fn note(&mut self, choice: usize, event: &Event) {
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
            // Those who know that it was the last need not ask for more.
            Event::Finished { .. } if self.generations.iter().all(Generation::has_ended) => {
                self.settle(Outcome::Finished);
            }
            _ => {}
        }
    }

    /// Counts the request, once, whichever way it ended.
    fn settle(&mut self, outcome: Outcome) {
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
        let mut whole = vec![None; self.generations.len()];
        while let Some(next) = self.next().await {
            let (choice, event) = next?;
            if let Some(completion) = gathered[choice].add(event) {
                whole[choice] = Some(completion?);
            }
        }
        let whole: Option<Vec<_>> = whole.into_iter().collect();
        whole.ok_or_else(|| EngineError::ShutDown.into())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.settle(Outcome::Cancelled);
    }
}

/// What a prompt's choices cost together. The prompt counts once.
pub fn together(choices: impl Iterator<Item = Usage>) -> Option<Usage> {
    choices.reduce(|sum, each| Usage {
        prompt_tokens: sum.prompt_tokens,
        completion_tokens: sum.completion_tokens + each.completion_tokens,
        // Choices share the first one's prompt, which is no merit of the cache.
        cached_tokens: sum.cached_tokens.min(each.cached_tokens),
    })
}

fn cancelled(by: CancelledBy) -> ApiError {
    match by {
        CancelledBy::Operator => ApiError::new(
            ErrorKind::Conflict,
            "the request was cancelled by an operator",
        )
        .code("request_cancelled"),
        CancelledBy::Stop => ApiError::overloaded("the server is stopping"),
    }
}

/// The next event of any generation, each looked at in its turn; `None` when all have ended.
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
