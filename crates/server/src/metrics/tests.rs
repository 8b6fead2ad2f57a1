use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use loquat_engine::{Event, GenerateRequest, SamplingParams, SpeculationMode};
use serde_json::json;

use crate::active_request::{ActiveRequest, Submission};
use crate::caller::Caller;
use crate::config;
use crate::error::ErrorKind;
use crate::testing::{Harness, MODEL, Scripted};
use crate::wire::IGNORED_HEADER;

const ROUTE: &str = "/v1/completions";

/// Samples by name and labels, as they are written.
type Samples = BTreeMap<String, f64>;

/// Parses the text format strictly: every sample under its type, no duplicate names.
fn parse(text: &str) -> Samples {
    let mut samples = Samples::new();
    let mut family = (String::new(), String::new());
    let mut families = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(!families.contains(&name), "{name} stands twice");
            families.push(name);
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a sample");
        let name = sample.split('{').next().unwrap_or(sample);
        let suffix = name.strip_prefix(&family.0);
        let suffixes: &[&str] = match family.1.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            "counter" | "gauge" => &[""],
            other => panic!("{other} is no type"),
        };
        let known = suffix.is_some_and(|suffix| suffixes.contains(&suffix));
        assert!(known, "{line:?} under {family:?}");
        assert!(family.1 != "counter" || name.ends_with("_total"), "{name}");
        let value = value.parse().expect("a number");
        let before = samples.insert(sample.to_owned(), value);
        assert_eq!(before, None, "{sample} stands twice");
    }
    samples
}

async fn scrape(server: &Harness) -> Samples {
    let reply = server.get("/metrics").await;
    assert_eq!(reply.status(), StatusCode::OK);
    let kind = reply.response.headers()[CONTENT_TYPE].to_str().unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    parse(&reply.text())
}

fn model_value(samples: &Samples, name: &str) -> f64 {
    let sample = format!("{name}{{model_name=\"{MODEL}\"}}");
    *samples
        .get(&sample)
        .unwrap_or_else(|| panic!("no {sample}"))
}

fn ended(samples: &Samples, outcome: &str) -> f64 {
    let sample = format!(
        "loquat_requests_total{{model_name=\"{MODEL}\",outcome=\"{outcome}\",route=\"{ROUTE}\"}}"
    );
    samples.get(&sample).copied().unwrap_or(0.0)
}

fn request(max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: vec![5, 6, 7],
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    }
}

fn slow() -> Harness {
    let model = Scripted {
        delay: Duration::from_millis(1),
        ..Scripted::new("hello there, and then some more")
    };
    Harness::with(model, Harness::config())
}

async fn start(
    server: &Harness,
    caller: &Caller,
    choices: usize,
    request: GenerateRequest,
) -> ActiveRequest {
    let lease = server.app.models.lease(MODEL).await.unwrap();
    let submission = Submission {
        app: &server.app,
        caller,
        lease,
        route: ROUTE,
        choices,
    };
    ActiveRequest::submit(submission, request).unwrap()
}

/// Runs a request to its end.
async fn finish(server: &Harness, caller: &Caller, choices: usize, max_tokens: usize) {
    let active = start(server, caller, choices, request(max_tokens)).await;
    active.collect().await.unwrap();
}

#[tokio::test]
async fn vllm_metrics_are_exposed() {
    let server = slow();
    let caller = Caller::new("a");
    finish(&server, &caller, 1, 4).await;
    let samples = scrape(&server).await;
    for name in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_hits_total",
        "loquat_engine_step_seconds",
        "loquat_engine_overhead_seconds",
        "loquat_memory_bytes",
    ] {
        model_value(&samples, name);
    }
    for (name, expected) in [
        ("vllm:prompt_tokens_total", 3.0),
        ("vllm:generation_tokens_total", 4.0),
        ("vllm:prefix_cache_queries_total", 3.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:inter_token_latency_seconds_count", 3.0),
        ("vllm:time_per_output_token_seconds_count", 3.0),
        ("vllm:request_time_per_output_token_seconds_count", 1.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
        ("vllm:request_queue_time_seconds_count", 1.0),
        ("vllm:request_prefill_time_seconds_count", 1.0),
        ("vllm:request_decode_time_seconds_count", 1.0),
        ("vllm:request_inference_time_seconds_count", 1.0),
        ("vllm:request_prompt_tokens_sum", 3.0),
        ("vllm:request_generation_tokens_sum", 4.0),
        ("vllm:request_params_n_sum", 1.0),
        ("vllm:request_params_max_tokens_sum", 4.0),
    ] {
        assert_eq!(model_value(&samples, name), expected, "{name}");
    }
    let has = |part: &str| samples.keys().any(|sample| sample.starts_with(part));
    assert!(has(
        "vllm:cache_config_info{model_name=\"tiny\",block_size=\""
    ));
    assert!(has(
        "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"}"
    ));
    assert!(has(
        "loquat_model_state{model_name=\"tiny\",state=\"ready\"}"
    ));
    assert!(has("loquat_build_info{version=\""));
    assert!(has("loquat_token_to_socket_seconds_bucket"));
    assert_eq!(
        samples["vllm:request_success_total{finished_reason=\"length\",model_name=\"tiny\"}"],
        1.0
    );
}

