//! `GET /stats`: what the page's live view shows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use loquat_engine::Stats;
use serde::Serialize;
use utoipa::ToSchema;

use super::process::resident_bytes;
use super::recent::FinishedRequest;
use super::{Metrics, since_1970};
use crate::app::App;
use crate::in_flight::Entry;
use crate::models::ModelStatus;

/// Current activity and recent requests.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerStats {
    /// Loquat's version.
    version: &'static str,
    /// Seconds since the server started.
    uptime_seconds: f64,
    /// Resident memory of the process, if known.
    resident_bytes: Option<u64>,
    models: Vec<ModelStats>,
    /// Running requests, then the last fifty finished ones, newest first.
    requests: Vec<RequestStats>,
}

/// One model; zeros if it is not loaded.
#[derive(Debug, Serialize, ToSchema)]
struct ModelStats {
    id: String,
    /// `unloaded`, `loading`, `ready`, `draining`, `drained` or `failed`.
    state: &'static str,
    /// Running requests.
    running: usize,
    /// Queued requests.
    waiting: usize,
    /// Running requests whose clients read too slowly.
    paused: usize,
    prompt_tokens_per_second: f64,
    generation_tokens_per_second: f64,
    /// KV tokens of requests and cached prefixes.
    kv_used_tokens: usize,
    /// KV tokens reserved for running requests.
    kv_reserved_tokens: usize,
    kv_capacity_tokens: usize,
    /// Memory of cached prefixes.
    kv_cached_bytes: u64,
    /// The model's total memory.
    memory_bytes: u64,
    /// Recent mean of the session's time per step.
    step_seconds: f64,
    /// Recent mean of the engine's time between two steps.
    overhead_seconds: f64,
    speculation: SpeculationCounts,
    totals: TotalStats,
}

/// Speculative decoding since the model was loaded.
#[derive(Debug, Serialize, ToSchema)]
struct SpeculationCounts {
    /// Tokens that were drafted and verified.
    draft_tokens: u64,
    /// Those that were right.
    accepted_tokens: u64,
    /// Time that drafts saved, by the measured cost of steps without; negative if they cost more.
    saved_seconds: f64,
}

/// Counts since the server started.
#[derive(Debug, Serialize, ToSchema)]
struct TotalStats {
    /// Finished choices.
    requests: u64,
    finished: u64,
    failed: u64,
    cancelled: u64,
    /// Refused because the queue was full, since the model was loaded.
    refused: u64,
    /// Preemptions since the model was loaded.
    preempted: u64,
    prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    cached_tokens: u64,
    generation_tokens: u64,
}

/// One generation request.
#[derive(Debug, Serialize, ToSchema)]
struct RequestStats {
    route: &'static str,
    model: String,
    /// `running`, `finished`, `failed` or `cancelled`.
    outcome: &'static str,
    /// `stop`, `stop_string` or `length`.
    finish_reason: Option<&'static str>,
    /// In seconds since 1970.
    started_at: f64,
    prompt_tokens: usize,
    /// Prompt tokens from the prefix cache; known at the end.
    cached_tokens: Option<usize>,
    generation_tokens: usize,
    /// Time in the queue; known at the end.
    queue_seconds: Option<f64>,
    /// From its arrival to its first token.
    first_token_seconds: Option<f64>,
    /// From its arrival to its end, or until now.
    seconds: f64,
    /// Tokens per second after the first.
    tokens_per_second: Option<f64>,
}

/// Every model's activity and recent requests, without their content.
#[utoipa::path(
    get,
    path = "/stats",
    tag = "operating",
    responses(
        (status = 200, description = "What the server does", body = ServerStats),
        (status = 403, description = "The key lacks the scope `metrics`"),
    )
)]
pub async fn stats(State(app): State<Arc<App>>) -> Json<ServerStats> {
    let models = app.models.status();
    let running = app.in_flight.list();
    let running = running.iter().rev().map(|entry| running_request(entry));
    let ended = app.metrics.recent.list().into_iter().map(ended);
    Json(ServerStats {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: app.started.elapsed().unwrap_or_default().as_secs_f64(),
        resident_bytes: resident_bytes(),
        models: models.iter().map(|one| model(&app.metrics, one)).collect(),
        requests: running.chain(ended).collect(),
    })
}

