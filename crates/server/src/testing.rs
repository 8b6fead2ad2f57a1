//! For tests: a whole server without a socket, with a scripted model.

mod scripted;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::app::App;
use crate::config::{Config, ModelConfig};
use crate::models::Opener;
use crate::router::router;

pub use scripted::{MODEL, Scripted, Stuck, TEMPLATE, chat, hold_steps, tokenizer};

/// A server under test.
pub struct Harness {
    pub app: Arc<App>,
    router: Router,
}

/// A response with its body.
pub struct Reply {
    pub response: Response<()>,
    pub body: Bytes,
}

impl Harness {
    /// Serves a model with this reply.
    pub fn saying(reply: &str) -> Self {
        Self::with(Scripted::new(reply), Self::config())
    }

    pub fn config() -> Config {
        Config {
            models: vec![ModelConfig::new(MODEL, "nowhere")],
            ..Config::default()
        }
    }

    pub fn with(model: Scripted, config: Config) -> Self {
        Self::serving(model, config)
    }

    pub fn serving(models: impl Opener, config: Config) -> Self {
        let app = App::new(config, Arc::new(models));
        let router = router(&app);
        Self { app, router }
    }

    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await;
        let (parts, body) = response.expect("infallible").into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Reply {
            response: Response::from_parts(parts, ()),
            body,
        }
    }

    pub async fn get(&self, path: &str) -> Reply {
        let request = Request::get(path).body(Body::empty());
        self.send(request.expect("a request")).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()));
        self.send(request.expect("a request")).await
    }
}

impl Reply {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The events of a stream with their names, without the final `[DONE]`.
    pub fn events(&self) -> Vec<(Option<String>, Value)> {
        let text = self.text();
        let frames = text.split("\n\n").filter(|frame| !frame.is_empty());
        let frames = frames.filter(|frame| !frame.starts_with(':') && *frame != "data: [DONE]");
        frames
            .map(|frame| {
                let field = |name: &str| {
                    frame
                        .lines()
                        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                };
                let data = field("data").expect("data");
                let data = serde_json::from_str(data).expect("JSON");
                (field("event").map(str::to_owned), data)
            })
            .collect()
    }

    /// The lines of a stream.
    pub fn lines(&self) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }
}

#[tokio::test]
async fn unknown_paths_use_their_dialect() {
    let server = Harness::saying("hello");
    let reply = server.get("/v1/nothing").await;
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    let reply = server.get("/v1/messages/nothing").await;
    assert_eq!(reply.json()["error"]["type"], "not_found_error");
    let reply = server.get("/api/nothing").await;
    assert!(reply.json()["error"].is_string());
}
