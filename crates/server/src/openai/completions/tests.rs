use axum::http::StatusCode;
use loquat_text::Special;
use serde_json::{Value, json};

use crate::testing::{Harness, MODEL, Reply, Scripted, tokenizer};

const ROUTE: &str = "/v1/completions";

/// The model's output after the start of an assistant turn.
const OPENING: &str = "<|im_start|>assistant\n";

fn request(more: &Value) -> Value {
    let mut request = json!({ "model": MODEL, "prompt": OPENING });
    let fields = more.as_object().expect("an object");
    request.as_object_mut().expect("one").extend(fields.clone());
    request
}

async fn post_completion(server: &Harness, more: &Value) -> Reply {
    let reply = server.post(ROUTE, &request(more)).await;
    assert_eq!(reply.status(), StatusCode::OK, "{more} {}", reply.text());
    reply
}

async fn completion(says: &str, more: &Value) -> Value {
    post_completion(&Harness::saying(says), more).await.json()
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().expect("choices").iter();
    choices
        .map(|choice| choice["text"].as_str().expect("text").to_owned())
        .collect()
}

fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, Special::PROMPT).expect("tokens")
}

#[tokio::test]
async fn answer_has_openais_shape() {
    let mut answer = completion("Hello", &json!({})).await;
    let id = answer["id"].take();
    assert!(
        id.as_str().is_some_and(|id| id.starts_with("cmpl-")),
        "{id}"
    );
    assert!(answer["created"].take().as_u64() > Some(1_700_000_000));
    let prompt = ids(OPENING).len();
    let expected = json!({
        "id": null,
        "object": "text_completion",
        "created": null,
        "model": MODEL,
        "system_fingerprint": format!("loquat-{}-fake", env!("CARGO_PKG_VERSION")),
        "choices": [{ "index": 0, "text": "Hello", "logprobs": null, "finish_reason": "stop" }],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 6,
            "total_tokens": prompt + 6,
            "prompt_tokens_details": { "cached_tokens": 0 },
        },
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn default_limit_is_sixteen_tokens() {
    let says = "a long story that goes on and on";
    let answer = completion(says, &json!({})).await;
    assert_eq!(texts(&answer), ["a long story tha"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn prompts_are_texts_or_tokens() {
    let tokens = ids(OPENING);
    let cases = [
        (json!(OPENING), 1),
        (json!([OPENING]), 1),
        (json!([OPENING, OPENING, OPENING]), 3),
        (json!(tokens), 1),
        (json!([tokens]), 1),
        (json!([tokens, OPENING]), 2),
        (json!(vec![OPENING; 40]), 40),
    ];
    let server = Harness::saying("Hi");
    for (prompt, count) in cases {
        let answer = post_completion(&server, &json!({ "prompt": prompt }))
            .await
            .json();
        assert_eq!(texts(&answer), vec!["Hi"; count], "{prompt}");
        let indices = answer["choices"].as_array().expect("choices").iter();
        let indices = indices.map(|choice| choice["index"].as_u64().expect("a number"));
        assert!(indices.eq(0..count as u64));
        assert_eq!(answer["usage"]["prompt_tokens"], tokens.len() * count);
        assert_eq!(answer["usage"]["completion_tokens"], 3 * count);
    }
}

#[tokio::test]
async fn choices_are_numbered_across_prompts() {
    let more = json!({ "prompt": [OPENING, "x"], "n": 2, "max_tokens": 2, "echo": true });
    let answer = completion("Hi there", &more).await;
    let choices = answer["choices"].as_array().expect("choices");
    let indices = choices.iter().map(|choice| choice["index"].as_u64());
    assert!(indices.eq((0..4).map(Some)));
    let texts = texts(&answer);
    assert!(
        texts[..2]
            .iter()
            .all(|text| text == &format!("{OPENING}Hi")),
        "{texts:?}"
    );
    assert!(
        texts[2..].iter().all(|text| text.starts_with('x')),
        "{texts:?}"
    );
}

#[tokio::test]
async fn best_of_returns_the_likeliest() {
    let more = json!({ "n": 2, "best_of": 4 });
    let answer = completion("Hi", &more).await;
    assert_eq!(texts(&answer), ["Hi", "Hi"]);
    // Discarded choices count as usage.
    assert_eq!(answer["usage"]["completion_tokens"], 12);
}

#[tokio::test]
async fn echo_has_prompt_log_probabilities() {
    let tokens = ids(OPENING);
    // The request that lm-eval sends.
    let more = json!({ "prompt": [tokens], "echo": true, "logprobs": 1, "max_tokens": 1,
        "temperature": 0, "seed": 1234 });
    let answer = completion("Hi", &more).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], format!("{OPENING}H"));
    let list = |name: &str| choice["logprobs"][name].as_array().expect("a list").clone();
    let (texts, own, top) = (list("tokens"), list("token_logprobs"), list("top_logprobs"));
    assert_eq!(texts.len(), tokens.len() + 1);
    assert_eq!((own.len(), top.len()), (texts.len(), texts.len()));
    assert_eq!((&own[0], &top[0]), (&Value::Null, &Value::Null));
    for at in 1..own.len() {
        let top = top[at].as_object().expect("an object");
        let text = texts[at].as_str().expect("text");
        assert_eq!(top[text], own[at], "{text}");
    }
    // The last token is generated, and the likeliest.
    assert_eq!(
        top.last().and_then(Value::as_object).map(|top| top.len()),
        Some(1)
    );
    let joined: String = texts
        .iter()
        .map(|text| text.as_str().expect("text"))
        .collect();
    assert_eq!(joined, format!("{OPENING}H"));
    let mut offset = 0;
    for (text, found) in texts.iter().zip(list("text_offset")) {
        assert_eq!(found, offset);
        offset += text.as_str().expect("text").chars().count();
    }
}

#[tokio::test]
async fn prompt_is_scored_without_generating() {
    let whole = completion(
        "Hi",
        &json!({ "echo": true, "logprobs": 1, "max_tokens": 1 }),
    )
    .await;
    let more = json!({ "echo": true, "logprobs": 1, "max_tokens": 0 });
    let scored = completion("Hi", &more).await;
    assert_eq!(texts(&scored), [OPENING]);
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    let of = |answer: &Value| {
        let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].clone();
        logprobs.as_array().expect("a list").clone()
    };
    let (scored, whole) = (of(&scored), of(&whole));
    assert_eq!(scored, whole[..scored.len()]);
    let bare = completion("Hi", &json!({ "echo": true, "max_tokens": 0 })).await;
    assert_eq!(texts(&bare), [OPENING]);
    assert_eq!(bare["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn prompt_log_probabilities_are_separate() {
    let more = json!({ "prompt_logprobs": 2, "max_tokens": 0 });
    let answer = completion("Hi", &more).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "");
    assert_eq!(choice["logprobs"], Value::Null);
    let found = choice["prompt_logprobs"].as_array().expect("a list");
    let tokens = ids(OPENING);
    assert_eq!(found.len(), tokens.len());
    assert_eq!(found[0], Value::Null);
    for (id, found) in tokens.iter().zip(found).skip(1) {
        let own = &found[id.to_string()];
        assert_eq!(
            own["decoded_token"],
            tokenizer().token_text(*id).expect("text")
        );
        let ranks = found.as_object().expect("an object").values();
        let ranks = ranks.filter_map(|entry| entry["rank"].as_u64());
        assert!(ranks.clone().any(|rank| rank == 1) && ranks.clone().any(|rank| rank == 2));
    }
}

#[tokio::test]
async fn answers_follow_constraints() {
    let cases = [
        (json!({ "guided_choice": ["yes", "no"] }), vec!["yes", "no"]),
        (json!({ "guided_regex": "[0-9]{3}x" }), vec![]),
        (json!({ "stop": ["l"] }), vec!["He"]),
        (
            json!({ "response_format": { "type": "json_object" }, "max_tokens": 1 }),
            vec!["{"],
        ),
    ];
    for (more, expected) in cases {
        let answer = completion("Hello", &more).await;
        let text = &texts(&answer)[0];
        if expected.is_empty() {
            assert!(text.len() == 4 && text.ends_with('x'), "{text}")
        } else {
            assert!(expected.contains(&text.as_str()), "{text}")
        }
    }
}

/// The joined chunks of a choice.
fn joined_chunks(reply: &Reply, index: usize) -> Value {
    let mut text = String::new();
    let mut logprobs = json!({ "tokens": [], "token_logprobs": [], "top_logprobs": [],
        "text_offset": [] });
    let mut reason = Value::Null;
    for (_, chunk) in reply.events() {
        assert_eq!(chunk["object"], "text_completion");
        let choice = &chunk["choices"][0];
        if choice["index"] != index {
            continue;
        }
        text.push_str(choice["text"].as_str().expect("text"));
        for (name, list) in logprobs.as_object_mut().expect("lists") {
            let more = choice["logprobs"][name].as_array().cloned();
            list.as_array_mut()
                .expect("a list")
                .extend(more.unwrap_or_default());
        }
        if !choice["finish_reason"].is_null() {
            assert_eq!(reason, Value::Null);
            reason = choice["finish_reason"].clone();
        }
    }
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason })
}

#[tokio::test]
async fn stream_equals_the_whole_answer() {
    let cases = [
        json!({ "logprobs": 2 }),
        json!({ "logprobs": 0, "echo": true }),
        json!({ "logprobs": 1, "echo": true, "max_tokens": 0 }),
        json!({ "logprobs": 1, "stop": ["🦀"] }),
        json!({ "logprobs": 1, "n": 2, "prompt": [OPENING, "x"], "max_tokens": 3, "echo": true }),
    ];
    let server = Harness::saying("Grüße 🦀!");
    for more in cases {
        let whole = post_completion(&server, &more).await.json();
        let mut request = more.clone();
        request["stream"] = json!(true);
        request["stream_options"] = json!({ "include_usage": true });
        let stream = post_completion(&server, &request).await;
        assert!(stream.text().ends_with("data: [DONE]\n\n"));
        let choices = whole["choices"].as_array().expect("choices");
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(&joined_chunks(&stream, index), choice, "{more}");
        }
        let events = stream.events();
        let (_, last) = events.last().expect("a chunk");
        assert_eq!(last["choices"], json!([]));
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][count], whole["usage"][count], "{more}");
        }
    }
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let long: Vec<u32> = vec![5; 5000];
    let cases = [
        (json!({ "prompt": [] }), json!("prompt")),
        (json!({ "prompt": 7 }), json!("prompt")),
        (json!({ "prompt": [1, "a"] }), json!("prompt[0]")),
        (json!({ "prompt": [[1, "a"]] }), json!("prompt[0][1]")),
        (json!({ "prompt": [[]] }), json!("prompt")),
        (
            json!({ "prompt": [1, 5_000_000_000_u64] }),
            json!("prompt[1]"),
        ),
        (json!({ "prompt": [9_999_999] }), json!("prompt")),
        (json!({ "prompt": vec!["a"; 1025] }), json!("prompt")),
        (
            json!({ "prompt": vec!["a"; 129], "n": 32 }),
            json!("prompt"),
        ),
        (
            json!({ "prompt": vec!["a"; 33], "best_of": 128 }),
            json!("prompt"),
        ),
        (json!({ "prompt": long }), Value::Null),
        (json!({ "max_tokens": 0 }), json!("max_tokens")),
        (
            json!({ "max_tokens": 0, "logprobs": 1 }),
            json!("max_tokens"),
        ),
        (json!({ "suffix": "end" }), json!("suffix")),
        (json!({ "n": 0 }), json!("n")),
        (json!({ "n": 2, "best_of": 1 }), json!("best_of")),
        (json!({ "best_of": 2, "stream": true }), json!("best_of")),
        (json!({ "logprobs": 21 }), json!("logprobs")),
        (json!({ "logprobs": true }), json!("logprobs")),
        (json!({ "prompt_logprobs": 21 }), json!("prompt_logprobs")),
        (json!({ "stop": [""] }), json!("stop")),
        (json!({ "top_p": 3 }), json!("top_p")),
        (json!({ "guided_regex": "(" }), json!("guided_regex")),
        (
            json!({ "guided_regex": "a", "guided_choice": ["b"] }),
            json!("guided_choice"),
        ),
        (
            json!({ "messages": [{ "role": "user" }] }),
            json!("messages"),
        ),
    ];
    let server = Harness::saying("Hi");
    for (more, param) in cases {
        let reply = server.post(ROUTE, &request(&more)).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{more}");
        assert_eq!(
            reply.json()["error"]["param"],
            param,
            "{more} {}",
            reply.text()
        );
    }
    let reply = server.post(ROUTE, &json!({ "model": MODEL })).await;
    assert_eq!(reply.json()["error"]["param"], "prompt");
}

