use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use tokio::sync::mpsc;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::config::Config;
use crate::testing::{Harness, MODEL, Scripted};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Only a hang takes longer.
const HANG_TIMEOUT: Duration = Duration::from_secs(300);

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A collector that passes on the spans it gets.
async fn collector() -> (SocketAddr, mpsc::UnboundedReceiver<Span>) {
    let (sender, spans) = mpsc::unbounded_channel();
    let take = move |body: Bytes| {
        let request = ExportTraceServiceRequest::decode(body).expect("protobuf");
        let scopes = request
            .resource_spans
            .into_iter()
            .flat_map(|of| of.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            sender.send(span).expect("the test listens");
        }
        std::future::ready(StatusCode::OK)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/v1/traces", post(take));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, spans)
}

fn telemetry(collector: Option<SocketAddr>) -> Telemetry {
    Telemetry {
        otlp_endpoint: collector.map(|address| format!("http://{address}")),
        ..Telemetry::default()
    }
}

/// A conversation, as a child of the client's span.
fn ask() -> Request<Body> {
    let body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "a whispered question" }],
        "max_tokens": 5,
    });
    Request::post("/v1/chat/completions")
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE}-{PARENT}-01"))
        .header("x-request-id", "of-the-client")
        .body(Body::from(body.to_string()))
        .unwrap()
}

