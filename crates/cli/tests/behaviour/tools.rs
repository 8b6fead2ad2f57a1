//! Tools and tool calls.

use serde_json::Value;

use crate::support::{Altered, Files, Outcome, TEMPLATE, WEATHER, golden, loquat, piped};

fn ask(flags: &[&str]) -> Outcome {
    // Tools in words take more than the tiny model's own context.
    let model = Altered::endless();
    let words = [
        "run",
        model.path(),
        "Is it raining?",
        "--seed=5",
        "-t1",
        "--reasoning-format=none",
    ];
    loquat(words.into_iter().chain(flags.iter().copied()))
}

#[test]
fn required_call_is_one_json_line() {
    let files = Files::new();
    let tools = files.write("tools.json", WEATHER);
    let template = files.write("template.jinja", TEMPLATE);
    for choice in ["required", "get_weather"] {
        // Rendered by a template with tools, or described in a system message.
        for way in [&["--template", &template, "--thinking=off"][..], &[]] {
            let flags = [
                "--tools",
                &tools,
                "--tool-choice",
                choice,
                "--no-parallel-tool-calls",
            ];
            let said = ask(&[&flags, way].concat()).quiet();
            let call: Value = serde_json::from_str(&said).expect(&said);
            assert_eq!(call["name"], "get_weather");
            assert_eq!(call["id"].as_str().unwrap().len(), 9);
            let arguments = &call["arguments"];
            assert!(
                ["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()),
                "{said}"
            );
            assert!(
                [1, 2].contains(&arguments["days"].as_i64().unwrap()),
                "{said}"
            );
        }
    }
}

#[test]
fn json_separates_calls_from_text() {
    let files = Files::new();
    let tools = files.write("tools.json", &format!("[{WEATHER}]"));
    let flags = [
        "--tools",
        &tools,
        "--tool-choice=required",
        "--no-parallel-tool-calls",
    ];
    let json = ask(&[&flags[..], &["--output=json"]].concat()).quiet();
    let reply: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(reply["finish_reason"], "tool_calls");
    assert_eq!(reply["text"], "");
    assert_eq!(reply["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(reply["tool_calls"][0]["name"], "get_weather");

    let lines = ask(&[&flags[..], &["--output=events"]].concat()).quiet();
    let events: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str| {
        events
            .iter()
            .filter(|event| event["type"] == kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("call_start").len(), 1);
    assert_eq!(of("call_end").len(), 1);
    let arguments = of("call_arguments");
    let arguments: String = arguments
        .iter()
        .filter_map(|event| event["json"].as_str())
        .collect();
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    assert_eq!(arguments, reply["tool_calls"][0]["arguments"]);
    assert_eq!(events.last().unwrap()["finish_reason"], "tool_calls");
}

#[test]
fn tool_choice_none_prevents_calls() {
    let files = Files::new();
    let tools = files.write("tools.json", WEATHER);
    // The token that opens a call.
    let bias = "--logit-bias=263=100";
    let flags = ["--tools", &tools, bias, "-n", "8", "--output=json"];
    for choice in ["none", "auto"] {
        let said = ask(&[&flags[..], &["--tool-choice", choice]].concat()).quiet();
        assert_eq!(
            said.contains("<tool_call>"),
            choice == "auto",
            "{choice}: {said}"
        );
    }
}

const CONVERSATION: &str = r#"[
  { "role": "system", "content": "Be brief." },
  { "role": "user", "content": [{ "type": "text", "text": "Rain?" }] },
  { "role": "assistant", "content": null, "reasoning_content": "Look.", "tool_calls": [
    { "id": "a1b2c3d4e", "type": "function",
      "function": { "name": "get_weather", "arguments": "{\"city\": \"Rome\"}" } }] },
  { "role": "tool", "tool_call_id": "a1b2c3d4e", "content": "Rain." }
]"#;

#[test]
fn messages_come_from_file_or_stdin() {
    let files = Files::new();
    let tools = files.write("tools.json", WEATHER);
    let messages = files.write("messages.json", CONVERSATION);
    let model = Altered::endless();
    let flags = [
        "--tools",
        &tools,
        "-n3",
        "--logit-bias=32=100",
        "--seed=1",
        "-ojson",
    ];
    let ask = |messages: &str| {
        let words = ["run", model.path(), "--messages", messages];
        piped(&[&words[..], &flags].concat(), CONVERSATION.as_bytes()).quiet()
    };
    let said = ask(&messages);
    assert!(said.contains("\"text\":\"AAA\""), "{said}");
    assert_eq!(ask("-"), said);
}

#[test]
fn invalid_tools_and_messages_name_field() {
    let files = Files::new();
    let tools = files.write("tools.json", WEATHER);
    let nameless = files.write(
        "nameless.json",
        "[{\"type\": \"function\", \"function\": {}}]",
    );
    let twice = files.write("twice.json", &format!("[{WEATHER}, {WEATHER}]"));
    let text = files.write("text.json", "not JSON");
    let role = files.write("role.json", "[{\"role\": \"bot\", \"content\": \"hi\"}]");
    let key = files.write(
        "key.json",
        "[{\"role\": \"user\", \"content\": \"hi\", \"mood\": 1}]",
    );
    let empty = files.write("empty.json", "[]");
    let hi = files.write("hi.json", "[{\"role\": \"user\", \"content\": \"hi\"}]");
    let cases: [(&[&str], i32, &[&str]); 14] = [
        (
            &["hi", "--tools=missing.json"],
            2,
            &["--tools", "cannot read missing.json"],
        ),
        (
            &["hi", "--tools", &text],
            2,
            &["--tools", "text.json is not valid JSON"],
        ),
        (
            &["hi", "--tools", &nameless],
            2,
            &["--tools", "`tools[0].function.name` is missing"],
        ),
        (
            &["hi", "--tools", &twice],
            4,
            &["`get_weather`", "another tool"],
        ),
        (
            &["hi", "--tools", &tools, "--tool-choice=nope"],
            4,
            &["`nope`", "get_weather"],
        ),
        (&["hi", "--tool-choice=required"], 2, &["--tools"]),
        (&["hi", "--no-parallel-tool-calls"], 2, &["--tools"]),
        (
            &["hi", "--tools", &tools, "--tool-choice="],
            2,
            &["--tool-choice", "required"],
        ),
        (
            &["--messages=missing.json"],
            2,
            &["--messages", "cannot read missing.json"],
        ),
        (&["--messages", &text], 2, &["--messages", "not valid JSON"]),
        (
            &["--messages", &role],
            2,
            &["`messages[0].role`", "`bot`", "assistant"],
        ),
        (
            &["--messages", &key],
            2,
            &["`messages[0].mood`", "unknown field", "content"],
        ),
        (&["--messages", &empty], 4, &["`messages` is empty"]),
        (
            &["--messages", &hi, "--system=Be kind."],
            2,
            &["--messages", "--system"],
        ),
    ];
    let model = golden("llama");
    for (flags, code, words) in cases {
        loquat(["run", &model].into_iter().chain(flags.iter().copied())).refused(code, words);
    }
    loquat(["run", &model, "hi", "--messages", &hi]).refused(2, &["--messages"]);
    loquat(["run", "hi there", "--messages", &hi]).refused(2, &["--messages"]);
}
