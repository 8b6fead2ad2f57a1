//! Adapters over real sockets, on the tiny checkpoint of `crates/testkit/goldens-lora`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loquat::{AdapterFile, BackendChoice, ModelOptions};
use loquat_engine::{GenerateRequest, SamplingParams};
use loquat_server::config::{AdapterConfig, Config, Key, KeyHash, ModelConfig, Scope};
use loquat_server::{ModelInfo, OpenFailure, Opened, Opener, Planned};
use loquat_session::AdapterLimits;
use loquat_testkit::goldens;
use loquat_text::ChatTemplate;
use serde_json::{Value, json};

use crate::http_client::Response;
use crate::scripted::MODEL;
use crate::test_server::{KEY, TestServer, config};

const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";
const TOKENS: usize = 8;
/// Loaded at once; there are more.
const MOST: usize = 3;

/// The adapters of the base `llama`.
pub fn adapters() -> Vec<(String, PathBuf)> {
    let all = goldens::adapters().expect("goldens").into_iter();
    let own = all.filter_map(|folder| {
        let name = folder.file_name()?.to_str()?.strip_prefix("llama__")?;
        Some((name.to_owned(), folder.clone()))
    });
    own.collect()
}

pub fn base() -> PathBuf {
    goldens::fixtures().join("goldens-lora/base/llama")
}

fn prompt() -> Vec<u32> {
    let golden = goldens::Arrays::open(&adapters()[0].1).expect("a golden");
    golden.tokens("prompt_b")
}

fn options(adapters: Vec<AdapterFile>) -> ModelOptions {
    let mut options = ModelOptions {
        backend: BackendChoice::CPU,
        template: Some(ChatTemplate::new(TEMPLATE).expect("a template")),
        adapters,
        ..ModelOptions::default()
    };
    options.session.threads = Some(1);
    options
}

/// What the base continues the prompt with, or an adapter, by the library alone.
pub fn expected(adapter: Option<&Path>) -> Vec<u32> {
    let files = adapter.map(|path| AdapterFile {
        path: path.to_owned(),
        scale: 1.0,
    });
    let options = options(files.into_iter().collect());
    let model = options.load(base().to_str().expect("a path"));
    let model = model.expect("it loads");
    let generation = model.engine().submit(GenerateRequest {
        prompt: prompt(),
        max_tokens: TOKENS,
        sampling: SamplingParams::greedy(),
        adapters: model.adapters().to_vec(),
        ..GenerateRequest::default()
    });
    let completion = generation.expect("accepted").collect_blocking();
    completion.expect("it ends").ids()
}

/// The token that the golden's logits put first.
fn golden_first(folder: &Path) -> u32 {
    let golden = goldens::Arrays::open(folder).expect("a golden");
    let logits = golden.floats("logits_b");
    let last = &logits[logits.len() - logits.len() / prompt().len()..];
    let best = (0..).zip(last).max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.expect("a vocabulary").0
}

/// Opens a copy of the base with room for the configured adapters.
pub struct Adaptable {
    pub base: PathBuf,
    pub opened: Arc<Mutex<Option<loquat::Model>>>,
}

impl Default for Adaptable {
    fn default() -> Self {
        Self {
            base: base(),
            opened: Arc::default(),
        }
    }
}

impl Opener for Adaptable {
    fn plan(&self, _model: &ModelConfig) -> Result<Planned, OpenFailure> {
        Ok(Planned {
            info: ModelInfo::default(),
            resident_bytes: 1000,
        })
    }

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure> {
        let mut options = options(Vec::new());
        options.session.adapters = AdapterLimits {
            count: model.max_adapters,
            bytes: model.adapter_memory,
            rank: model.max_adapter_rank,
        };
        let loaded = options.load(self.base.to_str().expect("a path"));
        let loaded = loaded.map_err(OpenFailure::new)?;
        *self.opened.lock().expect("no panic") = Some(loaded.clone());
        Ok(Opened {
            model: loaded,
            info: ModelInfo::default(),
            resident_bytes: 1000,
        })
    }
}

