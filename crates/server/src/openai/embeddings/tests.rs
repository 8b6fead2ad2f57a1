use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::testing::{Harness, MODEL, Scripted, tokenizer};
use crate::wire::IGNORED_HEADER;

fn vector(data: &Value) -> Vec<f32> {
    serde_json::from_value(data["embedding"].clone()).expect("numbers")
}

async fn embed(server: &Harness, body: Value) -> Value {
    let reply = server.post("/v1/embeddings", &body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    reply.json()
}

#[tokio::test]
async fn every_input_form_has_unit_vectors() {
    let server = Harness::saying("unheard");
    let words = |text: &str| {
        let tokenizer = tokenizer();
        let special = loquat_text::Special {
            add: true,
            parse: false,
        };
        tokenizer.encode(text, special).expect("tokens")
    };
    let [hello, goodbye] = ["hello", "goodbye"].map(words);
    let forms = [
        (json!("hello"), 1),
        (json!(["hello", "goodbye"]), 2),
        (json!(hello), 1),
        (json!([hello, goodbye]), 2),
    ];
    let mut seen = Vec::new();
    for (input, count) in forms {
        let answer = embed(&server, json!({ "model": MODEL, "input": input })).await;
        let data = answer["data"].as_array().expect("a list");
        assert_eq!(data.len(), count, "{input}");
        let tokens = hello.len() + if count > 1 { goodbye.len() } else { 0 };
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        assert_eq!(answer["usage"], usage);
        assert_eq!(
            (&answer["object"], &answer["model"]),
            (&json!("list"), &json!(MODEL))
        );
        for (index, each) in data.iter().enumerate() {
            assert_eq!(
                (&each["object"], &each["index"]),
                (&json!("embedding"), &json!(index))
            );
            let length: f32 = vector(each).iter().map(|value| value * value).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
        seen.push(data.iter().map(vector).collect::<Vec<_>>());
    }
    assert_eq!(seen[0][0], seen[1][0]);
    assert_eq!(seen[0], seen[2]);
    assert_eq!(seen[1], seen[3]);
    assert_ne!(seen[1][0], seen[1][1]);
}

#[tokio::test]
async fn encodings_and_poolings_differ() {
    let server = Harness::saying("unheard");
    let ask = |more: Value| {
        let mut body = json!({ "model": MODEL, "input": "hello there" });
        let fields = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        embed(&server, body)
    };
    let plain = vector(&ask(json!({ "user": "u" })).await["data"][0]);
    let packed = ask(json!({ "encoding_format": "base64" })).await;
    let packed = packed["data"][0]["embedding"]
        .as_str()
        .expect("a string")
        .to_owned();
    let bytes = STANDARD.decode(packed).expect("base64");
    let floats = bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().expect("four bytes")));
    assert_eq!(floats.collect::<Vec<_>>(), plain);
    let of = |pooling| ask(json!({ "pooling": pooling, "dimensions": plain.len() }));
    assert_eq!(vector(&of("mean").await["data"][0]), plain, "as configured");
    assert_ne!(vector(&of("last").await["data"][0]), plain);
}

#[tokio::test]
async fn many_inputs_are_embedded() {
    let mut config = Harness::config();
    config.models[0].max_queue = 20;
    let server = Harness::with(Scripted::new("unheard"), config);
    let inputs: Vec<String> = (0..100).map(|n| format!("number {n}")).collect();
    let answer = embed(&server, json!({ "model": MODEL, "input": inputs })).await;
    let data = answer["data"].as_array().expect("a list");
    let order: Vec<_> = data.iter().map(|each| each["index"].as_u64()).collect();
    assert_eq!(order, (0..100).map(Some).collect::<Vec<_>>());
    let one = embed(&server, json!({ "model": MODEL, "input": inputs[57] })).await;
    assert_eq!(data[57]["embedding"], one["data"][0]["embedding"]);
}

