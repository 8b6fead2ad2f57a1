//! A request's span, by OpenTelemetry's conventions for HTTP and for generative models.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use loquat_engine::{GenerateRequest, Usage};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Status, TraceContextExt, TraceId};
use opentelemetry::{Array, StringValue, Value};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::{Span, field};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::caller::{Caller, Notes};
use crate::metrics::{Outcome, Summary};

/// The span's name, which selects it for export.
pub const SPAN: &str = "request";

/// Opens a request's span as a child of the client's, if there is one.
pub fn request_span(request: &Request, caller: &Caller) -> Span {
    let method = request.method().as_str();
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str);
    let span = tracing::info_span!(
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        id = %caller.request_id,
        trace_id = field::Empty,
        http.request.method = method,
        http.route = route,
    );
    let parent = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
    let mut trace = parent.span().span_context().trace_id();
    if trace != TraceId::INVALID {
        // Fails only for a span that has started already.
        let _ = span.set_parent(parent);
    } else {
        trace = span.context().span().span_context().trace_id();
    }
    if trace != TraceId::INVALID {
        span.record("trace_id", field::display(trace));
    }
    span
}

/// Records the status.
pub fn answered(span: &Span, status: StatusCode) {
    span.set_attribute("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.set_status(Status::error(""));
    }
}

/// Generation statistics for the access log.
#[derive(Debug, Clone)]
pub struct Generated {
    pub outcome: Outcome,
    pub finish_reason: Option<&'static str>,
    pub usage: Usage,
    pub first_token: Option<Duration>,
}

impl Generated {
    /// A request with several prompts runs once for each.
    fn and(self, other: Self) -> Self {
        let finished = self.outcome == Outcome::Finished;
        let worse = if finished { &other } else { &self };
        Self {
            outcome: worse.outcome,
            finish_reason: worse.finish_reason,
            usage: Usage {
                prompt_tokens: self.usage.prompt_tokens + other.usage.prompt_tokens,
                completion_tokens: self.usage.completion_tokens + other.usage.completion_tokens,
                cached_tokens: self.usage.cached_tokens + other.usage.cached_tokens,
            },
            first_token: self.first_token.into_iter().chain(other.first_token).min(),
        }
    }
}

/// The span of a request that generates.
pub struct RequestTrace {
    span: Span,
    notes: Arc<Notes>,
}

impl RequestTrace {
    /// For the current span.
    pub fn for_current(
        caller: &Caller,
        route: &str,
        model: &str,
        request: &GenerateRequest,
    ) -> Self {
        let trace = Self {
            span: Span::current(),
            notes: Arc::clone(&caller.notes),
        };
        trace.set("gen_ai.operation.name", operation(route));
        trace.set("gen_ai.request.model", model.to_owned());
        trace.set("gen_ai.response.model", model.to_owned());
        trace.count("gen_ai.request.max_tokens", request.max_tokens);
        let sampling = &request.sampling;
        trace.set(
            "gen_ai.request.temperature",
            f64::from(sampling.temperature),
        );
        trace.set("gen_ai.request.top_p", f64::from(sampling.top_p));
        if let Some(key) = caller.client() {
            trace.set("loquat.key", key);
        }
        trace
    }

    /// Completes the span, and sets the statistics for the access log.
    pub fn ended(&self, summary: &Summary) {
        let Summary { past, usage } = summary;
        self.count("gen_ai.usage.input_tokens", usage.prompt_tokens);
        self.count("gen_ai.usage.output_tokens", usage.completion_tokens);
        self.count("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens);
        if let Some(reason) = past.finish_reason {
            let reasons = Array::String(vec![StringValue::from(reason)]);
            self.set("gen_ai.response.finish_reasons", Value::Array(reasons));
        }
        let seconds = |time: Duration| time.as_secs_f64();
        if let Some(time) = past.first_token {
            self.set("gen_ai.response.time_to_first_chunk", seconds(time));
        }
        if let Some(time) = past.queued {
            self.set("loquat.queue_seconds", seconds(time));
        }
        self.set("loquat.outcome", past.outcome.as_str());
        if past.outcome == Outcome::Failed {
            self.span.set_status(Status::error("generation failed"));
        }
        let turn = Generated {
            outcome: past.outcome,
            finish_reason: past.finish_reason,
            usage: *usage,
            first_token: past.first_token,
        };
        let generated = self.notes.generated.lock();
        let mut generated = generated.unwrap_or_else(PoisonError::into_inner);
        *generated = Some(match generated.take() {
            Some(before) => before.and(turn),
            None => turn,
        });
    }

    fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.span.set_attribute(name, value);
    }

    fn count(&self, name: &'static str, count: usize) {
        self.set(name, i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// The conventions' operation name for a route.
fn operation(route: &str) -> &'static str {
    match route {
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        "/v1/completions" | "/api/generate" => "text_completion",
        _ => "chat",
    }
}