pub fn adapted(change: impl FnOnce(&mut ModelConfig)) -> Config {
    let mut config = config();
    config.keys = vec![Key {
        scopes: vec![
            Scope::Inference,
            Scope::Metrics,
            Scope::Manage,
            Scope::Admin,
        ],
        ..Key::new("raw", KeyHash::digest(KEY))
    }];
    let model = &mut config.models[0];
    model.max_adapters = MOST;
    model.adapter_memory = 64 << 20;
    change(model);
    config
}

/// With all adapters in the configuration.
pub fn configured() -> Config {
    adapted(|model| {
        for (name, path) in adapters() {
            let source = path.to_str().expect("a path");
            model.adapters.insert(name, AdapterConfig::new(source));
        }
    })
}

pub async fn post(server: &TestServer, path: &str, body: &Value) -> Response {
    let mut client = server.connect().await;
    client.post(path, body).await;
    client.response().await
}

pub async fn get(server: &TestServer, path: &str) -> Response {
    let mut client = server.connect().await;
    client.get(path).await;
    client.response().await
}

/// Asks for the continuation as tokens.
pub fn completion(model: &str) -> Value {
    json!({
        "model": model, "prompt": prompt(), "n_predict": TOKENS, "temperature": 0,
        "return_tokens": true,
    })
}

pub fn tokens(response: &Response) -> Vec<u32> {
    assert_eq!(response.status, 200, "{response:?}");
    let tokens = response.json()["tokens"].clone();
    serde_json::from_value(tokens).expect("tokens")
}

pub fn code(response: &Response) -> (u16, String) {
    let code = response.json()["error"]["code"].clone();
    (
        response.status,
        code.as_str().unwrap_or_default().to_owned(),
    )
}

#[tokio::test]
async fn requests_choose_adapters_by_name() {
    let server = TestServer::with(Adaptable::default(), configured()).await;
    let plain = expected(None);
    assert_eq!(
        tokens(&post(&server, "/completion", &completion(MODEL)).await),
        plain
    );
    let mut differing = 0;
    for (name, folder) in adapters() {
        let expected = expected(Some(&folder));
        assert_eq!(expected[0], golden_first(&folder), "{name}");
        differing += usize::from(expected != plain);
        for model in [name.clone(), format!("{MODEL}:{name}")] {
            let answer = post(&server, "/completion", &completion(&model)).await;
            assert_eq!(tokens(&answer), expected, "{model}");
            assert_eq!(answer.json()["model"], name);
        }
    }
    assert!(differing > 5, "only {differing} adapters change the answer");
    // None of their prefixes serves the base.
    let again = post(&server, "/completion", &completion(MODEL)).await;
    assert_eq!(tokens(&again), plain);
    assert!(
        again.json()["tokens_cached"].as_u64() > Some(0),
        "but its own does"
    );
    let metrics = get(&server, "/metrics").await.body;
    assert!(
        metrics.contains("max_lora=\"3\",running_lora_adapters=\"\",waiting_lora_adapters=\"\""),
        "{metrics}"
    );
}

