use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{ALIASES, RERANKING};
use crate::testing::{Harness, Scripted};

fn coder(reply: &str) -> Harness {
    let model = Scripted {
        fim: true,
        ..Scripted::new(reply)
    };
    Harness::with(model, Harness::config())
}

/// A prompt after which the scripted model answers.
const PROMPT: &str = "<|im_start|>assistant\n";

#[tokio::test]
async fn completion_has_llama_cpps_form() {
    let server = Harness::saying("hello");
    let body = json!({
        "prompt": PROMPT, "n_predict": 16, "cache_prompt": true, "speculative.n_max": 0,
    });
    let reply = server.post("/completion", &body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert_eq!(reply.response.headers()["x-loquat-ignored"], "cache_prompt");
    let json = reply.json();
    assert_eq!(json["content"], "hello");
    assert_eq!(json["stop"], true);
    assert_eq!(json["stop_type"], "eos");
    assert_eq!(json["truncated"], false);
    assert!(json["timings"]["predicted_n"].is_number(), "{json}");

    let body = json!({ "prompt": PROMPT, "n_predict": 3, "return_tokens": true });
    let json = server.post("/completion", &body).await.json();
    assert_eq!(json["stop_type"], "limit");
    assert_eq!(json["tokens"].as_array().map(Vec::len), Some(3));

    let body = json!({ "prompt": PROMPT, "n_predict": -1, "stop": ["l"] });
    let json = server.post("/completion", &body).await.json();
    assert_eq!(json["content"], "he");
    assert_eq!(
        (&json["stop_type"], &json["stopping_word"]),
        (&json!("word"), &json!("l"))
    );

    let body = json!({ "prompt": PROMPT, "n_predict": -7 });
    let reply = server.post("/completion", &body).await;
    assert_eq!(reply.json()["error"]["param"], "n_predict");
}

/// llama.vim warms the cache so.
#[tokio::test]
async fn zero_n_predict_only_evaluates_the_prompt() {
    let server = coder("return a + b");
    let code = "let x = 1;\n".repeat(40);
    for (path, prompt) in [
        (
            "/completion",
            json!({ "prompt": format!("{code}<|fim_middle|>") }),
        ),
        (
            "/infill",
            json!({ "input_prefix": code, "input_suffix": "}" }),
        ),
    ] {
        let mut body = prompt;
        body["n_predict"] = json!(0);
        body["n_probs"] = json!(if path == "/completion" { 1 } else { 0 });
        body["return_tokens"] = json!(true);
        let json = server.post(path, &body).await.json();
        assert_eq!(json["content"], "", "{path} {json}");
        assert_eq!(json["tokens"], json!([]), "{path}");
        assert_eq!(json["tokens_predicted"], 0, "{path}");
        assert_eq!(json["stop_type"], "limit", "{path}");
        assert_eq!(json["generation_settings"]["n_predict"], 0, "{path}");
        let evaluated = json["tokens_evaluated"].as_u64().expect("a count");

        body["stream"] = json!(true);
        let events = server.post(path, &body).await.events();
        let [(_, last)] = events.as_slice() else {
            panic!("{path}: {events:?}");
        };
        assert_eq!(
            (&last["stop"], &last["content"]),
            (&json!(true), &json!(""))
        );
        let cached = last["tokens_cached"].as_u64().expect("a count");
        assert!(cached > evaluated / 2, "{path}: {cached} of {evaluated}");
    }
}

#[tokio::test]
async fn max_tokens_is_another_name_for_n_predict() {
    let server = coder("return a + b");
    for (path, prompt) in [
        ("/completion", json!({ "prompt": "<|fim_middle|>" })),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b" }),
        ),
    ] {
        let mut body = prompt;
        body["max_tokens"] = json!(3);
        let reply = server.post(path, &body).await;
        assert_eq!(reply.json()["tokens_predicted"], 3, "{}", reply.text());
        body["n_predict"] = json!(4);
        let reply = server.post(path, &body).await;
        assert_eq!(reply.json()["error"]["param"], "max_tokens", "{path}");
    }
}

