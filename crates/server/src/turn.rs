//! A request at the engine: its choices' events as they come, counted as they go.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use loquat_engine::{Completion, EngineError, Event, GenerateRequest, Generation, Usage};

use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ErrorKind};
use crate::in_flight::Ticket;
use crate::metrics::Outcome;
use crate::models::Lease;

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
    route: &'static str,
    lease: Lease,
    ticket: Ticket,
    generations: Vec<Generation>,
    /// Where to look first, so that no choice starves the others.
    next: usize,
    settled: bool,
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
        let request = GenerateRequest {
            client: caller.client(),
            ..request
        };
        let prompt_tokens = request.prompt.len();
        let submitted = match choices {
            1 => lease.engine.submit(request).map(|one| vec![one]),
            n => lease
                .engine
                .submit_choices(request, n)
                .map(|choices| choices.into_generations()),
        };
        let generations = submitted.inspect_err(|_| app.metrics.refused(&lease.id, route))?;
        let ticket = app.in_flight.begin(caller, route, &lease.id, prompt_tokens);
        app.metrics.began(&lease.id, route, prompt_tokens);
        Ok(Self {
            app: Arc::clone(app),
            caller: caller.clone(),
            route,
            lease,
            ticket,
            generations,
            next: 0,
            settled: false,
        })
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What was delivered so far, over all choices. The prompt counts once.
    pub fn usage(&self) -> Usage {
        let all = self.generations.iter().map(Generation::usage);
        all.reduce(|sum, each| Usage {
            prompt_tokens: sum.prompt_tokens,
            completion_tokens: sum.completion_tokens + each.completion_tokens,
            // Choices share the first one's prompt, which is no merit of the cache.
            cached_tokens: sum.cached_tokens.min(each.cached_tokens),
        })
        .unwrap_or_default()
    }

    /// The next event of any choice; `None` after the last. After an error there are no more.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        if self.settled {
            return None;
        }
        let received = tokio::select! {
            biased;
            () = self.ticket.cancelled() => Some(Err(cancelled())),
            received = receive(&mut self.generations, &mut self.next) => received.map(Ok),
        };
        match received {
            None => {
                self.settle(Outcome::Finished);
                None
            }
            Some(Err(error)) => {
                self.settle(Outcome::Cancelled);
                Some(Err(error))
            }
            Some(Ok((_, Event::Failed(error)))) => {
                self.settle(Outcome::Failed);
                Some(Err(error.into()))
            }
            Some(Ok((choice, event))) => {
                self.note(&event);
                Some(Ok((choice, event)))
            }
        }
    }

    fn note(&self, event: &Event) {
        match event {
            Event::Tokens { tokens, .. } => self.ticket.delivered(tokens.len()),
            Event::Finished {
                reason,
                usage,
                timings,
                ..
            } => self
                .app
                .metrics
                .finished(&self.lease.id, *reason, usage, timings),
            Event::PromptLogprobs(_) | Event::Failed(_) => {}
        }
    }

    /// Counts the request, once, whichever way it ended.
    fn settle(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let usage = self.usage();
        self.generations.clear();
        let elapsed = self.caller.received.elapsed();
        self.app
            .metrics
            .ended(&self.lease.id, self.route, outcome, elapsed);
        if let Some(key) = &self.caller.key {
            key.used(&usage);
        }
    }

    /// Waits for the end of every choice.
    pub async fn collect(mut self) -> Result<Vec<Completion>, ApiError> {
        let mut gathered: Vec<Gathering> = Vec::new();
        gathered.resize_with(self.generations.len(), Gathering::default);
        while let Some(next) = self.next().await {
            let (choice, event) = next?;
            gathered[choice].add(event);
        }
        let completions = gathered.into_iter().map(|each| each.whole);
        let whole: Option<Vec<_>> = completions.collect();
        whole.ok_or_else(|| EngineError::ShutDown.into())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.settle(Outcome::Cancelled);
    }
}

fn cancelled() -> ApiError {
    ApiError::new(
        ErrorKind::Conflict,
        "the request was cancelled by an operator",
    )
    .code("request_cancelled")
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
        match live {
            true => Poll::Pending,
            false => Poll::Ready(None),
        }
    })
    .await
}

#[derive(Default)]
struct Gathering {
    prompt_logprobs: Vec<loquat_engine::TokenInfo>,
    tokens: Vec<loquat_engine::TokenInfo>,
    text: String,
    whole: Option<Completion>,
}

impl Gathering {
    fn add(&mut self, event: Event) {
        match event {
            Event::PromptLogprobs(infos) => self.prompt_logprobs = infos,
            Event::Tokens { tokens, text } => {
                self.tokens.extend(tokens);
                self.text.push_str(&text);
            }
            Event::Finished {
                reason,
                text,
                usage,
                timings,
                seed,
            } => {
                self.text.push_str(&text);
                self.whole = Some(Completion {
                    prompt_logprobs: std::mem::take(&mut self.prompt_logprobs),
                    tokens: std::mem::take(&mut self.tokens),
                    text: std::mem::take(&mut self.text),
                    reason,
                    usage,
                    timings,
                    seed,
                });
            }
            Event::Failed(_) => {}
        }
    }
}