/// An answer that repeats its prompt, in every dialect: drafted for, unless the request has none.
#[tokio::test]
async fn drafts_are_counted() {
    const TEXT: &str = "the cat sat on the mat, and the dog lay by the door";
    let messages = json!([{ "role": "user", "content": TEXT }]);
    let opened = format!("<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n");
    // The path, the request, and where the field is.
    let cases = [
        ("/v1/chat/completions", json!({ "messages": messages }), ""),
        (
            "/v1/completions",
            json!({ "prompt": opened, "max_tokens": 99 }),
            "",
        ),
        ("/completion", json!({ "prompt": opened }), ""),
        ("/v1/responses", json!({ "input": TEXT }), ""),
        (
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 99 }),
            "",
        ),
        (
            "/api/chat",
            json!({ "messages": messages, "stream": false }),
            "options",
        ),
        (
            "/api/generate",
            json!({ "prompt": opened, "raw": true, "stream": false }),
            "options",
        ),
    ];
    for (path, mut body, within) in cases {
        let model = Scripted {
            delay: Duration::from_millis(1),
            speculation: SpeculationMode::Lookup,
            ..Scripted::new(TEXT)
        };
        let server = Harness::with(model, Harness::config());
        body["model"] = json!(MODEL);
        let mut fields = json!({ "speculative.n_max": 0 });
        if !within.is_empty() {
            fields = json!({ within: fields });
        }
        let mut without = body.clone();
        for (name, value) in fields.as_object().expect("an object") {
            without[name] = value.clone();
        }
        let names = ["drafts", "draft_tokens", "accepted_tokens"];
        for (body, expected) in [(without, false), (body, true)] {
            let reply = server.post(path, &body).await;
            assert_eq!(reply.status(), StatusCode::OK, "{path}: {}", reply.text());
            assert!(reply.text().contains(TEXT), "{path}: {}", reply.text());
            let ignored = reply.response.headers().get(IGNORED_HEADER);
            assert_eq!(ignored, None, "{path}");
            let samples = scrape(&server).await;
            let counts = names.map(|name| {
                let name = format!("vllm:spec_decode_num_{name}_total");
                model_value(&samples, &name)
            });
            assert_eq!(counts.map(|count| count > 0.0), [expected; 3], "{path}");
            let [rows, drafted, accepted] = counts;
            assert!(rows <= drafted && accepted <= drafted, "{path}");
        }
    }
}

#[tokio::test]
async fn every_request_is_counted_once() {
    let server = slow();
    let caller = Caller::new("a");
    // Read to the end.
    finish(&server, &caller, 1, 4).await;
    // Two choices, read to the end.
    finish(&server, &caller, 2, 4).await;
    // Dropped right after its last event.
    let mut turn = start(&server, &caller, 1, request(2)).await;
    while let Some(Ok((_, event))) = turn.next().await {
        if matches!(event, Event::Finished { .. }) {
            break;
        }
    }
    assert_eq!(turn.usage().completion_tokens, 2);
    drop(turn);
    // Dropped half-way, and before the first event.
    let mut turn = start(&server, &caller, 1, request(16)).await;
    assert!(turn.next().await.unwrap().is_ok());
    drop(turn);
    drop(start(&server, &caller, 2, request(16)).await);
    // Cancelled by an operator.
    let mut turn = start(&server, &caller, 1, request(16)).await;
    server.app.in_flight.list()[0].cancel();
    assert_eq!(
        turn.next().await.unwrap().unwrap_err().kind,
        ErrorKind::Cancelled
    );
    assert!(turn.next().await.is_none());
    drop(turn);
    // Out of time.
    let late = Caller {
        deadline: Some(Instant::now()),
        ..Caller::new("late")
    };
    let turn = start(&server, &late, 1, request(16)).await;
    assert_eq!(turn.collect().await.unwrap_err().kind, ErrorKind::Timeout);
    // Never queued.
    let refused = Submission {
        app: &server.app,
        caller: &caller,
        lease: server.app.models.lease(MODEL).await.unwrap(),
        route: ROUTE,
        choices: 1,
    };
    assert!(ActiveRequest::submit(refused, request(1 << 20)).is_err());

    let samples = scrape(&server).await;
    let outcomes = ["finished", "cancelled", "failed", "refused"];
    let counts = outcomes.map(|outcome| ended(&samples, outcome));
    assert_eq!(counts, [3.0, 3.0, 1.0, 1.0]);
    let reasons = ["stop", "length", "abort", "error"].map(|reason| {
        samples[&format!(
            "vllm:request_success_total{{finished_reason=\"{reason}\",model_name=\"{MODEL}\"}}"
        )]
    });
    // Choices: four finished, four were dropped or cancelled, one failed.
    assert_eq!(reasons, [0.0, 4.0, 4.0, 1.0]);
    let whole = model_value(&samples, "vllm:e2e_request_latency_seconds_count");
    assert_eq!(whole, reasons.iter().sum::<f64>());
    assert_eq!(
        model_value(&samples, "vllm:request_queue_time_seconds_count"),
        4.0
    );
    assert_eq!(samples["loquat_requests_in_flight"], 0.0);
}