#[tokio::test]
async fn negative_n_predict_means_all_that_fit() {
    let mut config = Harness::config();
    config.models[0].max_tokens = 8;
    let model = Scripted {
        context: 96,
        fim: true,
        ..Scripted::new(&"and so on ".repeat(50))
    };
    let server = Harness::with(model, config);
    let prompts = [
        ("/completion", json!({ "prompt": "<|fim_middle|>" })),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b" }),
        ),
    ];
    for (path, prompt) in prompts {
        let generate = async |n_predict: Value| {
            let mut body = prompt.clone();
            body["n_predict"] = n_predict;
            let reply = server.post(path, &body).await;
            assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
            let json = reply.json();
            let count = |name: &str| json[name].as_u64().expect("a count");
            assert_eq!(json["stop_type"], "limit", "{path}");
            (count("tokens_evaluated"), count("tokens_predicted"))
        };
        assert_eq!(generate(Value::Null).await.1, 8, "{path}");
        for all in [json!(-1), json!(100_000)] {
            let (prompt, generated) = generate(all).await;
            assert_eq!(prompt + generated, 96, "{path}");
        }
    }
}

#[tokio::test]
async fn completion_streams_until_stop() {
    let server = Harness::saying("hello");
    let body = json!({ "prompt": PROMPT, "stream": true });
    let events = server.post("/completion", &body).await.events();
    let texts = events.iter().map(|(_, chunk)| chunk["content"].as_str());
    assert_eq!(texts.collect::<Option<String>>().as_deref(), Some("hello"));
    let stops: Vec<_> = events
        .iter()
        .map(|(_, chunk)| chunk["stop"] == true)
        .collect();
    assert_eq!(stops.iter().filter(|stop| **stop).count(), 1);
    assert_eq!(stops.last(), Some(&true));
}

#[tokio::test]
async fn several_prompts_are_answered_in_order() {
    let server = Harness::saying("hello");
    let turn = server
        .post("/tokenize", &json!({ "content": PROMPT }))
        .await;
    let ids = turn.json()["tokens"].clone();
    let object = json!({ "prompt_string": PROMPT });
    for prompt in [
        json!([PROMPT, PROMPT]),
        json!([ids, PROMPT]),
        json!([ids, object]),
    ] {
        let body = json!({ "prompt": prompt });
        let replies = server.post("/completion", &body).await.json();
        let replies = replies.as_array().expect("a list");
        assert_eq!(replies.len(), 2, "{prompt}");
        for (index, reply) in replies.iter().enumerate() {
            assert_eq!(
                (&reply["index"], &reply["content"]),
                (&json!(index), &json!("hello"))
            );
        }
        let body = json!({ "prompt": prompt, "stream": true });
        let events = server.post("/completion", &body).await.events();
        for index in 0..2 {
            let chunks = events.iter().filter(|(_, chunk)| chunk["index"] == index);
            let texts = chunks.map(|(_, chunk)| chunk["content"].as_str());
            assert_eq!(texts.collect::<Option<String>>().as_deref(), Some("hello"));
        }
        let ends = events.iter().filter(|(_, chunk)| chunk["stop"] == true);
        assert_eq!(ends.count(), 2);
    }
    for one in [
        object,
        json!([PROMPT]),
        json!(["<|im_start|>", ids[1], "ssistant\n"]),
    ] {
        let reply = server.post("/completion", &json!({ "prompt": one })).await;
        assert!(
            reply.json()["content"].is_string(),
            "{one}: {}",
            reply.text()
        );
    }
    let media = json!({ "prompt_string": "a", "multimodal_data": ["aGk="] });
    let marked = json!({ "prompt_string": "<__media__>", "multimodal_data": ["aGk="] });
    for (prompt, param) in [
        (media.clone(), "prompt.multimodal_data"),
        (marked, "prompt.multimodal_data[0]"),
        (json!([PROMPT, media]), "prompt[1].multimodal_data"),
        (json!([]), "prompt"),
        (json!([[1], []]), "prompt[1]"),
        (json!([1, [2]]), "prompt"),
        (json!(vec![PROMPT; 1025]), "prompt"),
    ] {
        let reply = server
            .post("/completion", &json!({ "prompt": prompt }))
            .await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param);
    }
}

#[tokio::test]
async fn completion_has_the_requested_fields() {
    let server = Harness::saying("a\nb");
    let fields = ["content", "generation_settings/n_predict", "nothing/at/all"];
    let body = json!({ "prompt": PROMPT, "n_predict": 8, "response_fields": fields });
    let expected = json!({ "content": "a\nb", "generation_settings/n_predict": 8 });
    assert_eq!(server.post("/completion", &body).await.json(), expected);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.post("/completion", &streamed).await.events();
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last.1["generation_settings/n_predict"], 8);
    for (_, chunk) in chunks {
        assert_ne!(chunk["tokens"], json!([]), "{chunk}");
    }

    let body = json!({ "prompt": PROMPT, "top_k": 7, "repeat_penalty": 1.5, "stop": ["x"] });
    let json = server.post("/completion", &body).await.json();
    assert_eq!(json["has_new_line"], true);
    let settings = &json["generation_settings"];
    assert_eq!(
        (&settings["top_k"], &settings["repeat_penalty"]),
        (&json!(7), &json!(1.5))
    );
    assert_eq!(settings["stop"], json!(["x"]));
    assert!(json.get("completion_probabilities").is_none(), "{json}");
    let body = json!({ "prompt": PROMPT, "n_predict": 1 });
    let json = server.post("/completion", &body).await.json();
    assert_eq!(json["has_new_line"], false);
}