fn attribute(span: &Span, name: &str) -> Option<Value> {
    let found = span.attributes.iter().find(|one| one.key == name)?;
    found.value.clone()?.value
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn request_span_is_child_of_clients_span() {
    let (address, mut spans) = collector().await;
    let lines = Lines::default();
    let (subscriber, guard) = subscriber(
        &Log::default(),
        &telemetry(Some(address)),
        lines.clone(),
        false,
    )
    .unwrap();
    let default = tracing::subscriber::set_default(subscriber);
    let server = Harness::saying("an answer that is longer than five tokens");
    assert_eq!(server.send(ask()).await.status(), StatusCode::OK);
    guard.shutdown().await;
    drop(default);
    // A busy machine may take longer than the server waits at its end.
    let span = tokio::time::timeout(HANG_TIMEOUT, spans.recv()).await;
    let span = span.expect("a span in time").expect("a span");
    assert_eq!(span.name, "POST /v1/chat/completions");
    assert_eq!(hex(&span.trace_id), TRACE);
    assert_eq!(hex(&span.parent_span_id), PARENT);
    let text = |text: &str| Value::StringValue(text.to_owned());
    for (name, expected) in [
        ("http.request.method", text("POST")),
        ("http.route", text("/v1/chat/completions")),
        ("http.response.status_code", Value::IntValue(200)),
        ("id", text("of-the-client")),
        ("gen_ai.operation.name", text("chat")),
        ("gen_ai.request.model", text(MODEL)),
        ("gen_ai.request.max_tokens", Value::IntValue(5)),
        ("gen_ai.usage.output_tokens", Value::IntValue(5)),
        ("loquat.outcome", text("finished")),
    ] {
        assert_eq!(attribute(&span, name), Some(expected), "{name}");
    }
    assert!(attribute(&span, "gen_ai.response.time_to_first_chunk").is_some());
    let said = format!("{span:?}");
    assert!(
        !said.contains("whispered") && !said.contains("an answer"),
        "{said}"
    );
    assert!(
        lines.text().contains(&format!("trace_id={TRACE}")),
        "{}",
        lines.text()
    );
}

#[tokio::test]
async fn missing_collector_is_logged_once() {
    let lines = Lines::default();
    // A port that is taken, but where nobody listens.
    let unused = tokio::net::TcpSocket::new_v4().unwrap();
    unused.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = unused.local_addr().unwrap();
    let (subscriber, guard) = subscriber(
        &Log::default(),
        &telemetry(Some(gone)),
        lines.clone(),
        false,
    )
    .unwrap();
    let default = tracing::subscriber::set_default(subscriber);
    let server = Harness::saying("hello");
    for _ in 0..3 {
        assert_eq!(server.send(ask()).await.status(), StatusCode::OK);
        let traces = guard.traces.clone().unwrap();
        let _ = tokio::task::spawn_blocking(move || traces.force_flush()).await;
    }
    drop(default);
    let complaints = lines
        .text()
        .matches("cannot send traces to the collector")
        .count();
    assert_eq!(complaints, 1, "{}", lines.text());
}

#[tokio::test]
async fn content_and_json_logs_are_opt_in() {
    for (content, format) in [(false, LogFormat::Text), (true, LogFormat::Json)] {
        let lines = Lines::default();
        let log = Log {
            content,
            format,
            ..Log::default()
        };
        let (subscriber, guard) = subscriber(&log, &telemetry(None), lines.clone(), false).unwrap();
        let default = tracing::subscriber::set_default(subscriber);
        let config = Config {
            log,
            ..Harness::config()
        };
        let server = Harness::with(Scripted::new("a hushed reply"), config);
        assert_eq!(server.send(ask()).await.status(), StatusCode::OK);
        guard.shutdown().await;
        drop(default);
        let text = lines.text();
        let lines = text.lines().filter(|line| line.contains("of-the-client"));
        let lines: Vec<_> = lines.collect();
        let about_content = if content { 2 } else { 0 };
        assert_eq!(lines.len(), about_content + 1, "{text}");
        let line = lines[about_content];
        assert!(
            line.contains(TRACE) && line.contains("/v1/chat/completions"),
            "{line}"
        );
        assert!(
            !line.contains("otel.kind") || format == LogFormat::Json,
            "{line}"
        );
        assert_eq!(text.contains("whispered"), content, "{text}");
        assert_eq!(text.contains("hus"), content, "{text}");
        if format == LogFormat::Json {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(line["tokens"], 5);
            assert_eq!(line["span"]["name"], "request");
        }
    }
}

#[tokio::test]
async fn log_level_can_be_changed() {
    let lines = Lines::default();
    let (subscriber, guard) =
        subscriber(&Log::default(), &telemetry(None), lines.clone(), false).unwrap();
    let default = tracing::subscriber::set_default(subscriber);
    let level = guard.log_level();
    tracing::debug!("first");
    level.set_level("debug").unwrap();
    tracing::debug!("second");
    let error = level.set_level("loquat=deafening").unwrap_err().to_string();
    assert!(
        error.contains("loquat=deafening") && error.contains("info,"),
        "{error}"
    );
    tracing::debug!("third");
    level.set_level("error").unwrap();
    tracing::warn!("fourth");
    drop(default);
    let text = lines.text();
    let said = ["first", "second", "third", "fourth"].map(|word| text.contains(word));
    assert_eq!(said, [false, true, true, false], "{text}");
}

#[tokio::test]
async fn invalid_endpoint_is_refused() {
    let telemetry = Telemetry {
        otlp_endpoint: Some("https://collector".to_owned()),
        ..Telemetry::default()
    };
    let refused = subscriber(&Log::default(), &telemetry, Lines::default(), false);
    let error = refused.err().expect("an error").to_string();
    assert!(error.contains("telemetry.otlp_endpoint"), "{error}");
}

#[tokio::test]
async fn one_log_line_covers_all_prompts() {
    let lines = Lines::default();
    let log = Log {
        format: LogFormat::Json,
        ..Log::default()
    };
    let (subscriber, _guard) = subscriber(&log, &telemetry(None), lines.clone(), false).unwrap();
    let default = tracing::subscriber::set_default(subscriber);
    let server = Harness::saying("a reply");
    let body = json!({ "model": MODEL, "prompt": [[1, 2, 3], [4, 5]], "max_tokens": 4 });
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    drop(default);
    let text = lines.text();
    let about = text.lines().filter(|line| line.contains("/v1/completions"));
    let about: Vec<serde_json::Value> = about
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let [line] = &about[..] else {
        panic!("not one line about the request: {text}");
    };
    assert_eq!(line["prompt_tokens"], 5);
    assert_eq!(line["tokens"], reply.json()["usage"]["completion_tokens"]);
    assert_eq!(line["outcome"], "finished");
}