fn model(metrics: &Metrics, status: &ModelStatus) -> ModelStats {
    let open = status.stats.as_ref();
    let count = |of: fn(&Stats) -> usize| open.map_or(0, of);
    let number = |of: fn(&Stats) -> f64| open.map_or(0.0, of);
    ModelStats {
        id: status.name.clone(),
        state: status.state.name(),
        running: count(|stats| stats.running),
        waiting: count(|stats| stats.waiting),
        paused: count(|stats| stats.paused),
        prompt_tokens_per_second: number(|stats| stats.prompt_speed),
        generation_tokens_per_second: number(|stats| stats.decode_speed),
        kv_used_tokens: count(|stats| stats.memory.kv_in_use),
        kv_reserved_tokens: count(|stats| stats.kv_reserved),
        kv_capacity_tokens: count(|stats| stats.memory.kv_capacity),
        kv_cached_bytes: open.map_or(0, |stats| stats.cache.bytes),
        memory_bytes: open.and(status.resident_bytes).unwrap_or(0),
        step_seconds: number(|stats| stats.step_time.as_secs_f64()),
        overhead_seconds: number(|stats| stats.overhead.as_secs_f64()),
        speculation: speculation(open),
        totals: totals(metrics, status),
    }
}

fn speculation(open: Option<&Stats>) -> SpeculationCounts {
    let counts = open.map(|stats| stats.speculation).unwrap_or_default();
    SpeculationCounts {
        draft_tokens: counts.draft_tokens,
        accepted_tokens: counts.accepted_tokens,
        saved_seconds: counts.saved_seconds,
    }
}

fn totals(metrics: &Metrics, status: &ModelStatus) -> TotalStats {
    let meters = metrics.meters(&status.name);
    let finished = meters.stopped.get() + meters.cut.get();
    let (failed, cancelled) = (meters.failed.get(), meters.aborted.get());
    let engine = status.stats.map(|stats| stats.totals).unwrap_or_default();
    TotalStats {
        requests: finished + failed + cancelled,
        finished,
        failed,
        cancelled,
        refused: engine.refused,
        preempted: engine.preempted,
        prompt_tokens: meters.prompt_tokens.get(),
        cached_tokens: meters.cached_tokens.get(),
        generation_tokens: meters.generation_tokens.get(),
    }
}

fn running_request(entry: &Entry) -> RequestStats {
    let elapsed = entry.began.elapsed().unwrap_or_default();
    let tokens = entry.completion_tokens.load(Ordering::Relaxed);
    let first_token = entry.first_token.get().copied();
    RequestStats {
        route: entry.route,
        model: entry.model.clone(),
        outcome: "running",
        finish_reason: None,
        started_at: since_1970(entry.began),
        prompt_tokens: entry.prompt_tokens,
        cached_tokens: None,
        generation_tokens: tokens,
        queue_seconds: None,
        first_token_seconds: first_token.map(|time| time.as_secs_f64()),
        seconds: elapsed.as_secs_f64(),
        tokens_per_second: speed(tokens, first_token, elapsed),
    }
}

fn ended(past: FinishedRequest) -> RequestStats {
    let FinishedRequest {
        route,
        model,
        outcome,
        finish_reason,
        began,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        queued,
        first_token,
        total,
    } = past;
    RequestStats {
        route,
        model,
        outcome: outcome.as_str(),
        finish_reason,
        started_at: since_1970(began),
        prompt_tokens,
        cached_tokens,
        generation_tokens: completion_tokens,
        queue_seconds: queued.map(|time| time.as_secs_f64()),
        first_token_seconds: first_token.map(|time| time.as_secs_f64()),
        seconds: total.as_secs_f64(),
        tokens_per_second: speed(completion_tokens, first_token, total),
    }
}

/// Tokens per second after the first token.
fn speed(tokens: usize, first: Option<Duration>, total: Duration) -> Option<f64> {
    let after_first = total.checked_sub(first?)?.as_secs_f64();
    let tokens = tokens.checked_sub(1).filter(|tokens| *tokens > 0)?;
    (after_first > 0.0).then(|| tokens as f64 / after_first)
}
