use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::fake_opener::becomes;
use crate::config::{Config, ModelConfig};
use crate::models::{OpenFailure, Opened, Opener, Planned};
use crate::testing::{Harness, MODEL, Scripted, hold_steps};

/// Counts openings.
struct Counting {
    model: Scripted,
    opened: Arc<AtomicUsize>,
}

impl Opener for Counting {
    fn plan(&self, model: &ModelConfig) -> Result<Planned, OpenFailure> {
        self.model.plan(model)
    }

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.model.open(model)
    }
}

fn server(step_timeout: Duration) -> (Harness, Arc<std::sync::Mutex<()>>, Arc<AtomicUsize>) {
    let model = Scripted::new("hello");
    let hold = Arc::clone(&model.hold);
    let opened = Arc::<AtomicUsize>::default();
    let counting = Counting {
        model,
        opened: Arc::clone(&opened),
    };
    let config = Config {
        models: vec![ModelConfig {
            step_timeout,
            ..ModelConfig::new(MODEL, "nowhere")
        }],
        ..Config::default()
    };
    (Harness::serving(counting, config), hold, opened)
}

/// Asks until the model answers: on a busy machine any step may exceed the short timeout.
async fn answers(server: &Harness, body: &Value) {
    loop {
        let reply = server.post("/v1/chat/completions", body).await;
        if reply.status() == StatusCode::OK {
            return;
        }
        assert!(reply.text().contains("model_restarted"), "{}", reply.text());
    }
}

#[tokio::test]
async fn hung_model_is_restarted() {
    let (server, hold, opened) = server(Duration::from_millis(50));
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let hanging = hold_steps(&hold);
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = stream.into();
        let reply = server.post("/v1/chat/completions", &body).await;
        let text = reply.text();
        assert!(text.contains("model_restarted"), "{text}");
        assert!(text.contains("did not respond"), "{text}");
        if !stream {
            assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
    }
    // Opened again although both threads are still stuck.
    becomes(&server.app.models, MODEL, "ready").await;
    assert_eq!(opened.load(Ordering::SeqCst), 3);
    drop(hanging);
    answers(&server, &body).await;
}

#[tokio::test]
async fn model_that_hangs_while_closing_is_given_up() {
    let (server, hold, opened) = server(Duration::from_secs(2));
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let hanging = hold_steps(&hold);
    let mut request = Box::pin(server.post("/v1/chat/completions", &body));
    while server.app.in_flight.count() == 0 {
        assert!(futures_util::poll!(&mut request).is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(request);
    server.app.models.unload(MODEL).await.expect("it is closed");
    // Nobody asked for it since.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    becomes(&server.app.models, MODEL, "unloaded").await;
    drop(hanging);
    answers(&server, &body).await;
    assert!(opened.load(Ordering::SeqCst) >= 2);
}
