//! `GET /metrics`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use loquat_engine::Stats;
use prometheus::proto::MetricFamily;
use prometheus::{TEXT_FORMAT, TextEncoder};

use super::exposition::{Family, renamed};
use super::families::INTER_TOKEN;
use super::process::resident_bytes;
use super::since_1970;
use crate::app::App;
use crate::error::ApiError;
use crate::models::{AdapterStatus, ModelStatus};

/// All metrics, in Prometheus' text format.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operating",
    responses(
        (status = 200, description = "Counters, gauges and histograms", content_type = "text/plain; version=0.0.4", body = String),
        (status = 403, description = "The key lacks the scope `metrics`"),
    )
)]
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let text = TextEncoder::new().encode_to_string(&gather(&app));
    let text = text.map_err(|error| ApiError::internal(&error))?;
    Ok(([(CONTENT_TYPE, TEXT_FORMAT)], text).into_response())
}

pub fn gather(app: &App) -> Vec<MetricFamily> {
    let mut families = app.metrics.registry.gather();
    // The name in older dashboards.
    let older = families.iter().find(|family| family.name() == INTER_TOKEN);
    let older = older.map(|family| renamed(family, "vllm:time_per_output_token_seconds"));
    families.extend(older);
    let models = app.models.status();
    families.extend(engines(&models));
    families.extend(states(&models));
    families.extend(keys(app));
    families.extend(server(app));
    families
}

/// One family of the engines' statistics.
struct Row {
    name: &'static str,
    help: &'static str,
    counter: bool,
    value: fn(&Stats) -> f64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Stats) -> f64) -> Row {
    Row {
        name,
        help,
        counter: false,
        value,
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Stats) -> f64) -> Row {
    Row {
        name,
        help,
        counter: true,
        value,
    }
}

const KV_USAGE: &str = "The share of KV reserved for running requests, from 0 to 1.";

