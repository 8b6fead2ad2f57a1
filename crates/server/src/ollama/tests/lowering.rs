use std::time::Duration;

use loquat_chat::{Effort, Message, Role};
use loquat_engine::SamplingParams;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::field::FieldPath;
use crate::models::Lease;
use crate::ollama::message::{self, OllamaMessage};
use crate::ollama::options::Options;
use crate::ollama::think::{OllamaFormat, OllamaThink};
use crate::testing::{Harness, MODEL, Scripted};
use crate::unknown_fields::FieldPolicy;

async fn model() -> Lease {
    let server = Harness::saying("unused");
    server.app.models.lease(MODEL).await.expect("a model")
}

fn options(fields: Value, model: &Lease) -> Result<Options, ApiError> {
    Options::lower(fields.as_object().cloned(), model, FieldPolicy::Lenient)
}

#[tokio::test]
async fn options_use_ollamas_names() {
    let model = model().await;
    let lowered = options(
        json!({
            "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.75,
            "repeat_penalty": 1.5, "repeat_last_n": 64, "presence_penalty": 0.5,
            "frequency_penalty": -0.5, "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.5,
            "seed": 42, "stop": ["a", "b"], "num_predict": 9,
            "tfs_z": null, "num_ctx": 2048, "num_thread": 4, "num_keep": 5,
        }),
        &model,
    );
    let lowered = lowered.expect("all known");
    let expected = SamplingParams {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.25,
        min_p: 0.125,
        typical_p: 0.75,
        repetition_penalty: 1.5,
        penalty_last_n: 64,
        presence_penalty: 0.5,
        frequency_penalty: -0.5,
        mirostat: 2,
        mirostat_tau: 3.0,
        mirostat_eta: 0.5,
        seed: Some(42),
        ..model.sampling().clone()
    };
    assert_eq!(lowered.sampling, expected);
    assert_eq!(lowered.stop, ["a", "b"]);
    assert_eq!(lowered.max_tokens, Some(9));
    let mut ignored = lowered.ignored;
    ignored.sort_unstable();
    let names = ["options.num_ctx", "options.num_keep", "options.num_thread"];
    assert_eq!(ignored, names);
}

#[tokio::test]
async fn lengths_and_seeds_match_ollama() {
    let model = model().await;
    for (predict, expected) in [(-1, usize::MAX), (-2, usize::MAX), (0, usize::MAX), (5, 5)] {
        let lowered = options(json!({ "num_predict": predict }), &model).expect("known");
        assert_eq!(lowered.max_tokens, Some(expected));
    }
    let lowered = options(json!({ "seed": -1, "stop": "x" }), &model).expect("known");
    assert_eq!(lowered.sampling.seed, None);
    assert_eq!(lowered.stop, ["x"]);
    assert_eq!(options(json!({}), &model).expect("known").max_tokens, None);
}

#[tokio::test]
async fn invalid_options_are_named() {
    let model = model().await;
    let cases = [
        (json!({ "num_ctx": 4097 }), "options.num_ctx"),
        (json!({ "num_ctx": 0 }), "options.num_ctx"),
        (json!({ "num_predict": -3 }), "options.num_predict"),
        (json!({ "num_predict": "many" }), "options.num_predict"),
        (json!({ "stop": 5 }), "options.stop"),
        (
            json!({ "speculative.n_max": -1 }),
            "options.speculative.n_max",
        ),
        (json!({ "tfs_z": 0.5 }), "options.tfs_z"),
        (json!({ "tempreature": 0.5 }), "options.tempreature"),
        (json!({ "temperature": "hot" }), "options.temperature"),
    ];
    for (given, param) in cases {
        let error = options(given, &model).expect_err(param);
        assert_eq!(error.param, Some(FieldPath::verbatim(param)));
    }
}

fn messages(given: Value) -> Result<Vec<Message>, ApiError> {
    let read: Vec<OllamaMessage> = serde_json::from_value(given).expect("messages");
    message::lower(read)
}