#[tokio::test]
async fn unsupported_fields_are_named() {
    let server = Harness::with(
        Scripted {
            context: 64,
            ..Scripted::new("unheard")
        },
        Harness::config(),
    );
    let too_many = vec!["x"; 2049];
    let cases = [
        (json!({ "input": too_many }), "input", None),
        (json!({ "input": 5 }), "input", None),
        (json!({ "input": ["a", true] }), "input", None),
        (json!({ "input": [1, [2]] }), "input[1]", None),
        (json!({ "input": [99_999_999] }), "input[0]", None),
        (
            json!({ "input": ["a", "word ".repeat(40)] }),
            "input[1]",
            Some("context_length_exceeded"),
        ),
        (
            json!({ "input": "a", "dimensions": 3 }),
            "dimensions",
            Some("unsupported_parameter"),
        ),
        (
            json!({ "input": "a", "encoding_format": "int8" }),
            "encoding_format",
            None,
        ),
        (json!({ "input": "a", "pooling": "max" }), "pooling", None),
        (
            json!({ "input": "a", "modle": "b" }),
            "modle",
            Some("unknown_parameter"),
        ),
    ];
    for (mut body, param, code) in cases {
        body["model"] = json!(MODEL);
        let reply = server.post("/v1/embeddings", &body).await;
        assert_eq!(
            reply.status(),
            StatusCode::BAD_REQUEST,
            "{param}: {}",
            reply.text()
        );
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{error}");
        assert_eq!(error["code"], json!(code), "{error}");
    }
}

#[tokio::test]
async fn model_without_hidden_states_is_refused() {
    let model = Scripted {
        embeddings: false,
        ..Scripted::new("unheard")
    };
    let server = Harness::with(model, Harness::config());
    let body = json!({ "model": MODEL, "input": "hello" });
    let reply = server.post("/v1/embeddings", &body).await;
    assert_eq!(reply.status(), StatusCode::BAD_REQUEST);
    let error = &reply.json()["error"];
    assert_eq!(error["param"], "model");
    assert_eq!(error["code"], "embeddings_not_supported");
}

#[tokio::test]
async fn ignored_fields_are_listed() {
    let server = Harness::saying("unheard");
    let body = json!({
        "model": MODEL, "input": "hello", "user": "somebody", "input_type": "query",
    });
    let reply = server.post("/v1/embeddings", &body).await;
    assert_eq!(reply.response.headers()[IGNORED_HEADER], "user, input_type");
}

#[tokio::test]
async fn mixed_and_empty_inputs_are_embedded() {
    let server = Harness::saying("unheard");
    let special = |add| loquat_text::Special { add, parse: false };
    let tokens = |text: &str, add| tokenizer().encode(text, special(add)).expect("tokens");
    let mut spelled = vec![12, 34];
    spelled.extend(tokens("b", false));
    spelled.push(56);
    let plain = tokens("a", true);
    let cases = [
        (json!([12, 34, "b", 56]), json!([spelled])),
        (json!(["a", [12, 34, "b", 56]]), json!([plain, spelled])),
        (json!([[12, 34, "b", 56], "a"]), json!([spelled, plain])),
        (json!([]), json!([])),
    ];
    for (mixed, expected) in cases {
        let mixed = embed(&server, json!({ "model": MODEL, "input": mixed })).await;
        let expected = embed(&server, json!({ "model": MODEL, "input": expected })).await;
        assert_eq!(mixed["data"], expected["data"]);
    }
    for (empty, count) in [(json!(""), 1), (json!(["", "a"]), 2), (json!([[]]), 1)] {
        let answer = embed(&server, json!({ "model": MODEL, "input": empty })).await;
        assert_eq!(answer["data"].as_array().map(Vec::len), Some(count));
    }
}

#[tokio::test]
async fn list_fits_a_short_queue() {
    let mut config = Harness::config();
    config.models[0].max_queue = 1;
    config.models[0].parallel = 2;
    let server = Harness::with(Scripted::new("unheard"), config);
    let inputs: Vec<String> = (0..20).map(|n| format!("number {n}")).collect();
    let answer = embed(&server, json!({ "model": MODEL, "input": inputs })).await;
    assert_eq!(answer["data"].as_array().map(Vec::len), Some(20));
}