/// The engines' statistics. Counts are since the model was loaded.
const ENGINE: &[Row] = &[
    gauge("vllm:num_requests_running", "Running requests.", |stats| {
        stats.running as f64
    }),
    gauge("vllm:num_requests_waiting", "Queued requests.", |stats| {
        stats.waiting as f64
    }),
    gauge("vllm:kv_cache_usage_perc", KV_USAGE, kv_usage),
    gauge("vllm:gpu_cache_usage_perc", KV_USAGE, kv_usage),
    counter(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        |stats| stats.totals.prompt_tokens as f64,
    ),
    counter(
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found in the prefix cache.",
        |stats| stats.totals.cached_tokens as f64,
    ),
    counter(
        "vllm:num_preemptions_total",
        "Preemptions of running requests.",
        |stats| stats.totals.preempted as f64,
    ),
    counter(
        "vllm:spec_decode_num_drafts_total",
        "Drafts that were verified: rows of a step, each of some tokens.",
        |stats| stats.speculation.drafts as f64,
    ),
    counter(
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens of drafts.",
        |stats| stats.speculation.draft_tokens as f64,
    ),
    counter(
        "vllm:spec_decode_num_accepted_tokens_total",
        "Tokens of drafts that were right.",
        |stats| stats.speculation.accepted_tokens as f64,
    ),
    gauge(
        "loquat_spec_decode_saved_seconds",
        "Time that drafts saved, by the measured cost of steps without; negative if they cost more.",
        |stats| stats.speculation.saved_seconds,
    ),
    gauge(
        "loquat_requests_paused",
        "Running requests whose clients read too slowly.",
        |stats| stats.paused as f64,
    ),
    gauge("loquat_kv_tokens", "KV tokens in use.", |stats| {
        stats.memory.kv_in_use as f64
    }),
    gauge(
        "loquat_kv_capacity_tokens",
        "KV capacity in tokens.",
        |stats| stats.memory.kv_capacity as f64,
    ),
    gauge(
        "loquat_prefix_cache_bytes",
        "What kept prefixes hold.",
        |stats| stats.cache.bytes as f64,
    ),
    gauge(
        "loquat_kv_disk_bytes",
        "Stored prefixes of all models, as of the last count.",
        |stats| stats.disk.bytes as f64,
    ),
    gauge(
        "loquat_kv_disk_limit_bytes",
        "Most bytes of stored prefixes; 0 if none are stored.",
        |stats| stats.disk.max_bytes as f64,
    ),
    gauge(
        "loquat_kv_disk_pending_tokens",
        "Tokens of cached prefixes that are still to be stored.",
        |stats| stats.disk.pending_tokens as f64,
    ),
    counter(
        "loquat_kv_disk_hits_total",
        "Requests for which a stored prefix was read.",
        |stats| stats.disk.hits as f64,
    ),
    counter(
        "loquat_kv_disk_hit_tokens_total",
        "Prompt tokens read from stored prefixes.",
        |stats| stats.disk.hit_tokens as f64,
    ),
    counter(
        "loquat_kv_disk_slower_total",
        "Requests whose stored prefix would have been slower to read than to compute.",
        |stats| stats.disk.slower as f64,
    ),
    counter(
        "loquat_kv_disk_read_bytes_total",
        "Bytes read of stored prefixes.",
        |stats| stats.disk.read_bytes as f64,
    ),
    counter(
        "loquat_kv_disk_written_bytes_total",
        "Bytes written of stored prefixes.",
        |stats| stats.disk.written_bytes as f64,
    ),
    counter(
        "loquat_kv_disk_written_blocks_total",
        "Files written of stored prefixes.",
        |stats| stats.disk.written_blocks as f64,
    ),
    counter(
        "loquat_kv_disk_failed_writes_total",
        "Files that could not be written; their prefixes stay in memory.",
        |stats| stats.disk.failed_writes as f64,
    ),
    counter(
        "loquat_kv_disk_evicted_blocks_total",
        "Files removed to keep the limit.",
        |stats| stats.disk.evicted_blocks as f64,
    ),
    counter(
        "loquat_kv_disk_damaged_blocks_total",
        "Files removed because they were damaged or of another model.",
        |stats| stats.disk.damaged_blocks as f64,
    ),
    counter(
        "loquat_kv_disk_lost_total",
        "Prefixes that left memory before they were stored.",
        |stats| stats.disk.lost as f64,
    ),
    counter(
        "loquat_engine_steps_total",
        "Steps of the engine.",
        |stats| stats.steps as f64,
    ),
    gauge(
        "loquat_engine_step_seconds",
        "Recent mean of the session's time per step.",
        |stats| stats.step_time.as_secs_f64(),
    ),
    gauge(
        "loquat_engine_overhead_seconds",
        "Recent mean of the engine's time between two steps.",
        |stats| stats.overhead.as_secs_f64(),
    ),
    gauge(
        "loquat_prompt_tokens_per_second",
        "Recent prompt tokens per second.",
        |stats| stats.prompt_speed,
    ),
    gauge(
        "loquat_generation_tokens_per_second",
        "Recent generated tokens per second.",
        |stats| stats.decode_speed,
    ),
];

/// Cached prefixes are evicted on demand and count as free; admission depends on what running
/// requests have reserved.
fn kv_usage(stats: &Stats) -> f64 {
    match stats.memory.kv_capacity {
        0 => 0.0,
        capacity => stats.kv_reserved.min(capacity) as f64 / capacity as f64,
    }
}

