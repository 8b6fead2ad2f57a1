//! For tests: a whole server without a socket, over a model that says what it is told to.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use loquat_chat::Chat;
use loquat_engine::{Engine, EngineOptions, SamplingParams};
use loquat_grammar::Grammars;
use loquat_testkit::fake_session::{FakeOptions, FakeSession};
use loquat_testkit::goldens;
use loquat_text::{ChatTemplate, Special, Tokenizer};
use serde_json::Value;
use tower::ServiceExt;

use crate::app::App;
use crate::config::{Config, Model};
use crate::models::{ModelInfo, OpenFailure, Opened, Opener, Planned};
use crate::router::router;

/// The model's name in tests.
pub const MODEL: &str = "tiny";

const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
    {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
    {% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>\
    {% endfor %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}\
    {% endif %}";

/// One token a byte, and few special ones.
pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_huggingface(&goldens::family("llama")).expect("the golden tokenizer")
}

/// Opens a fake model that answers every conversation with the same words, then ends its turn.
/// It thinks between `<think>` and `</think>`, and calls tools between `<tool_call>` and
/// `</tool_call>`.
pub struct Scripted {
    pub reply: String,
    /// How long each token takes.
    pub delay: Duration,
    pub context: usize,
}

impl Scripted {
    pub fn new(reply: &str) -> Self {
        Self {
            reply: reply.to_owned(),
            delay: Duration::ZERO,
            context: 4096,
        }
    }

    fn info(&self) -> ModelInfo {
        ModelInfo {
            family: "llama".to_owned(),
            format: "safetensors".to_owned(),
            quantization: "bf16".to_owned(),
            parameters: 1000,
            size_bytes: 2000,
            modified: 1_700_000_000,
            backend: "fake".to_owned(),
            device: "fake".to_owned(),
            context: self.context,
            has_template: true,
            tools: true,
            thinking: true,
            embeddings: false,
            template: Some(TEMPLATE.to_owned()),
        }
    }
}

impl Opener for Scripted {
    fn plan(&self, _model: &Model) -> Result<Planned, OpenFailure> {
        Ok(Planned {
            info: self.info(),
            resident_bytes: 1000,
        })
    }

    fn open(&self, model: &Model) -> Result<Opened, OpenFailure> {
        let tokenizer = tokenizer();
        let plain = |text: &str, special| tokenizer.encode(text, special).expect("tokens");
        let mut script = plain(&self.reply, Special::PLAIN);
        script.extend(tokenizer.eos_ids().first());
        let session = FakeSession::new(FakeOptions {
            vocab_size: tokenizer.vocab_size(),
            max_context: self.context,
            script,
            opening: plain("<|im_start|>assistant\n", Special::RENDERED),
            delay: self.delay,
            ..FakeOptions::default()
        });
        let template = ChatTemplate::new(TEMPLATE).expect("a template");
        let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
        let options = EngineOptions {
            max_queue: model.max_queue,
            ..EngineOptions::default()
        };
        let engine = Engine::start(Box::new(session), Some(tokenizer.clone()), options);
        Ok(Opened {
            engine: engine.map_err(|error| OpenFailure(error.to_string()))?,
            chat: Chat::new(tokenizer, Some(template), grammars),
            sampling: SamplingParams::greedy(),
            info: self.info(),
            resident_bytes: 1000,
        })
    }
}

/// A server to call.
pub struct Harness {
    pub app: Arc<App>,
    router: Router,
}

/// What came back.
pub struct Reply {
    pub response: Response<()>,
    pub body: Bytes,
}

impl Harness {
    /// Serves a model that says this.
    pub fn saying(reply: &str) -> Self {
        Self::with(Scripted::new(reply), Self::config())
    }

    pub fn config() -> Config {
        Config {
            models: vec![Model::new(MODEL, "nowhere")],
            ..Config::default()
        }
    }

    pub fn with(model: Scripted, config: Config) -> Self {
        let app = App::new(config, Arc::new(model));
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

    /// The frames of a stream of events, each with its name, without what ends the stream.
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

    /// The lines of a stream of lines.
    pub fn lines(&self) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }
}

#[tokio::test]
async fn a_path_that_is_nobodys_is_refused_in_the_dialect_of_its_place() {
    let server = Harness::saying("hello");
    let reply = server.get("/v1/nothing").await;
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    let reply = server.get("/v1/messages/nothing").await;
    assert_eq!(reply.json()["error"]["type"], "not_found_error");
    let reply = server.get("/api/nothing").await;
    assert!(reply.json()["error"].is_string());
}
