//! Thinking: display, budget, and separation from the answer.

use serde_json::Value;

use crate::support::{Files, LETTER_A, Outcome, TEMPLATE, golden, loquat};

/// A model that only generates `A` and thinks first.
fn ask(flags: &[&str]) -> Outcome {
    let files = Files::new();
    let template = files.write("template.jinja", TEMPLATE);
    let (model, letters) = (golden("llama"), format!("--logit-bias={LETTER_A}=100"));
    let words = [
        "run",
        &model,
        "hi",
        "-t",
        "0",
        &letters,
        "--template",
        &template,
    ];
    loquat(words.into_iter().chain(flags.iter().copied()))
}

#[test]
fn budget_ends_thinking() {
    let reply = |flags: &[&str]| -> Value {
        let json = ask(&[flags, &["--output=json"]].concat()).quiet();
        serde_json::from_str(&json).unwrap()
    };
    let bounded = reply(&["--thinking-budget=3", "-n", "9"]);
    assert_eq!(bounded["reasoning"].as_str().unwrap().trim(), "AAA");
    let text = bounded["text"].as_str().unwrap();
    assert!(
        !text.is_empty() && text.chars().all(|c| c == 'A'),
        "{text:?}"
    );
    assert_eq!(bounded["finish_reason"], "length");

    let endless = reply(&["-n", "9"]);
    assert_eq!(endless["reasoning"], "AAAAAAAAA");
    assert_eq!(endless["text"], "");

    let off = reply(&["--thinking=off", "-n", "9"]);
    assert_eq!(off["reasoning"], "");
    assert_eq!(off["text"], "AAAAAAAAA");
}

#[test]
fn constraint_applies_to_answer_only() {
    let flags = [
        "--thinking-budget=4",
        "--choice=yes",
        "--choice=no",
        "--output=json",
        "-n",
        "30",
    ];
    let reply: Value = serde_json::from_str(&ask(&flags).quiet()).unwrap();
    assert_eq!(reply["reasoning"].as_str().unwrap().trim(), "AAAA");
    let text = reply["text"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{text:?}");
    assert_eq!(reply["finish_reason"], "stop");
}

#[test]
fn thinking_is_hidden_from_stdout() {
    let flags = ["--thinking-budget=3", "-n", "20", "--choice=yes"];
    assert_eq!(ask(&flags).quiet(), "yes\n");
    let shown = ask(&[&flags[..], &["--show-reasoning=full"]].concat()).quiet();
    assert_eq!(shown, "<think>\nAAA\n</think>\nyes\n");
    for how in ["--show-reasoning=folded", "--show-reasoning=hidden"] {
        assert_eq!(ask(&[&flags[..], &[how]].concat()).quiet(), "yes\n");
    }
}

#[test]
fn events_are_in_order() {
    let flags = [
        "--thinking-budget=2",
        "-n",
        "20",
        "--choice=yes",
        "--output=events",
    ];
    let lines = ask(&flags).quiet();
    let events: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    let mut order = kinds.clone();
    order.dedup();
    assert_eq!(order, ["reasoning", "text", "finished"]);
    let joined = |kind: &str| -> String {
        let of_kind = events.iter().filter(|event| event["type"] == kind);
        of_kind.filter_map(|event| event["text"].as_str()).collect()
    };
    assert_eq!(joined("reasoning").trim(), "AA");
    assert_eq!(joined("text"), "yes");
}

#[test]
fn unsupported_thinking_flags_are_refused() {
    let model = golden("llama");
    let run = |flags: &[&str]| {
        loquat(
            ["run", &model, "hi"]
                .into_iter()
                .chain(flags.iter().copied()),
        )
    };
    // Its own template has no switch.
    run(&["--thinking=off"]).refused(4, &["thinking", "template"]);
    run(&["--reasoning-format=none", "--thinking-budget=5"]).refused(4, &["budget", "thinking"]);
    run(&["--reasoning-format=nope"]).refused(2, &["--reasoning-format", "`nope`", "harmony"]);
    run(&["--tool-format=nope"]).refused(2, &["--tool-format", "`nope`", "hermes"]);
    run(&["--thinking=loud"]).refused(2, &["--thinking", "medium"]);
    run(&["--thinking-budget=-1"]).refused(2, &["--thinking-budget", "at least 0"]);
    run(&["--show-reasoning=full", "--output=json"]).refused(2, &["--show-reasoning", "--output"]);
}

#[test]
fn reasoning_format_can_be_overridden() {
    let (letters, model) = (format!("--logit-bias={LETTER_A}=100"), golden("llama"));
    let files = Files::new();
    let template = files.write("template.jinja", TEMPLATE);
    let flags = [
        "-n",
        "3",
        "--template",
        &template,
        "--output=json",
        &letters,
    ];
    for (format, field) in [("think", "reasoning"), ("none", "text")] {
        let words = ["run", &model, "hi", "--reasoning-format", format];
        let json = loquat(words.into_iter().chain(flags)).quiet();
        let reply: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(reply[field], "AAA", "{format}: {json}");
    }
}