#[tokio::test]
async fn histograms_accumulate() {
    let server = slow();
    let caller = Caller::new("a");
    for _ in 0..3 {
        finish(&server, &caller, 1, 5).await;
    }
    let samples = scrape(&server).await;
    let name = "vllm:inter_token_latency_seconds";
    let buckets = samples
        .iter()
        .filter(|(sample, _)| sample.starts_with(&format!("{name}_bucket")));
    let mut counts: Vec<f64> = buckets.map(|(_, count)| *count).collect();
    counts.sort_by(f64::total_cmp);
    let all = model_value(&samples, &format!("{name}_count"));
    assert_eq!(all, 12.0);
    assert_eq!(counts.last(), Some(&all));
    let infinite = format!("{name}_bucket{{model_name=\"{MODEL}\",le=\"+Inf\"}}");
    assert_eq!(samples[&infinite], all);
}

#[tokio::test]
async fn stats_list_running_and_finished_requests() {
    let server = slow();
    let caller = Caller::new("secret-id");
    finish(&server, &caller, 1, 4).await;
    let mut turn = start(&server, &caller, 1, request(400)).await;
    assert!(turn.next().await.unwrap().is_ok());
    let reply = server.get("/stats").await;
    assert_eq!(reply.status(), StatusCode::OK);
    assert!(!reply.text().contains("secret-id"));
    let stats = reply.json();
    let requests = &stats["requests"];
    assert_eq!(requests[0]["outcome"], "running");
    assert!(requests[0]["first_token_seconds"].is_f64());
    let past = &requests[1];
    for (field, expected) in [
        ("outcome", json!("finished")),
        ("finish_reason", json!("length")),
        ("route", json!(ROUTE)),
        ("prompt_tokens", json!(3)),
        ("generation_tokens", json!(4)),
    ] {
        assert_eq!(past[field], expected, "{field}");
    }
    assert!(past["tokens_per_second"].as_f64().unwrap() > 0.0);
    let model = &stats["models"][0];
    assert_eq!(model["id"], MODEL);
    assert_eq!(model["state"], "ready");
    assert_eq!(model["totals"]["finished"], 1);
    assert!(model["kv_capacity_tokens"].as_u64().unwrap() > 0);
    drop(turn);
    let stats = server.get("/stats").await.json();
    assert_eq!(stats["requests"][0]["outcome"], "cancelled");
    assert_eq!(stats["models"][0]["totals"]["cancelled"], 1);
}

#[tokio::test]
async fn recent_requests_are_bounded() {
    let server = Harness::saying("hi");
    let caller = Caller::new("a");
    for _ in 0..super::recent::REMEMBERED + 5 {
        drop(start(&server, &caller, 1, request(1)).await);
    }
    let stats = server.get("/stats").await.json();
    let remembered = stats["requests"].as_array().unwrap().len();
    assert_eq!(remembered, super::recent::REMEMBERED);
}

#[tokio::test]
async fn streamed_tokens_are_timed_to_the_socket() {
    let server = slow();
    let clock = server.app.metrics.socket_clock();
    let caller = Caller {
        clock: Some(Arc::clone(&clock)),
        ..Caller::new("a")
    };
    let mut turn = start(&server, &caller, 1, request(4)).await;
    while turn.next().await.is_some() {
        clock.written();
    }
    let times = |samples: &Samples| samples["loquat_token_to_socket_seconds_count"];
    assert_eq!(times(&scrape(&server).await), 4.0);
}

/// docs/metrics.md lists the same families as the server.
#[tokio::test]
async fn metrics_page_is_complete() {
    let page = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/metrics.md"
    ));
    let page = page.expect("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let config = config::Config {
        keys: vec![config::Key::new("somebody", config::KeyHash([0; 32]))],
        ..Harness::config()
    };
    let server = Harness::with(Scripted::new("hi"), config);
    finish(&server, &Caller::new("a"), 1, 2).await;
    server
        .app
        .metrics
        .answered("/", &Method::GET, StatusCode::OK);
    let families = super::scrape::gather(&server.app);
    let exposed: BTreeSet<&str> = families.iter().map(|family| family.name()).collect();
    assert_eq!(documented, exposed);
}
