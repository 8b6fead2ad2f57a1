//! The field `lora` of llama.cpp's and OpenAI's completions, metrics of adapters under load, adapters
//! that a reload changes, and adapters of hub repositories.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use loquat_server::config::{AdapterConfig, Config, ModelConfig};
use loquat_server::{OpenFailure, Opened, Opener, Planned, Reloading, Server};
use loquat_testkit::goldens;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Duration, sleep};

use crate::adapters::{
    Adaptable, adapted, base, code, completion, configured, expected, get, post, tokens,
};
use crate::http_client::HttpClient;
use crate::scripted::MODEL;
use crate::test_server::TestServer;

fn folder(name: &str) -> PathBuf {
    goldens::fixtures().join(format!("goldens-lora/llama__{name}"))
}

async fn number(server: &TestServer, name: &str) -> u64 {
    let listed = get(server, "/lora-adapters").await.json();
    let mut all = listed.as_array().expect("a list").iter();
    let own = all.find(|own| own["path"] == name);
    own.expect("it is listed")["id"].as_u64().expect("a number")
}

/// The base with tokens that fill in the middle.
fn base_with_infill() -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(base()).expect("the base") {
        let path = entry.expect("a file").path();
        let name = path.file_name().expect("a name").to_owned();
        std::fs::copy(&path, copy.path().join(name)).expect("a copy");
    }
    let path = copy.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).expect("a tokenizer");
    let mut tokenizer: Value = serde_json::from_str(&text).expect("JSON");
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    for name in ["prefix", "suffix", "middle"] {
        let id = 256 + added.len();
        added.push(json!({
            "id": id, "content": format!("<|fim_{name}|>"), "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }));
    }
    std::fs::write(path, tokenizer.to_string()).expect("written");
    copy
}

#[tokio::test]
async fn completions_and_infill_read_lora() {
    let copy = base_with_infill();
    let opener = Adaptable {
        base: copy.path().to_owned(),
        ..Adaptable::default()
    };
    let server = TestServer::with(opener, configured()).await;
    let (qv, all) = (number(&server, "qv").await, number(&server, "all").await);
    let infill = json!({
        "input_prefix": "a song", "input_suffix": "the end", "n_predict": 8, "temperature": 0,
    });
    let continued = json!({ "prompt": "sing", "max_tokens": 8, "temperature": 0 });
    for (path, body, text) in [
        ("/infill", infill, "/content"),
        ("/v1/completions", continued, "/choices/0/text"),
    ] {
        let answer = async |field: &str, value: Value| {
            let mut body = body.clone();
            body[field] = value;
            let answer = post(&server, path, &body).await;
            assert_eq!(answer.status, 200, "{path} {answer:?}");
            let text = answer
                .json()
                .pointer(text)
                .and_then(Value::as_str)
                .map(str::to_owned);
            text.expect("a text")
        };
        let plain = answer("model", json!(MODEL)).await;
        let named = answer("model", json!("qv")).await;
        assert_ne!(plain, named, "{path}");
        let one = json!({ "id": qv, "scale": 1 });
        assert_eq!(answer("lora", json!([one])).await, named, "{path}");
        assert_eq!(answer("lora", json!([])).await, plain, "{path}");
        let both = json!([one, { "id": all, "scale": 1 }]);
        assert_ne!(answer("lora", both).await, named, "{path}");
        let mut unknown = body.clone();
        unknown["lora"] = json!([{ "id": 99, "scale": 1 }]);
        let refused = post(&server, path, &unknown).await;
        assert_eq!(refused.status, 400, "{path} {refused:?}");
        assert_eq!(refused.json()["error"]["param"], "lora[0].id", "{path}");
    }
}

/// A stream that cannot end, since its client reads no more.
async fn endless(server: &TestServer, model: &str) -> HttpClient {
    let body = json!({
        "model": model, "prompt": "a", "n_predict": -1, "ignore_eos": true, "stream": true,
    });
    let mut client = server.connect().await;
    client.post("/completion", &body).await;
    client.begins_to_stream().await;
    client
}

/// The labels of `vllm:lora_requests_info`.
async fn lora_labels(server: &TestServer) -> String {
    let metrics = get(server, "/metrics").await.body;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("vllm:lora_requests_info{"));
    let line = line.unwrap_or_else(|| panic!("{metrics}"));
    let labels = line
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    labels.expect("labels").0.to_owned()
}

#[tokio::test]
async fn metrics_name_adapters_in_use_and_awaited() {
    let config = adapted(|model| {
        model.max_adapters = 1;
        for name in ["qv", "all"] {
            let source = folder(name).to_str().expect("a path").to_owned();
            model
                .adapters
                .insert(name.to_owned(), AdapterConfig::new(source));
        }
    });
    let server = Arc::new(TestServer::with(Adaptable::default(), config).await);
    let running = endless(&server, "qv").await;
    let labels = lora_labels(&server).await;
    for label in [
        "max_lora=\"1\"",
        "running_lora_adapters=\"qv\"",
        "waiting_lora_adapters=\"\"",
    ] {
        assert!(labels.contains(label), "{labels}");
    }
    // There is room for one: the other waits until the stream ends.
    let waiting = {
        let server = Arc::clone(&server);
        tokio::spawn(async move { post(&server, "/completion", &completion("all")).await })
    };
    loop {
        let labels = lora_labels(&server).await;
        if labels.contains("waiting_lora_adapters=\"all\"") {
            assert!(labels.contains("running_lora_adapters=\"qv\""), "{labels}");
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    drop(running);
    let answer = waiting.await.expect("it answers");
    assert_eq!(tokens(&answer), expected(Some(&folder("all"))));
    server.is_healthy_and_idle().await;
    let labels = lora_labels(&server).await;
    let idle = "running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
    assert!(labels.contains(idle), "{labels}");
}

#[tokio::test]
async fn reload_changes_adapters_without_reopening_model() {
    let source = |name: &str| AdapterConfig::new(folder(name).to_str().expect("a path"));
    let with = |adapters: &[(&str, AdapterConfig)]| {
        adapted(|model| {
            let own = adapters.iter().cloned();
            model.adapters = own
                .map(|(name, config)| (name.to_owned(), config))
                .collect();
        })
    };
    let before = with(&[("poet", source("qv")), ("sql", source("all"))]);
    let next = Arc::new(Mutex::new(before.clone()));
    let read = Arc::clone(&next);
    let opened = CountedOpener::default();
    let openings = Arc::clone(&opened.openings);
    let server = Server::bind(before, Arc::new(opened))
        .await
        .expect("a port");
    let server = TestServer::serving(server.reload_with(Reloading {
        read: Box::new(move || Ok(read.lock().expect("no panic").clone())),
        log_level: Box::new(|_| Ok(())),
    }));
    let reload = async |config: Config| {
        *next.lock().expect("no panic") = config;
        let reloaded = post(&server, "/admin/v1/config/reload", &json!({})).await;
        assert_eq!(reloaded.status, 200, "{reloaded:?}");
    };
    let ask = async |name: &str| post(&server, "/completion", &completion(name)).await;
    let answers = |name: &str| expected(Some(&folder(name)));
    assert_eq!(tokens(&ask("poet").await), answers("qv"));
    assert_eq!(tokens(&ask("sql").await), answers("all"));
    // `poet` gets other files while a stream uses its old ones, `sql` goes, `new` comes.
    let streaming = endless(&server, "poet").await;
    reload(with(&[("poet", source("dora")), ("new", source("layers"))])).await;
    assert_eq!(tokens(&ask("poet").await), answers("dora"));
    assert_eq!(tokens(&ask("new").await), answers("layers"));
    assert_eq!(code(&ask("sql").await), (404, "model_not_found".to_owned()));
    assert_eq!(tokens(&ask(MODEL).await), expected(None));
    drop(streaming);
    reload(with(&[("poet", source("qv")), ("sql", source("all"))])).await;
    assert_eq!(tokens(&ask("poet").await), answers("qv"));
    assert_eq!(tokens(&ask("sql").await), answers("all"));
    assert_eq!(
        *openings.lock().expect("no panic"),
        1,
        "the model stays loaded"
    );
    server.is_healthy_and_idle().await;
}

/// Counts how often the model is opened, and knows one adapter of a hub.
#[derive(Default)]
struct CountedOpener {
    inner: Adaptable,
    openings: Arc<Mutex<usize>>,
}

impl Opener for CountedOpener {
    fn plan(&self, model: &ModelConfig) -> Result<Planned, OpenFailure> {
        self.inner.plan(model)
    }

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure> {
        *self.openings.lock().expect("no panic") += 1;
        self.inner.open(model)
    }

    fn locate_adapter(&self, source: &str) -> Result<PathBuf, OpenFailure> {
        match source {
            "poets/qv@v1" => Ok(folder("qv")),
            other => Ok(Path::new(other).to_owned()),
        }
    }
}

#[tokio::test]
async fn operators_load_adapters_from_allowed_repositories() {
    let config = adapted(|model| model.adapter_repos = vec!["poets/*".to_owned()]);
    let server = TestServer::with(CountedOpener::default(), config).await;
    let load = |path: &str| json!({ "lora_name": "poet", "lora_path": path });
    for path in [
        "painters/qv",
        "poets",
        "../poets/qv",
        "/poets/qv",
        "poets/../qv",
        "poets/.qv",
    ] {
        let refused = post(&server, "/v1/load_lora_adapter", &load(path)).await;
        assert_eq!(code(&refused), (400, String::new()), "{path} {refused:?}");
        let error = refused.json()["error"].clone();
        assert_eq!(error["param"], "lora_path", "{path}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("`adapter_repos`: poets/*"), "{message}");
    }
    let loaded = post(&server, "/v1/load_lora_adapter", &load("poets/qv@v1")).await;
    assert_eq!(loaded.status, 200, "{loaded:?}");
    let answer = post(&server, "/completion", &completion("poet")).await;
    assert_eq!(tokens(&answer), expected(Some(&folder("qv"))));
}
