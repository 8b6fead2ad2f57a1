//! Sampling flags and log-probabilities.

use serde_json::Value;

use crate::support::{Altered, LETTER_A, golden, loquat};

#[test]
fn checkpoint_defaults_are_used() {
    let model = Altered::from("llama").with(
        "generation_config.json",
        r#"{ "temperature": 0.7, "top_k": 20, "eos_token_id": 258 }"#,
    );
    for (flags, told) in [
        (
            &[][..],
            "temperature 0.7 (the model's default), top_k 20 (the model's default)",
        ),
        (
            &["--top-k=5"],
            "temperature 0.7 (the model's default), top_k 5 (set by flag)",
        ),
    ] {
        let words = ["run", model.path(), "hi", "-n", "2", "-v"];
        let stderr = loquat(words.into_iter().chain(flags.iter().copied())).stderr;
        assert!(stderr.contains(&format!("sampling: {told}\n")), "{stderr}");
    }
    let silent = loquat(["generate", &golden("llama"), "hi", "-n", "2", "-v"]).stderr;
    let told = "sampling: temperature 0.6 (Loquat's default), top_p 0.95 (Loquat's default)\n";
    assert!(silent.contains(told), "{silent}");

    let greedy = Altered::from("llama").with("generation_config.json", r#"{"do_sample": false}"#);
    let ask = || loquat(["run", greedy.path(), "hi", "-n", "24"]).quiet();
    assert_eq!(ask(), ask());

    for (config, words) in [
        (r#"{"top_p": 1.5}"#, ["sampling defaults", "`top_p` is 1.5"]),
        (r#"{"top_p": "all"}"#, ["generation_config.json", "top_p"]),
    ] {
        let wrong = Altered::from("llama").with("generation_config.json", config);
        loquat(["run", wrong.path(), "hi"]).refused(3, &words);
    }
}

#[test]
fn token_lists_allow_and_forbid() {
    let model = golden("llama");
    let say = |flags: &[&str]| {
        let words = ["generate", &model, "hi", "-n", "4", "-t", "1"];
        loquat(words.into_iter().chain(flags.iter().copied())).quiet()
    };
    assert_eq!(say(&["--allowed-tokens=32"]), "AAAA\n");
    let two = say(&["--allowed-tokens=32,33"]);
    assert!(two.trim_end().chars().all(|c| "AB".contains(c)), "{two}");
    let forced = format!("--logit-bias={LETTER_A}=100");
    let barred = say(&["--allowed-tokens=32,33", &forced, "--bad-words=AA"]);
    assert_eq!(barred, "ABAB\n");
}

#[test]
fn sampler_order_is_validated() {
    let model = golden("llama");
    let words = ["run", &model, "hi", "-n", "4", "-v", "--seed", "1"];
    let ask = |flags: &[&str]| loquat(words.into_iter().chain(flags.iter().copied()));
    let told = ask(&["--samplers=top_k,temperature", "--top-k=1"]);
    let expected = "top_k 1 (set by flag), order [\"top_k\",\"temperature\"] (set by flag)";
    assert!(told.stderr.contains(expected), "{}", told.stderr);
    assert!(!told.stderr.contains("top_p"), "{}", told.stderr);
    let plain = ["run", &model, "hi", "-n", "4"];
    let refuse = |flags: &[&str], code, words: &[&str]| {
        loquat(plain.into_iter().chain(flags.iter().copied())).refused(code, words);
    };
    refuse(
        &["--samplers=top_k", "--min-p=0.1"],
        4,
        &["`min_p`", "leaves out"],
    );
    refuse(&["--samplers=top_k,top_k"], 4, &["`order`", "twice"]);
    refuse(
        &["--samplers=nope"],
        2,
        &["--samplers", "`nope`", "top_n_sigma"],
    );
    refuse(&["--mirostat=1"], 4, &["`mirostat`", "0 or 2"]);
    refuse(&["--allowed-tokens=288"], 4, &["token 288", "has 288"]);
}

#[test]
fn logprobs_before_and_after_sampling() {
    let model = golden("llama");
    let forced = format!("--logit-bias={LETTER_A}=100");
    let words = [
        "generate",
        &model,
        "hi",
        "-n",
        "2",
        "-o",
        "json",
        "--logprobs=3",
        &forced,
    ];
    let reply = |flags: &[&str]| -> Value {
        let json = loquat(words.into_iter().chain(flags.iter().copied())).quiet();
        serde_json::from_str(&json).unwrap()
    };
    let number = |value: &Value| value.as_f64().unwrap();
    let before = reply(&[]);
    let tokens = before["logprobs"].as_array().unwrap();
    assert_eq!(tokens.len(), 2);
    assert_eq!(
        (&tokens[0]["token"], &tokens[0]["id"]),
        (&"A".into(), &32.into())
    );
    let top = tokens[0]["top"].as_array().unwrap();
    assert_eq!(top.len(), 3);
    assert!(number(&top[0]["logprob"]) >= number(&top[1]["logprob"]));
    assert!(
        number(&tokens[0]["logprob"]) < -1.0,
        "model logprobs ignore the bias"
    );
    let after = reply(&["--logprobs-after-sampling"]);
    assert!(number(&after["logprobs"][0]["logprob"]) > -0.01, "{after}");
    let silent = loquat(["generate", &model, "hi", "-n", "2", "-o", "json"]).quiet();
    assert!(!silent.contains("logprob"), "{silent}");

    loquat(["run", &model, "hi", "--logprobs=3"]).refused(2, &["--logprobs", "json or events"]);
    let alone = ["run", &model, "hi", "-o=json", "--logprobs-after-sampling"];
    loquat(alone).refused(2, &["--logprobs"]);
    let many = ["run", &model, "hi", "-o=json", "--logprobs=289"];
    loquat(many).refused(4, &["`logprobs`", "288"]);
}

#[test]
fn json_reports_usage_and_seed() {
    let model = golden("llama");
    let ask = |flags: &[&str]| -> Value {
        let words = ["generate", &model, "hello", "-o", "json"];
        let json = loquat(words.into_iter().chain(flags.iter().copied())).quiet();
        assert_eq!(json.lines().count(), 1);
        serde_json::from_str(&json).unwrap()
    };
    let forced = format!("--logit-bias={LETTER_A}=100");
    let reply = ask(&["-n", "3", "--seed=9", &forced]);
    let expected = serde_json::json!({
        "reasoning": "", "text": "AAA", "tool_calls": [], "finish_reason": "length",
        "usage": { "prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 0 },
        "seed": 9,
    });
    assert_eq!(reply, expected);
    let stopped = ask(&["-n", "3", "--stop=AA", &forced]);
    assert_eq!(
        (&stopped["text"], &stopped["finish_reason"]),
        (&"".into(), &"stop_string".into())
    );
}