#[tokio::test]
async fn completion_lists_probabilities() {
    let server = Harness::saying("hello");
    for (stream, after) in [(false, false), (true, true)] {
        let body = json!({ "prompt": PROMPT, "n_predict": 3, "n_probs": 2, "stream": stream,
            "post_sampling_probs": after });
        let reply = server.post("/completion", &body).await;
        let chunks = if stream {
            reply.events().into_iter().map(|(_, chunk)| chunk).collect()
        } else {
            vec![reply.json()]
        };
        let lists = chunks
            .iter()
            .map(|chunk| &chunk["completion_probabilities"]);
        let entries: Vec<_> = lists.filter_map(|list| list.as_array()).flatten().collect();
        let texts: Option<String> = entries
            .iter()
            .map(|entry| entry["token"].as_str())
            .collect();
        assert_eq!(texts.as_deref(), Some("hel"));
        assert_eq!(entries[0]["bytes"], json!([b'h']));
        let top = entries[0]["top_logprobs"].as_array().expect("a list");
        assert_eq!(top[0]["id"], entries[0]["id"]);
        assert!(top[0]["logprob"].is_number());
    }
    let body = json!({ "prompt": PROMPT, "n_probs": 21 });
    let reply = server.post("/completion", &body).await;
    assert_eq!(reply.json()["error"]["param"], "n_probs");
}

#[tokio::test]
async fn every_form_of_bias_changes_the_text() {
    let server = Harness::saying("hello");
    let first = async |bias: Value| {
        let body = json!({ "prompt": PROMPT, "n_predict": 1, "logit_bias": bias });
        let reply = server.post("/completion", &body).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
        reply.json()["content"].clone()
    };
    assert_eq!(first(json!({})).await, "h");
    let token = server
        .post("/tokenize", &json!({ "content": "h" }))
        .await
        .json();
    let token = &token["tokens"][0];
    for bias in [
        json!({ token.to_string(): -100 }),
        json!([[token, -100]]),
        json!({ "h": -100 }),
        json!([["h", -100]]),
        json!([["h", false]]),
    ] {
        assert_ne!(first(bias.clone()).await, "h", "{bias}");
    }
    for bias in [json!([[999_999, false]]), json!({ "999999": 1 })] {
        let body = json!({ "prompt": PROMPT, "logit_bias": bias });
        let reply = server.post("/completion", &body).await;
        assert_eq!(
            reply.json()["error"]["param"],
            "logit_bias",
            "{}",
            reply.text()
        );
    }
}

#[tokio::test]
async fn only_allowed_tokens_are_generated() {
    let server = Harness::saying("hello");
    let token = json!({ "content": "x" });
    let token = server.post("/tokenize", &token).await.json()["tokens"].clone();
    for name in ["allowed_token_ids", "allowed_tokens"] {
        let body = json!({ "prompt": PROMPT, "max_tokens": 3, (name): token });
        let reply = server.post("/v1/completions", &body).await;
        assert_eq!(
            reply.json()["choices"][0]["text"],
            "xxx",
            "{}",
            reply.text()
        );
    }
}

