//! Counted families: names, buckets, and each model's series.
//!
//! Names that begin with `vllm:` are those that vLLM's dashboards and the Gateway API Inference
//! Extension's endpoint picker read, with vLLM's own meanings and bucket edges.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

/// vLLM's edges for the time to a first token.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's edges for the time between two tokens, with finer ones below for small models.
const BETWEEN_TOKENS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// vLLM's edges for a request's phases.
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// vLLM's edges for token counts, up to the longest contexts.
const TOKENS: &[f64] = &[
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10_000.0,
    20_000.0,
    50_000.0,
    100_000.0,
    200_000.0,
    500_000.0,
    1_000_000.0,
];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
/// The goal is a millisecond; most edges are below it.
const TO_SOCKET: &[f64] = &[
    0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_35, 0.000_5, 0.000_75, 0.001, 0.002, 0.005, 0.01,
    0.025, 0.05, 0.1, 0.5, 1.0, 10.0,
];

const MODEL: &str = "model_name";
/// The histogram that older dashboards read under another name.
pub const INTER_TOKEN: &str = "vllm:inter_token_latency_seconds";

/// Every family, over all models.
pub struct Families {
    prompt_tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    generation_tokens: IntCounterVec,
    /// Also by finish reason.
    success: IntCounterVec,
    first_token: HistogramVec,
    between_tokens: HistogramVec,
    per_token: HistogramVec,
    whole: HistogramVec,
    queued: HistogramVec,
    inference: HistogramVec,
    prefill: HistogramVec,
    decode: HistogramVec,
    request_prompt: HistogramVec,
    request_generation: HistogramVec,
    params_n: HistogramVec,
    params_max_tokens: HistogramVec,
    /// By model, route and outcome.
    pub requests: IntCounterVec,
    /// By route, method and status.
    pub responses: IntCounterVec,
    pub to_socket: Histogram,
}

/// One model's series, looked up once, so that counting is an atomic addition.
pub struct Meters {
    pub prompt_tokens: IntCounter,
    pub cached_tokens: IntCounter,
    pub generation_tokens: IntCounter,
    pub stopped: IntCounter,
    pub cut: IntCounter,
    pub aborted: IntCounter,
    pub failed: IntCounter,
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    pub per_token: Histogram,
    pub whole: Histogram,
    pub queued: Histogram,
    pub inference: Histogram,
    pub prefill: Histogram,
    pub decode: Histogram,
    pub request_prompt: Histogram,
    pub request_generation: Histogram,
    pub params_n: Histogram,
    pub params_max_tokens: Histogram,
}

impl Families {
    pub fn new(registry: &Registry) -> Self {
        let make = FamilyBuilder(registry);
        Self {
            prompt_tokens: make.counter(
                "vllm:prompt_tokens_total",
                "Prompt tokens of requests that received a token.",
                &[MODEL],
            ),
            cached_tokens: make.counter(
                "vllm:prompt_tokens_cached_total",
                "Prompt tokens of finished requests that were read from the prefix cache.",
                &[MODEL],
            ),
            generation_tokens: make.counter(
                "vllm:generation_tokens_total",
                "Generated tokens.",
                &[MODEL],
            ),
            success: make.counter(
                "vllm:request_success_total",
                "Finished choices, by finish reason.",
                &[MODEL, "finished_reason"],
            ),
            first_token: make.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                FIRST_TOKEN,
            ),
            between_tokens: make.histogram(
                INTER_TOKEN,
                "Time between two steps that produced tokens of a stream.",
                BETWEEN_TOKENS,
            ),
            per_token: make.histogram(
                "vllm:request_time_per_output_token_seconds",
                "A finished request's mean time between two tokens.",
                BETWEEN_TOKENS,
            ),
            whole: make.histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its end.",
                REQUEST,
            ),
            queued: make.histogram(
                "vllm:request_queue_time_seconds",
                "A finished request's time in the queue.",
                REQUEST,
            ),
            inference: make.histogram(
                "vllm:request_inference_time_seconds",
                "A finished request's time after admission.",
                REQUEST,
            ),
            prefill: make.histogram(
                "vllm:request_prefill_time_seconds",
                "From a finished request's admission to its first token.",
                REQUEST,
            ),
            decode: make.histogram(
                "vllm:request_decode_time_seconds",
                "From a finished request's first token to its last.",
                REQUEST,
            ),
            request_prompt: make.histogram(
                "vllm:request_prompt_tokens",
                "A finished request's prompt tokens.",
                TOKENS,
            ),
            request_generation: make.histogram(
                "vllm:request_generation_tokens",
                "A finished request's generated tokens.",
                TOKENS,
            ),
            params_n: make.histogram("vllm:request_params_n", "Requested choices (`n`).", CHOICES),
            params_max_tokens: make.histogram(
                "vllm:request_params_max_tokens",
                "Requested `max_tokens`.",
                TOKENS,
            ),
            requests: make.counter(
                "loquat_requests_total",
                "Generation requests, by outcome.",
                &[MODEL, "route", "outcome"],
            ),
            responses: make.counter(
                "loquat_http_responses_total",
                "HTTP responses.",
                &["route", "method", "status"],
            ),
            to_socket: make.to_socket(),
        }
    }

    pub fn for_model(&self, model: &str) -> Meters {
        let counter = |vec: &IntCounterVec| vec.with_label_values(&[model]);
        let ended = |why: &str| self.success.with_label_values(&[model, why]);
        let histogram = |vec: &HistogramVec| vec.with_label_values(&[model]);
        Meters {
            prompt_tokens: counter(&self.prompt_tokens),
            cached_tokens: counter(&self.cached_tokens),
            generation_tokens: counter(&self.generation_tokens),
            stopped: ended("stop"),
            cut: ended("length"),
            aborted: ended("abort"),
            failed: ended("error"),
            first_token: histogram(&self.first_token),
            between_tokens: histogram(&self.between_tokens),
            per_token: histogram(&self.per_token),
            whole: histogram(&self.whole),
            queued: histogram(&self.queued),
            inference: histogram(&self.inference),
            prefill: histogram(&self.prefill),
            decode: histogram(&self.decode),
            request_prompt: histogram(&self.request_prompt),
            request_generation: histogram(&self.request_generation),
            params_n: histogram(&self.params_n),
            params_max_tokens: histogram(&self.params_max_tokens),
        }
    }
}

/// Names, labels and edges are constants, so registration cannot fail.
const VALID: &str = "names and labels are valid and unique";

struct FamilyBuilder<'a>(&'a Registry);

impl FamilyBuilder<'_> {
    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn histogram(&self, name: &str, help: &str, edges: &[f64]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(edges.to_vec());
        self.keep(HistogramVec::new(options, &[MODEL]))
    }

    fn to_socket(&self) -> Histogram {
        let help = "From the engine's sending a token to the write that took it to the socket.";
        let options = HistogramOpts::new("loquat_token_to_socket_seconds", help);
        self.keep(Histogram::with_opts(options.buckets(TO_SOCKET.to_vec())))
    }

    fn keep<T: Collector + Clone + 'static>(&self, made: prometheus::Result<T>) -> T {
        let made = made.expect(VALID);
        self.0.register(Box::new(made.clone())).expect(VALID);
        made
    }
}