#[tokio::test]
async fn every_dialect_knows_adapters() {
    let server = TestServer::with(Adaptable::default(), configured()).await;
    let messages = json!([{ "role": "user", "content": "sing" }]);
    let mut answers = Vec::new();
    for model in [MODEL, "qv"] {
        let asks = [
            (
                "/v1/chat/completions",
                json!({ "model": model, "messages": messages, "max_tokens": 8, "temperature": 0 }),
                "/choices/0/message/content",
            ),
            (
                "/v1/completions",
                json!({ "model": model, "prompt": "sing", "max_tokens": 8, "temperature": 0 }),
                "/choices/0/text",
            ),
            (
                "/v1/messages",
                json!({ "model": model, "messages": messages, "max_tokens": 8, "temperature": 0 }),
                "/content/0/text",
            ),
            (
                "/v1/responses",
                json!({ "model": model, "input": "sing", "max_output_tokens": 8, "temperature": 0 }),
                "/output/0/content/0/text",
            ),
            (
                "/api/generate",
                json!({ "model": model, "prompt": "sing", "stream": false, "raw": true,
                    "options": { "num_predict": 8, "temperature": 0 } }),
                "/response",
            ),
            (
                "/api/chat",
                json!({ "model": format!("{model}:latest"), "messages": messages, "stream": false,
                    "options": { "num_predict": 8, "temperature": 0 } }),
                "/message/content",
            ),
        ];
        let mut texts = Vec::new();
        for (path, body, text) in asks {
            let answer = post(&server, path, &body).await;
            assert_eq!(answer.status, 200, "{path} {answer:?}");
            let answer = answer.json();
            let text = answer.pointer(text).and_then(Value::as_str);
            texts.push(text.unwrap_or_else(|| panic!("{path} {answer}")).to_owned());
            if path.starts_with("/v1/") {
                assert_eq!(answer["model"], model, "{path}");
            }
        }
        answers.push(texts);
    }
    let same = answers[0].iter().zip(&answers[1]).filter(|(a, b)| a == b);
    assert_eq!(same.count(), 0, "{answers:?}");
}

#[tokio::test]
async fn adapters_are_listed_and_unknown_ones_refused() {
    let server = TestServer::with(Adaptable::default(), configured()).await;
    let list = get(&server, "/v1/models").await.json();
    let cards = list["data"].as_array().expect("a list");
    assert_eq!(cards.len(), 1 + adapters().len());
    assert_eq!(cards[0]["parent"], Value::Null);
    for path in ["/v1/models/qv", "/v1/models/tiny:qv"] {
        let card = get(&server, path).await.json();
        assert_eq!(card["id"], "qv");
        assert_eq!(card["parent"], MODEL);
        assert_eq!(card["aliases"], json!(["tiny:qv"]));
        assert!(cards.contains(&card), "{card}");
    }
    let tags = get(&server, "/api/tags").await.json();
    let tags = tags["models"].as_array().expect("a list");
    let qv = tags.iter().find(|tag| tag["name"] == "qv").expect("it");
    assert_eq!(qv["details"]["parent_model"], MODEL);
    let shown = post(&server, "/api/show", &json!({ "model": "qv" })).await;
    assert_eq!(shown.json()["details"]["parent_model"], MODEL);
    // The only model does not serve names that may be an adapter's.
    for (model, expected) in [
        ("nobody", "model_not_found"),
        ("tiny:nobody", "adapter_not_found"),
    ] {
        let body = json!({ "model": model, "prompt": "a" });
        let refused = post(&server, "/v1/completions", &body).await;
        assert_eq!(code(&refused), (404, expected.to_owned()));
        assert_eq!(refused.json()["error"]["param"], "model");
    }
    let refused = get(&server, "/v1/models/tiny:nobody").await.json();
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("tiny:qv, tiny:ranks"), "{message}");
}