#[tokio::test]
async fn batch_larger_than_queue_is_served() {
    let mut config = Harness::config();
    config.models[0].max_queue = 40;
    let server = Harness::with(Scripted::new("Hi"), config);
    for n in [1, 3] {
        let mut request = json!({ "prompt": vec![OPENING; 100], "n": n });
        let answer = post_completion(&server, &request).await.json();
        assert_eq!(texts(&answer), vec!["Hi"; 100 * n]);
        request["stream"] = json!(true);
        request["stream_options"] = json!({ "include_usage": true });
        let stream = post_completion(&server, &request).await;
        for index in 0..100 * n {
            assert_eq!(joined_chunks(&stream, index)["text"], "Hi", "{index}");
        }
        let events = stream.events();
        let (_, last) = events.last().expect("a chunk");
        for count in ["prompt_tokens", "completion_tokens"] {
            assert_eq!(last["usage"][count], answer["usage"][count], "{n}");
        }
    }
}

#[tokio::test]
async fn unservable_streamed_prompt_is_refused() {
    let server = Harness::saying("Hi");
    let mut prompts = vec![vec![5]; 40];
    let streamed = |prompts: &Vec<Vec<u32>>| json!({ "prompt": prompts, "stream": true });
    // Later prompts are refused when they are submitted.
    prompts[39] = vec![9_999_999];
    let late = post_completion(&server, &streamed(&prompts)).await;
    let events = late.events();
    let (_, last) = events.last().expect("an error");
    assert_eq!(last["error"]["param"], "prompt", "{last}");
    prompts[0] = vec![9_999_999];
    let early = server.post(ROUTE, &request(&streamed(&prompts))).await;
    assert_eq!(early.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn choices_fit_a_short_queue() {
    let mut config = Harness::config();
    config.models[0].max_queue = 1;
    config.models[0].parallel = 1;
    let server = Harness::with(Scripted::new("Hi"), config);
    for more in [
        json!({ "n": 2 }),
        json!({ "n": 5 }),
        json!({ "prompt": [OPENING, OPENING], "n": 2 }),
        json!({ "prompt": vec![OPENING; 20] }),
    ] {
        let answer = post_completion(&server, &more).await.json();
        assert!(texts(&answer).iter().all(|text| text == "Hi"), "{more}");
        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let stream = post_completion(&server, &streamed).await;
        assert_eq!(joined_chunks(&stream, 1)["text"], "Hi", "{more}");
    }
}

#[tokio::test]
async fn special_stop_tokens_end_and_show() {
    let text = "Hi<|im_start|>you";
    let tokenizer = tokenizer();
    let parsed = tokenizer.encode("o", Special::PLAIN).expect("tokens");
    let stopped = completion(text, &json!({ "stop_token_ids": parsed, "max_tokens": 50 })).await;
    assert_eq!(texts(&stopped), ["Hi<|im_start|>y"]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let reply = Harness::saying("Hi")
        .post(ROUTE, &request(&json!({ "stop_token_ids": [9_999_999] })))
        .await;
    assert_eq!(reply.json()["error"]["param"], "stop_token_ids");
}