fn engines(models: &[ModelStatus]) -> Vec<MetricFamily> {
    let open: Vec<(&str, &Stats)> = models
        .iter()
        .filter_map(|model| Some((model.name.as_str(), model.stats.as_ref()?)))
        .collect();
    let families = ENGINE.iter().map(|row| {
        let mut family = if row.counter {
            Family::counter(row.name, row.help)
        } else {
            Family::gauge(row.name, row.help)
        };
        for (name, stats) in &open {
            family.add(&[("model_name", name)], (row.value)(stats));
        }
        family
    });
    let mut config = Family::gauge("vllm:cache_config_info", "How KV is handed out.");
    for (name, stats) in &open {
        let run = stats.memory.kv_granularity.max(1);
        let runs = stats.memory.kv_capacity / run;
        let (run, runs) = (run.to_string(), runs.to_string());
        let labels = [
            ("model_name", *name),
            ("block_size", run.as_str()),
            ("num_gpu_blocks", runs.as_str()),
        ];
        config.add(&labels, 1.0);
    }
    let mut accepted = Family::counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Tokens of drafts that were right, by position in the draft.",
    );
    for (name, stats) in &open {
        for (position, count) in stats.speculation.accepted_at.iter().enumerate() {
            let labels = [("model_name", *name), ("position", &position.to_string())];
            accepted.add(&labels, *count as f64);
        }
    }
    families
        .chain([config, accepted])
        .filter_map(Family::finish)
        .collect()
}

fn states(models: &[ModelStatus]) -> Vec<MetricFamily> {
    let mut state = Family::gauge("loquat_model_state", "1 under the state a model is in.");
    let mut memory = Family::gauge("loquat_memory_bytes", "Memory of open models.");
    for model in models {
        let name = ("model_name", model.name.as_str());
        state.add(&[name, ("state", model.state.name())], 1.0);
        if let (Some(bytes), Some(_)) = (model.resident_bytes, &model.stats) {
            memory.add(&[name], bytes as f64);
        }
    }
    [state, memory]
        .into_iter()
        .filter_map(Family::finish)
        .collect()
}

fn keys(app: &App) -> Vec<MetricFamily> {
    let mut requests = Family::counter("loquat_key_requests_total", "Requests under a key.");
    let mut tokens = Family::counter("loquat_key_tokens_total", "Tokens of a key, by kind.");
    for key in app.keys.list() {
        let usage = key.usage();
        let name = ("key", key.name.as_str());
        requests.add(&[name], usage.requests as f64);
        let kinds = [
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("generation", usage.completion_tokens),
        ];
        for (kind, count) in kinds {
            tokens.add(&[name, ("kind", kind)], count as f64);
        }
    }
    [requests, tokens]
        .into_iter()
        .filter_map(Family::finish)
        .collect()
}

/// For the endpoint picker. The value is a time, by which the picker finds the latest sample.
fn adapters(app: &App, now: SystemTime) -> Family {
    let config = app.config();
    let takers = config.models.iter().filter(|model| model.takes_adapters());
    let most: usize = takers.map(|model| model.max_adapters).sum();
    let all = app.models.status().into_iter();
    let all: Vec<_> = all.flat_map(|model| model.adapters).collect();
    let names = |is: fn(&AdapterStatus) -> bool| {
        let names = all.iter().filter(|adapter| is(adapter));
        let names: BTreeSet<_> = names.map(|adapter| adapter.name.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(",")
    };
    let (running, waiting) = (
        names(|adapter| adapter.in_use > 0),
        names(|adapter| adapter.awaited),
    );
    Family::gauge("vllm:lora_requests_info", "Adapters in use.").with(
        &[
            ("max_lora", &most.to_string()),
            ("running_lora_adapters", &running),
            ("waiting_lora_adapters", &waiting),
        ],
        since_1970(now),
    )
}

fn server(app: &App) -> Vec<MetricFamily> {
    let now = SystemTime::now();
    let mut families = vec![
        adapters(app, now),
        Family::gauge("loquat_build_info", "What is running.")
            .with(&[("version", env!("CARGO_PKG_VERSION"))], 1.0),
        Family::gauge("loquat_requests_in_flight", "Running generation requests.")
            .with(&[], app.in_flight.list().len() as f64),
        Family::gauge(
            "process_start_time_seconds",
            "Start time of the server in seconds since 1970.",
        )
        .with(&[], since_1970(app.started)),
    ];
    if let Some(bytes) = resident_bytes() {
        let help = "Resident memory of the process.";
        families.push(Family::gauge("process_resident_memory_bytes", help).with(&[], bytes as f64));
    }
    families.into_iter().filter_map(Family::finish).collect()
}