#[test]
fn results_are_matched_to_calls() {
    let call = |name: &str| json!({ "function": { "name": name, "arguments": { "x": 1 } } });
    let lowered = messages(json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": "", "thinking": "hm",
          "tool_calls": [call("a"), call("b"), call("c"),
              { "id": "mine", "type": "function", "function": { "name": "a", "arguments": {} } }] },
        { "role": "tool", "content": "1", "tool_name": "b" },
        { "role": "tool", "content": "2", "tool_call_id": "mine" },
        { "role": "tool", "content": "3" },
        { "role": "tool", "content": "4", "tool_name": "unknown" },
        { "role": "tool", "content": "5" },
    ]));
    let lowered = lowered.expect("well formed");
    assert_eq!(lowered[1].reasoning.as_deref(), Some("hm"));
    let ids: Vec<_> = lowered[1]
        .tool_calls
        .iter()
        .map(|call| call.id.as_str())
        .collect();
    assert_eq!(ids, ["call00001", "call00002", "call00003", "mine"]);
    assert_eq!(lowered[1].tool_calls[0].arguments, r#"{"x":1}"#);
    let answered: Vec<_> = lowered[2..]
        .iter()
        .map(|m| m.tool_call_id.as_deref())
        .collect();
    let expected = ["call00002", "mine", "call00001", "call00003"].map(Some);
    assert_eq!(answered[..4], expected);
    assert_eq!(answered[4], None);
    assert_eq!(lowered[2].role, Role::Tool);
    assert_eq!(lowered[2].name.as_deref(), Some("b"));
}

#[test]
fn fields_of_other_roles_are_refused() {
    let cases = [
        (
            json!({ "role": "user", "content": "x", "thinking": "hm" }),
            "thinking",
        ),
        (
            json!({ "role": "user", "content": "x", "tool_name": "a" }),
            "tool_name",
        ),
        (
            json!({ "role": "assistant", "content": "x", "tool_call_id": "a" }),
            "tool_call_id",
        ),
        (
            json!({ "role": "user", "content": "x", "images": ["a!"] }),
            "images[0]",
        ),
        (
            json!({ "role": "tool", "content": "x",
                "tool_calls": [{ "function": { "name": "a", "arguments": {} } }] }),
            "tool_calls",
        ),
    ];
    for (given, field) in cases {
        let error = messages(json!([given])).expect_err(field);
        let path = format!("messages[0].{field}");
        assert_eq!(error.param, Some(FieldPath::verbatim(path)));
    }
    let empty = json!([{ "role": "user", "content": "x", "images": [], "thinking": "" }]);
    assert!(messages(empty).is_ok());
}

#[tokio::test]
async fn think_maps_to_effort() {
    let model = model().await;
    let cases = [
        (json!(true), Some(Effort::On)),
        (json!(false), Some(Effort::Off)),
        (json!("low"), Some(Effort::Low)),
        (json!("medium"), Some(Effort::Medium)),
        (json!("high"), Some(Effort::High)),
    ];
    for (given, expected) in cases {
        let think: OllamaThink = serde_json::from_value(given.clone()).expect("known");
        let lowered = think.lower(&model).expect("it thinks");
        assert_eq!(lowered.effort, expected, "{given}");
    }
    for given in [json!("hard"), json!(1)] {
        assert!(serde_json::from_value::<OllamaThink>(given).is_err());
    }
}

#[test]
fn formats_are_json_or_a_schema() {
    use loquat_grammar::GrammarSource;
    let schema = json!({ "type": "object" });
    let cases = [
        (json!(""), Some(None)),
        (json!("json"), Some(Some(GrammarSource::JsonObject))),
        (
            schema.clone(),
            Some(Some(GrammarSource::JsonSchema(schema))),
        ),
        (json!("xml"), None),
        (json!(5), None),
    ];
    for (given, expected) in cases {
        let read: Option<OllamaFormat> = serde_json::from_value(given.clone()).ok();
        assert_eq!(read.map(OllamaFormat::lower), expected, "{given}");
    }
}

#[tokio::test]
async fn last_request_sets_keep_alive() {
    let mut config = Harness::config();
    config.models[0].idle_unload = Some(Duration::from_secs(60));
    let server = Harness::with(Scripted::new("hello"), config);
    let expires = || server.app.models.status()[0].expires;
    let body = |keep: Value| json!({ "model": MODEL, "keep_alive": keep });
    super::post(&server, "/api/generate", &body(json!("1h"))).await;
    let left = || {
        let end = expires().expect("an end");
        let left = end.duration_since(std::time::SystemTime::now());
        left.expect("in the future").as_secs()
    };
    assert!((61..=3600).contains(&left()));
    super::post(&server, "/api/generate", &body(json!(-1))).await;
    assert_eq!(expires(), None);
    let openai = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }] });
    super::post(&server, "/v1/chat/completions", &openai).await;
    assert_eq!(expires(), None, "other dialects do not change it");
    super::post(&server, "/api/generate", &body(Value::Null)).await;
    assert!(left() <= 60, "the configuration applies");
}
