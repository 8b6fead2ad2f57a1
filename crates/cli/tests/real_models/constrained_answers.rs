//! SmolLM2 through the binary, with constraints and tools.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn loquat(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquat"));
    command.args(args).stdin(Stdio::null());
    command.output().unwrap()
}

/// SmolLM2's greedy answer to a question with these flags.
#[track_caller]
fn ask(question: &str, flags: &[&str]) -> Value {
    let words = [
        "run",
        "smollm2:135m",
        question,
        "-t0",
        "-n200",
        "--output=json",
    ];
    let output = loquat(&[&words[..], flags].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(reply: &Value) -> &str {
    reply["text"].as_str().unwrap()
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn answer_follows_schema() {
    let schema = r#"{
      "type": "object",
      "properties": {
        "name": { "type": "string", "maxLength": 30 },
        "age": { "type": "integer", "minimum": 0, "maximum": 150 },
        "colours": {
          "type": "array", "minItems": 1, "maxItems": 3,
          "items": { "enum": ["red", "green", "blue"] }
        }
      },
      "required": ["name", "age", "colours"],
      "additionalProperties": false
    }"#;
    let reply = ask("Describe a person called Ann.", &["--json-schema", schema]);
    assert_eq!(reply["finish_reason"], "stop");
    let person: Value = serde_json::from_str(text(&reply)).unwrap();
    let keys: Vec<&String> = person.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "age", "colours"]);
    assert!(
        person["name"].as_str().unwrap().chars().count() <= 30,
        "{person}"
    );
    assert!(
        (0..=150).contains(&person["age"].as_i64().unwrap()),
        "{person}"
    );
    let colours = person["colours"].as_array().unwrap();
    assert!((1..=3).contains(&colours.len()), "{person}");
    let known = |colour: &Value| ["red", "green", "blue"].contains(&colour.as_str().unwrap());
    assert!(colours.iter().all(known), "{person}");
}

#[test]
fn answer_matches_regex_or_choice() {
    let date = ask(
        "When did the moon landing happen?",
        &["--regex", r"\d{4}-\d{2}-\d{2}"],
    );
    let parts: Vec<&str> = text(&date).split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    assert_eq!(lengths, [4, 2, 2], "{date}");
    assert!(
        parts.iter().all(|part| part.parse::<u32>().is_ok()),
        "{date}"
    );

    let sky = ask(
        "What colour is the sky?",
        &["--choice=green", "--choice=blue"],
    );
    assert_eq!(text(&sky), "blue");
    assert_eq!(sky["finish_reason"], "stop");
}

#[test]
fn required_tool_is_called() {
    let folder = TempDir::new().unwrap();
    let tools = write(
        folder.path(),
        "tools.json",
        r#"[
          { "type": "function", "function": { "name": "get_weather", "strict": true,
            "description": "The weather of a city.",
            "parameters": { "type": "object", "additionalProperties": false,
              "properties": { "city": { "type": "string", "maxLength": 20 } },
              "required": ["city"] } } },
          { "type": "function", "function": { "name": "get_time" } }
        ]"#,
    );
    let question = "What is the weather in Paris?";
    for choice in ["required", "get_weather"] {
        let flags = [
            "--tools",
            &tools,
            "--tool-choice",
            choice,
            "--no-parallel-tool-calls",
        ];
        let reply = ask(question, &flags);
        assert_eq!(reply["finish_reason"], "tool_calls", "{reply}");
        let call = &reply["tool_calls"][0];
        assert_eq!(call["name"], "get_weather", "{reply}");
        assert_eq!(call["arguments"]["city"], "Paris", "{reply}");
    }
    let time = ask(question, &["--tools", &tools, "--tool-choice=get_time"]);
    assert_eq!(time["tool_calls"][0]["name"], "get_time", "{time}");
}

#[test]
fn thinking_budget_needs_thinking_format() {
    let output = loquat(&["run", "smollm2:135m", "hi", "--thinking-budget=10"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("thinking budget"), "{stderr}");
}