#[tokio::test]
async fn requests_list_adapters_by_number() {
    let server = TestServer::with(Adaptable::default(), configured()).await;
    let listed = get(&server, "/lora-adapters").await.json();
    let number = |name: &str| {
        let all = listed.as_array().expect("a list");
        let own = all.iter().find(|own| own["path"] == name);
        own.expect("it is listed")["id"].as_u64().expect("a number")
    };
    assert_eq!(listed[0]["scale"], 0.0);
    let folder = |name: &str| goldens::fixtures().join(format!("goldens-lora/llama__{name}"));
    let (plain, qv) = (expected(None), expected(Some(&folder("qv"))));
    let with = |lora: Value| {
        let mut body = completion(MODEL);
        body["lora"] = lora;
        body
    };
    let qv_number = number("qv");
    for (lora, expected) in [
        (json!([{ "id": qv_number, "scale": 1.0 }]), &qv),
        (json!([{ "id": qv_number, "scale": 0 }]), &plain),
        (json!([]), &plain),
    ] {
        let answer = post(&server, "/completion", &with(lora.clone())).await;
        assert_eq!(&tokens(&answer), expected, "{lora}");
    }
    let chat = json!({
        "messages": [{ "role": "user", "content": "sing" }], "max_tokens": 8, "temperature": 0,
        "lora": [{ "id": qv_number, "scale": 1 }, { "id": number("all"), "scale": -0.5 }],
    });
    let answer = post(&server, "/v1/chat/completions", &chat).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut named = with(json!([]));
    named["model"] = json!("qv");
    for (body, param) in [
        (with(json!([{ "id": 99, "scale": 1 }])), "lora[0].id"),
        (
            with(json!([{ "id": 0, "scale": 1 }, { "id": 0, "scale": 1 }])),
            "lora[1].id",
        ),
        (with(json!([{ "id": 0, "scale": 1e39 }])), "lora[0].scale"),
        (named, "lora"),
    ] {
        let refused = post(&server, "/completion", &body).await;
        assert_eq!(refused.status, 400, "{refused:?}");
        assert_eq!(refused.json()["error"]["param"], param, "{refused:?}");
    }
    // The default of requests that choose none.
    let set = post(
        &server,
        "/lora-adapters",
        &json!([{ "id": qv_number, "scale": 1 }]),
    )
    .await;
    assert_eq!(set.json(), json!({ "success": true }));
    assert_eq!(
        tokens(&post(&server, "/completion", &completion(MODEL)).await),
        qv
    );
    assert_eq!(
        tokens(&post(&server, "/completion", &with(json!([]))).await),
        plain
    );
    post(&server, "/lora-adapters", &json!([])).await;
    assert_eq!(
        tokens(&post(&server, "/completion", &completion(MODEL)).await),
        plain
    );
}

#[tokio::test]
async fn operators_load_adapters_from_allowed_folders() {
    let folder = goldens::fixtures().join("goldens-lora");
    let config = adapted(|model| model.adapter_folders = vec![folder.clone()]);
    let server = TestServer::with(Adaptable::default(), config).await;
    let load = |name: &str, path: &str| json!({ "lora_name": name, "lora_path": path });
    let unknown = post(&server, "/completion", &completion("poet")).await;
    assert_eq!(code(&unknown), (404, "model_not_found".to_owned()));
    let loaded = post(&server, "/v1/load_lora_adapter", &load("poet", "llama__qv")).await;
    assert_eq!(loaded.status, 200, "{loaded:?}");
    assert_eq!(
        loaded.body,
        "Success: LoRA adapter 'poet' added successfully."
    );
    let qv = expected(Some(&folder.join("llama__qv")));
    let answer = post(&server, "/completion", &completion("poet")).await;
    assert_eq!(tokens(&answer), qv);
    let outside = base();
    let outside = outside
        .parent()
        .and_then(Path::parent)
        .and_then(Path::parent);
    let outside = outside.expect("a folder").join("goldens/llama");
    for (body, expected) in [
        // No repository is allowed.
        (load("b", "owner/name"), ""),
        (load("poet", "llama__all"), "adapter_exists"),
        (load("b", "qwen3__all"), "adapter_load_failed"),
        (load("b", outside.to_str().expect("a path")), ""),
        (load("b", "../goldens/llama"), ""),
        (load("a:b", "llama__all"), ""),
    ] {
        let refused = post(&server, "/v1/load_lora_adapter", &body).await;
        assert_eq!(
            code(&refused),
            (400, expected.to_owned()),
            "{body} {refused:?}"
        );
    }
    let mut replace = load("poet", folder.join("llama__dora").to_str().expect("a path"));
    replace["load_inplace"] = json!(true);
    let replaced = post(&server, "/v1/load_lora_adapter", &replace).await;
    assert_eq!(replaced.status, 200, "{replaced:?}");
    let dora = expected(Some(&folder.join("llama__dora")));
    let answer = post(&server, "/completion", &completion("poet")).await;
    assert_eq!(tokens(&answer), dora);
    let unload = json!({ "lora_name": "poet" });
    let unloaded = post(&server, "/v1/unload_lora_adapter", &unload).await;
    assert_eq!(
        unloaded.body,
        "Success: LoRA adapter 'poet' removed successfully."
    );
    let gone = post(&server, "/v1/unload_lora_adapter", &unload).await;
    assert_eq!(code(&gone), (404, "adapter_not_found".to_owned()));
    let gone = post(&server, "/completion", &completion("poet")).await;
    assert_eq!(code(&gone), (404, "model_not_found".to_owned()));
}