#[tokio::test]
async fn samplers_are_the_only_steps() {
    let server = Harness::saying("hello");
    for (samplers, steps, ignored) in [
        (
            json!(["top_k", "typ_p", "temperature"]),
            json!(["top_k", "typical_p", "temperature"]),
            None,
        ),
        // llama.vim's.
        (
            json!(["top_k", "top_p", "infill"]),
            json!(["top_k", "top_p"]),
            Some("samplers[infill]"),
        ),
        (json!([]), json!([]), None),
        (
            json!("edskypmxt"),
            json!([
                "penalties",
                "dry",
                "top_n_sigma",
                "top_k",
                "typical_p",
                "top_p",
                "min_p",
                "xtc",
                "temperature",
            ]),
            None,
        ),
    ] {
        // Parameters of other steps have no effect, as in llama.cpp.
        let body = json!({ "prompt": PROMPT, "n_predict": 2, "samplers": samplers, "top_k": 40,
            "top_p": 0.5, "min_p": 0.2, "temperature": 0.3 });
        let reply = server.post("/completion", &body).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
        let header = reply.response.headers().get("x-loquat-ignored");
        assert_eq!(header.and_then(|text| text.to_str().ok()), ignored);
        let json = reply.json();
        let settings = &json["generation_settings"];
        assert_eq!(
            (&settings["order"], &settings["samplers"]),
            (&steps, &steps)
        );
        let includes = |step: &str| {
            steps
                .as_array()
                .is_some_and(|all| all.contains(&json!(step)))
        };
        if !includes("min_p") {
            assert_eq!(settings["min_p"], 0.0, "{samplers}");
        }
        if !includes("temperature") {
            assert_eq!(settings["temperature"], 1.0, "{samplers}");
        }
        if includes("top_k") {
            assert_eq!(settings["top_k"], 40, "{samplers}");
        }
    }
    for (more, param) in [
        (json!({ "samplers": ["top_kk"] }), "samplers"),
        (json!({ "samplers": "q" }), "samplers"),
        (json!({ "samplers": 1 }), "samplers"),
        (
            json!({ "samplers": ["top_k"], "order": ["top_p"] }),
            "samplers",
        ),
    ] {
        let mut body = more;
        body["prompt"] = json!(PROMPT);
        let reply = server.post("/completion", &body).await;
        assert_eq!(reply.json()["error"]["param"], param, "{body}");
    }
}

#[tokio::test]
async fn infill_writes_between_prefix_and_suffix() {
    let server = coder("return a + b");
    let body = json!({
        "input_prefix": "def add(a, b):\n    ",
        "input_suffix": "\n",
        "input_extra": [{ "filename": "lib.py", "text": "x = 1\n" }],
        "prompt": "# sum\n",
    });
    let reply = server.post("/infill", &body).await;
    assert_eq!(reply.json()["content"], "return a + b", "{}", reply.text());

    let body = json!({ "prompt": "a", "suffix": "b", "max_tokens": 64 });
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(reply.json()["choices"][0]["text"], "return a + b");

    let body = json!({ "model": "tiny", "prompt": "a", "suffix": "b", "stream": false });
    let reply = server.post("/api/generate", &body).await;
    assert_eq!(reply.json()["response"], "return a + b");
}

#[tokio::test]
async fn suffix_without_tokens_names_the_model() {
    let server = Harness::saying("hello");
    let cases = [
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b" }),
        ),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" })),
        (
            "/api/generate",
            json!({ "model": "tiny", "prompt": "a", "suffix": "b" }),
        ),
    ];
    for (path, body) in cases {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        let message = "the model `tiny` has no fill-in-the-middle tokens";
        assert!(reply.text().contains(message), "{path}: {}", reply.text());
    }
}

#[tokio::test]
async fn properties_slots_and_templates_are_served() {
    let server = Harness::saying("hello");
    let props = server.get("/props").await.json();
    assert_eq!(props["model_alias"], "tiny");
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert!(
        props["chat_template"]
            .as_str()
            .is_some_and(|text| text.contains("im_start"))
    );
    let slots = server.get("/slots").await.json();
    let slots = slots.as_array().expect("slots");
    assert_eq!(props["total_slots"], slots.len());
    assert!(slots.iter().all(|slot| slot["is_processing"] == false));

    let user = json!({ "role": "user", "content": "hi" });
    let turn = "<|im_start|>user\nhi<|im_end|>\n";
    let cases = [
        (json!({ "messages": [user] }), format!("{turn}{PROMPT}")),
        (
            json!({ "messages": [user], "add_generation_prompt": false }),
            turn.to_owned(),
        ),
        (
            json!({ "messages": [user, { "role": "assistant", "content": "so ", "prefix": true }] }),
            format!("{turn}{PROMPT}so "),
        ),
    ];
    for (body, prompt) in cases {
        let reply = server.post("/apply-template", &body).await;
        assert_eq!(reply.json()["prompt"], prompt, "{}", reply.text());
    }
}

#[tokio::test]
async fn short_paths_answer_like_the_long_ones() {
    let server = Harness::saying("hello");
    for path in ALIASES {
        let post = server.post(path, &json!({ "x": 1 })).await;
        let get = server.get(path).await;
        let found = [post.status(), get.status()];
        assert!(!found.contains(&StatusCode::NOT_FOUND), "{path}: {found:?}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let reply = server.post("/chat/completions", &body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "hello");
}

#[tokio::test]
async fn reranking_is_refused() {
    let server = Harness::saying("hello");
    for path in RERANKING {
        let reply = server
            .post(path, &json!({ "query": "a", "documents": ["b"] }))
            .await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        assert!(reply.text().contains("no reranking models"), "{path}");
    }
}
