//! Images over real sockets, in every dialect, on a tiny checkpoint of `crates/testkit/goldens-vision`.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use loquat::{BackendChoice, ModelOptions};
use loquat_server::config::ModelConfig;
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned};
use loquat_testkit::goldens;
use loquat_text::ChatTemplate;
use serde_json::{Value, json};

use crate::http_client::Response;
use crate::scripted::{MODEL, Scripted};
use crate::test_server::{TestServer, config};

/// The checkpoint has none. Writes images and videos as Qwen's templates do.
pub const TEMPLATE: &str = "{% for message in messages %}\
    {% if message.content is string %}{{ message.content }}{% else %}\
    {% for part in message.content %}\
    {% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
    {% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
    {% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

const QUESTION: &str = "What is this?";

/// Opens the checkpoint on the CPU.
pub struct TinyVision(pub PathBuf);

impl TinyVision {
    fn info(&self) -> ModelInfo {
        ModelInfo {
            has_template: true,
            images: true,
            ..ModelInfo::default()
        }
    }
}

impl Opener for TinyVision {
    fn plan(&self, _model: &ModelConfig) -> Result<Planned, OpenFailure> {
        Ok(Planned {
            info: self.info(),
            resident_bytes: 1000,
        })
    }

    fn open(&self, _model: &ModelConfig) -> Result<Opened, OpenFailure> {
        let options = ModelOptions {
            backend: BackendChoice::CPU,
            template: Some(ChatTemplate::new(TEMPLATE).expect("a template")),
            ..ModelOptions::default()
        };
        let folder = self.0.to_str().expect("a path");
        let model = options.load(folder).map_err(OpenFailure::new)?;
        assert!(model.inputs().images);
        Ok(Opened {
            model,
            info: self.info(),
            resident_bytes: 1000,
        })
    }
}

pub async fn start() -> (TestServer, PathBuf) {
    let folder = goldens::vision();
    let server = TestServer::with(TinyVision(folder.join("qwen3_vl")), config()).await;
    (server, folder.join("images"))
}

pub fn base64(images: &Path, name: &str) -> String {
    STANDARD.encode(std::fs::read(images.join(name)).expect("an image"))
}

pub async fn post(server: &TestServer, path: &str, body: &Value) -> Response {
    let mut client = server.connect().await;
    client.post(path, body).await;
    client.response().await
}

pub async fn ask(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = post(server, path, body).await;
    assert_eq!(response.status, 200, "{path}: {response:?}");
    response.json()
}

pub fn openai(url: &str) -> Value {
    let content = json!([
        { "type": "image_url", "image_url": { "url": url, "detail": "auto" } },
        { "type": "text", "text": QUESTION },
    ]);
    json!({
        "model": MODEL, "max_tokens": 16, "temperature": 0,
        "messages": [{ "role": "user", "content": content }],
    })
}

/// A request for each dialect: path, body, and the pointers to its text and prompt tokens.
pub fn requests(data: &str) -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let url = format!("data:image/png;base64,{data}");
    let options = json!({ "temperature": 0, "num_predict": 16 });
    vec![
        (
            "/v1/chat/completions",
            openai(&url),
            "/choices/0/message/content",
            "/usage/prompt_tokens",
        ),
        (
            "/v1/responses",
            json!({
                "model": MODEL, "max_output_tokens": 16, "temperature": 0,
                "input": [{ "role": "user", "content": [
                    { "type": "input_image", "image_url": url, "detail": "high" },
                    { "type": "input_text", "text": QUESTION },
                ] }],
            }),
            "/output/0/content/0/text",
            "/usage/input_tokens",
        ),
        (
            "/v1/messages",
            json!({
                "model": MODEL, "max_tokens": 16, "temperature": 0,
                "messages": [{ "role": "user", "content": [
                    { "type": "image", "source":
                        { "type": "base64", "media_type": "image/png", "data": data } },
                    { "type": "text", "text": QUESTION },
                ] }],
            }),
            "/content/0/text",
            "/usage/input_tokens",
        ),
        (
            "/api/chat",
            json!({
                "model": MODEL, "stream": false, "options": options,
                "messages": [{ "role": "user", "content": QUESTION, "images": [data] }],
            }),
            "/message/content",
            "/prompt_eval_count",
        ),
        (
            "/api/generate",
            json!({
                "model": MODEL, "stream": false, "options": options,
                "prompt": QUESTION, "images": [data],
            }),
            "/response",
            "/prompt_eval_count",
        ),
    ]
}

#[tokio::test]
async fn every_dialect_answers_about_images() {
    let (server, images) = start().await;
    let mut answers = Vec::new();
    for name in ["img1_90x61.png", "frame0_90x61.png"] {
        let data = base64(&images, name);
        let mut texts = Vec::new();
        for (path, body, text, tokens) in requests(&data) {
            let answer = ask(&server, path, &body).await;
            // A reply of special tokens has no text, and in some dialects no part.
            let found = answer.pointer(text).and_then(Value::as_str);
            let found = found.unwrap_or_default();
            let count = |pointer: &str| answer.pointer(pointer).and_then(Value::as_u64);
            // Anthropic counts tokens from the cache apart.
            let cached = count("/usage/cache_read_input_tokens");
            let tokens = count(tokens).map(|tokens| tokens + cached.unwrap_or(0));
            // The question has 13 bytes, and is surrounded by two tokens.
            assert!(tokens.is_some_and(|tokens| tokens > 20), "{path}: {answer}");
            texts.push((path, found.to_owned()));
        }
        let first = texts[0].1.clone();
        for (path, text) in &texts {
            assert_eq!(*text, first, "{path}");
        }
        answers.push(first);
    }
    // Equal sizes have equal placeholders, and the cache is on.
    assert_ne!(answers[0], answers[1]);
}

/// As llama.cpp takes images: where the text has a marker, without a template.
#[tokio::test]
async fn completions_continue_texts_with_images() {
    let (server, images) = start().await;
    for name in ["img1_90x61.png", "frame0_90x61.png"] {
        let data = base64(&images, name);
        let chat = openai(&format!("data:image/png;base64,{data}"));
        let expected = ask(&server, "/v1/chat/completions", &chat).await;
        let prompt = |text: String| json!({ "prompt_string": text, "multimodal_data": [data] });
        let body = json!({
            "model": MODEL, "n_predict": 16, "temperature": 0,
            "prompt": prompt(format!("<__media__>{QUESTION}")),
        });
        let answer = ask(&server, "/completion", &body).await;
        let content = &expected["choices"][0]["message"]["content"];
        assert_eq!(answer["content"], content.as_str().unwrap_or_default());
        let tokens = &expected["usage"]["prompt_tokens"];
        assert_eq!(answer["tokens_evaluated"], *tokens);
    }
    let data = base64(&images, "img0_48x48.png");
    for (text, data, field, problem) in [
        (
            "<__media__><__media__>",
            data.as_str(),
            "prompt.multimodal_data",
            "2 times",
        ),
        ("none", &data, "prompt.multimodal_data", "0 times"),
        (
            "<__media__>",
            "!",
            "prompt.multimodal_data[0]",
            "is not base64",
        ),
        (
            "<__media__>",
            &data[..data.len() / 8 * 4],
            "prompt.multimodal_data[0]",
            "the PNG file",
        ),
    ] {
        let prompt = json!({ "prompt_string": text, "multimodal_data": [data] });
        let body = json!({ "model": MODEL, "prompt": prompt });
        let response = post(&server, "/completion", &body).await;
        assert_eq!(response.status, 400, "{text}: {response:?}");
        let error = &response.json()["error"];
        assert_eq!(error["param"], field, "{error}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(problem), "{error}");
    }
}

#[tokio::test]
async fn count_tokens_counts_images() {
    let (server, images) = start().await;
    let data = base64(&images, "img1_90x61.png");
    let (path, mut body, ..) = requests(&data).swap_remove(2);
    let answer = ask(&server, path, &body).await;
    let fields = body.as_object_mut().expect("an object");
    fields.remove("max_tokens");
    fields.remove("temperature");
    let counted = ask(&server, "/v1/messages/count_tokens", &body).await;
    assert_eq!(counted["input_tokens"], answer["usage"]["input_tokens"]);
}

#[tokio::test]
async fn models_say_what_they_read() {
    let (server, _) = start().await;
    let text_only = TestServer::start(Scripted::new("hi")).await;
    for (server, inputs, vision) in [
        (&server, json!(["text", "image"]), true),
        (&text_only, json!(["text"]), false),
    ] {
        let mut client = server.connect().await;
        client.get("/v1/models").await;
        let models = client.response().await.json();
        assert_eq!(models["data"][0]["input_modalities"], inputs);
        assert_eq!(models["data"][0]["capabilities"]["vision"], vision);
        let shown = ask(server, "/api/show", &json!({ "model": MODEL })).await;
        let able = shown["capabilities"].as_array().expect("a list");
        assert_eq!(able.contains(&json!("vision")), vision);
    }
}

#[tokio::test]
async fn text_only_model_refuses_images_by_field() {
    let server = TestServer::start(Scripted::new("hi")).await;
    // A PNG of one pixel would do; the model refuses before it is decoded.
    let data = STANDARD.encode(b"\x89PNG\r\n\x1a\n");
    let fields = [
        "messages[0].content[0].image_url",
        "input_image.image_url",
        "messages[0].content[0].source.data",
        "messages[0].images[0]",
        "images[0]",
    ];
    for ((path, body, ..), field) in requests(&data).into_iter().zip(fields) {
        let response = post(&server, path, &body).await;
        assert_eq!(response.status, 400, "{path}: {response:?}");
        assert!(response.body.contains(field), "{path}: {response:?}");
        assert!(response.body.contains("reads text only"), "{response:?}");
    }
}

#[tokio::test]
async fn unusable_images_are_refused_by_field() {
    let (server, images) = start().await;
    let data = base64(&images, "img0_48x48.png");
    let half = &data[..data.len() / 8 * 4];
    for (url, expected) in [
        ("https://example.com/cat.png".to_owned(), "fetches nothing"),
        (
            format!("data:image/png;base64,{half}"),
            "image_url`: the PNG file",
        ),
        (format!("data:image/webp;base64,{data}"), "not WebP but PNG"),
    ] {
        let response = post(&server, "/v1/chat/completions", &openai(&url)).await;
        assert_eq!(response.status, 400, "{response:?}");
        let error = &response.json()["error"];
        assert_eq!(error["param"], "messages[0].content[0].image_url");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| text.contains(expected)),
            "{error}"
        );
    }
    let audio = json!([{ "type": "input_audio", "input_audio": { "data": "", "format": "wav" } }]);
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": audio }] });
    let response = post(&server, "/v1/chat/completions", &body).await;
    assert_eq!(response.status, 400, "{response:?}");
    assert_eq!(
        response.json()["error"]["param"],
        "messages[0].content[0].input_audio"
    );
}