#[tokio::test]
async fn adapters_load_only_where_configured_and_by_operators() {
    let body = json!({ "lora_name": "a", "lora_path": "/" });
    let server = TestServer::with(Adaptable::default(), configured()).await;
    let refused = post(&server, "/v1/load_lora_adapter", &body).await;
    assert_eq!(code(&refused), (403, "adapter_loading_disabled".to_owned()));
    let mut config = configured();
    config.keys = vec![Key::new("raw", KeyHash::digest(KEY))];
    let server = TestServer::with(Adaptable::default(), config).await;
    for (path, body) in [
        ("/v1/load_lora_adapter", body.clone()),
        ("/v1/unload_lora_adapter", body),
        ("/lora-adapters", json!([])),
    ] {
        let refused = post(&server, path, &body).await;
        assert_eq!(
            code(&refused),
            (403, "insufficient_scope".to_owned()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn pinned_adapters_stay_loaded() {
    let mut config = configured();
    let model = &mut config.models[0];
    model.adapters.get_mut("norms").expect("it").pinned = true;
    let server = TestServer::with(Adaptable::default(), config).await;
    let loaded = async || {
        let model = get(&server, "/admin/v1/models/tiny").await.json();
        let adapters = model["adapters"].as_array().expect("a list").clone();
        let loaded = adapters.iter().filter(|own| own["loaded"] == true);
        let names = loaded.map(|own| own["name"].as_str().expect("a name").to_owned());
        names.collect::<Vec<_>>()
    };
    post(&server, "/completion", &completion(MODEL)).await;
    assert_eq!(loaded().await, ["norms"]);
    for name in ["qv", "all", "qv", "layers"] {
        tokens(&post(&server, "/completion", &completion(name)).await);
    }
    assert_eq!(
        loaded().await,
        ["layers", "norms", "qv"],
        "the least recently used went"
    );
}

#[tokio::test]
async fn unloading_fails_requests_that_take_too_long() {
    let folder = goldens::fixtures().join("goldens-lora");
    let config = adapted(|model| model.adapter_folders = vec![folder]);
    let server = Arc::new(TestServer::with(Adaptable::default(), config).await);
    let load = json!({ "lora_name": "poet", "lora_path": "llama__qv" });
    assert_eq!(
        post(&server, "/v1/load_lora_adapter", &load).await.status,
        200
    );
    let body = json!({
        "model": "poet", "prompt": "a", "n_predict": -1, "ignore_eos": true, "stream": true,
    });
    // It begins, and its client reads nothing more: it cannot end.
    let mut client = server.connect().await;
    client.post("/completion", &body).await;
    client.begins_to_stream().await;
    let unload = json!({ "lora_name": "poet", "patience": 0 });
    let unloaded = post(&server, "/v1/unload_lora_adapter", &unload).await;
    assert_eq!(unloaded.status, 200, "{unloaded:?}");
    let gone = post(&server, "/completion", &completion("poet")).await;
    assert_eq!(code(&gone).0, 404);
    drop(client);
    server.is_healthy_and_idle().await;
}

/// Resident memory may grow by this much: the heap is shared with other tests.
const GROWTH: u64 = 48 << 20;

/// Loads and unloads adapters while clients use them. `LOQUAT_FULL=1` does so longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_and_unloads_under_traffic() {
    let is_full = std::env::var_os("LOQUAT_FULL").is_some_and(|value| value == "1");
    let rounds = if is_full { 500 } else { 60 };
    let models = Adaptable::default();
    let opened = Arc::clone(&models.opened);
    let config = adapted(|model| {
        model.adapter_folders = vec![goldens::fixtures().join("goldens-lora")];
    });
    let server = Arc::new(TestServer::with(models, config).await);
    let plain = expected(None);
    let expected: Vec<(String, Vec<u32>)> = adapters()
        .into_iter()
        .map(|(name, folder)| (name, expected(Some(&folder))))
        .collect();
    let expected = Arc::new(expected);
    let done = Arc::new(AtomicBool::new(false));
    let (right, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|client: usize| {
            let (server, expected, done) = (server.clone(), expected.clone(), done.clone());
            let (right, refused, plain) = (right.clone(), refused.clone(), plain.clone());
            tokio::spawn(async move {
                let mut turn = client;
                while !done.load(Ordering::Relaxed) {
                    turn += 1;
                    let base = (MODEL.to_owned(), plain.clone());
                    let (name, answer) = match turn % 5 {
                        0 => &base,
                        _ => &expected[(turn * 7 + client) % expected.len()],
                    };
                    let got = post(&server, "/completion", &completion(name)).await;
                    if got.status == 200 {
                        assert_eq!(&tokens(&got), answer, "{name}");
                        right.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert_eq!(got.status, 404, "{name} {got:?}");
                        assert_ne!(name, MODEL);
                        refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
            })
        })
        .collect();
    let mut before = None;
    for round in 0..rounds {
        // Some stay for a while, so that there are more than can be loaded.
        let load = &expected[round % expected.len()].0;
        let body = json!({ "lora_name": load, "lora_path": format!("llama__{load}") });
        let loaded = post(&server, "/v1/load_lora_adapter", &body).await;
        assert_eq!(loaded.status, 200, "{loaded:?}");
        if let Some(oldest) = round.checked_sub(4) {
            let name = &expected[oldest % expected.len()].0;
            // Some requests are failed instead of waited for.
            let patience = if round % 3 == 0 { 0 } else { 60 };
            let body = json!({ "lora_name": name, "patience": patience });
            let unloaded = post(&server, "/v1/unload_lora_adapter", &body).await;
            assert_eq!(unloaded.status, 200, "{unloaded:?}");
        }
        if round == rounds / 4 {
            before = loquat_server::resident_bytes();
        }
    }
    let after = loquat_server::resident_bytes();
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("every answer is right");
    }
    assert!(
        right.load(Ordering::Relaxed) > rounds / 2,
        "{right:?} {refused:?}"
    );
    for round in rounds - 4..rounds {
        let name = &expected[round % expected.len()].0;
        let body = json!({ "lora_name": name });
        let unloaded = post(&server, "/v1/unload_lora_adapter", &body).await;
        assert_eq!(unloaded.status, 200, "{unloaded:?}");
    }
    server.is_healthy_and_idle().await;
    let model = opened.lock().expect("no panic").clone().expect("opened");
    let memory = model.engine().memory();
    assert_eq!((memory.adapters_loaded, memory.adapter_bytes), (0, 0));
    if let (true, Some(before), Some(after)) = (is_full, before, after) {
        assert!(after < before + GROWTH, "{before} bytes, then {after}");
    }
    eprintln!("{rounds} rounds: {right:?} right answers, {refused:?} refusals");
}

#[tokio::test]
async fn lora_scales_must_be_a_list() {
    let server = TestServer::with(Adaptable::default(), configured()).await;
    let refused = post(&server, "/lora-adapters", &json!({})).await;
    assert_eq!(refused.status, 400, "{refused:?}");
}
