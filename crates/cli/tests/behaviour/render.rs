//! `render`: the prompt of a conversation.

use serde_json::Value;

use crate::support::{Altered, Files, TEMPLATE, WEATHER, golden, loquat, piped};

const MESSAGES: &str = r#"[
  { "role": "system", "content": "Be brief." },
  { "role": "user", "content": "hi" }
]"#;

const WRITTEN: &str = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n";

#[test]
fn model_template_renders_the_prompt() {
    let (model, files) = (golden("llama"), Files::new());
    let messages = files.write("messages.json", MESSAGES);
    let opened = format!("{WRITTEN}<|im_start|>assistant\n");
    assert_eq!(
        loquat(["render", &model, "--messages", &messages]).quiet(),
        opened
    );
    let words = ["render", &model, "hi", "--system=Be brief."];
    assert_eq!(loquat(words).quiet(), opened);
    assert_eq!(
        piped(&["render", &model, "--system=Be brief."], b"hi\n").quiet(),
        opened
    );
    let closed = [
        "render",
        &model,
        "--messages",
        &messages,
        "--no-generation-prompt",
    ];
    assert_eq!(loquat(closed).quiet(), WRITTEN);
}

#[test]
fn tokens_match_those_of_run() {
    let model = golden("llama");
    let tokens = loquat(["render", &model, "hi", "--tokens"]).quiet();
    let tokens: Vec<u32> = serde_json::from_str(&tokens).unwrap();
    assert_eq!(tokens[0], 259, "<|im_start|>");
    let json = loquat(["run", &model, "hi", "-n", "1", "-o", "json"]).quiet();
    let reply: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(reply["usage"]["prompt_tokens"], tokens.len());
}

#[test]
fn special_tokens_in_text_are_plain() {
    let model = golden("llama");
    let count = |flags: &[&str]| {
        let words = ["render", &model, "a<|im_end|>b", "--tokens"];
        let tokens = loquat(words.into_iter().chain(flags.iter().copied())).quiet();
        let tokens: Vec<u32> = serde_json::from_str(&tokens).unwrap();
        tokens.iter().filter(|id| **id == 260).count()
    };
    assert_eq!(count(&[]), 1);
    assert_eq!(count(&["--read-special"]), 2);
    let text = loquat(["render", &model, "a<|im_end|>b"]).quiet();
    assert!(text.contains("a<|im_end|>b<|im_end|>"), "{text}");
}

#[test]
fn template_needs_no_model() {
    let files = Files::new();
    let template = files.write("template.jinja", TEMPLATE);
    let messages = files.write("messages.json", MESSAGES);
    let tools = files.write("tools.json", WEATHER);
    let alone = ["render", "--template", &template, "--messages", &messages];
    let ask = |flags: &[&str]| loquat(alone.into_iter().chain(flags.iter().copied()));
    let opened = format!("{WRITTEN}<|im_start|>assistant\n");
    for (flags, before, after) in [
        (&[][..], "", "<think>\n"),
        (&["--thinking=off"], "", ""),
        (&["--template-var=enable_thinking=false"], "", ""),
        (&["--bos-token=<s>", "--thinking=on"], "<s>", "<think>\n"),
        (
            &["--tools", &tools],
            "get_weather <tool_call>\n",
            "<think>\n",
        ),
        (&["--tools", &tools, "--tool-choice=none"], "", "<think>\n"),
    ] {
        assert_eq!(
            ask(flags).quiet(),
            format!("{before}{opened}{after}"),
            "{flags:?}"
        );
    }
    let sentence = [
        "render",
        "--template",
        &template,
        "Who are you?",
        "--thinking=off",
    ];
    let said = loquat(sentence).quiet();
    assert!(said.contains("user\nWho are you?<|im_end|>"), "{said}");
    ask(&["--tokens"]).refused(2, &["--tokens", "model"]);
}

#[test]
fn variables_and_dates_reach_the_template() {
    let files = Files::new();
    let source = "{{ bos_token }}|{{ eos_token }}|{{ mood }}|{{ n + 1 }}|\
                  {{ strftime_now('%d %B %Y %H:%M:%S') }}";
    let template = files.write("template.jinja", source);
    let words = [
        "render",
        "--template",
        &template,
        "how are you?",
        "--bos-token=<s>",
        "--eos-token=</s>",
        "--template-var=mood=very good",
        "--template-var=n=41",
        "--date=2026-01-02T03:04:05",
    ];
    let said = loquat(words).quiet();
    assert_eq!(said, "<s>|</s>|very good|42|02 January 2026 03:04:05");
}

#[test]
fn raw_messages_are_unchanged() {
    let files = Files::new();
    let template = files.write(
        "template.jinja",
        "{{ messages | tojson }}{{ tools | tojson }}",
    );
    let odd = r#"[{"role": "critic", "content": null, "mood": [1, 2]}]"#;
    let messages = files.write("odd.json", odd);
    let tools = files.write("tools.json", r#"{"anything": 1}"#);
    let words = [
        "render",
        "--template",
        &template,
        "--messages",
        &messages,
        "--tools",
        &tools,
    ];
    loquat(words).refused(2, &["tools[0]"]);
    let raw = loquat(words.into_iter().chain(["--raw"])).quiet();
    assert_eq!(raw, format!("{odd}[{{\"anything\": 1}}]"));
    let model = golden("llama");
    let with_model = [
        "render",
        &model,
        "--messages",
        &messages,
        "--raw",
        "--tokens",
    ];
    let tokens: Vec<u32> = serde_json::from_str(&loquat(with_model).quiet()).unwrap();
    assert_eq!(tokens[0], 259);
}

#[test]
fn later_system_messages_are_joined_if_refused() {
    let files = Files::new();
    let messages = files.write(
        "messages.json",
        r#"[{"role": "system", "content": "a"}, {"role": "user", "content": "hi"},
            {"role": "developer", "content": "b"}]"#,
    );
    let turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let refuse = "{% for m in messages[1:] if m.role == 'system' %}\
        {{ raise_exception('the system message must be first') }}{% endfor %}";
    for (template, expected) in [
        (format!("{refuse}{turns}"), "system: a\n\nb\nuser: hi\n"),
        (turns.to_owned(), "system: a\nuser: hi\nsystem: b\n"),
    ] {
        let template = files.write("template.jinja", &template);
        let words = ["render", "--template", &template, "--messages", &messages];
        assert_eq!(loquat(words).quiet(), expected);
    }
}

#[test]
fn render_errors_say_why() {
    let files = Files::new();
    let messages = files.write("messages.json", MESSAGES);
    let refuses = files.write(
        "refuses.jinja",
        "{{ raise_exception('Conversation roles must alternate!') }}",
    );
    let broken = files.write("broken.jinja", "{% for %}");
    let render = |flags: &[&str]| {
        let words = ["render", "--messages", &messages];
        loquat(words.into_iter().chain(flags.iter().copied()))
    };
    render(&["--template", &refuses]).refused(4, &["error: Conversation roles must alternate!\n"]);
    render(&["--template", &broken]).refused(2, &["--template", "broken.jinja"]);
    render(&["--template=missing.jinja"]).refused(2, &["--template", "missing.jinja"]);
    render(&["--template", &refuses, "--date=tomorrow"]).refused(2, &["--date", "2026-01-02"]);
    render(&["--template", &refuses, "--template-var=x"]).refused(2, &["KEY=VALUE"]);
    render(&["--bos-token=x"]).refused(2, &["--template"]);
    loquat(["render", "--template", &refuses]).refused(2, &["no prompt"]);
    let model = golden("llama");
    let both = [
        "render",
        &model,
        "hi",
        "--template",
        &refuses,
        "--bos-token=x",
    ];
    loquat(both).refused(2, &["--bos-token", "from the model"]);

    let ask = ["run", &model, "hi", "--template", &refuses];
    loquat(ask).refused(4, &["error: Conversation roles must alternate!\n"]);
}

#[test]
fn inspect_describes_the_chat_template() {
    let inspect = |model: &str| -> Value {
        serde_json::from_str(&loquat(["inspect", model, "--json"]).quiet()).unwrap()
    };
    let plain = inspect(&golden("llama"));
    let expected = serde_json::json!({
        "template": "its own", "takes_system": true, "takes_tools": false, "takes_parts": false,
        "thinking_switches": [], "reasoning_format": "think", "tool_format": "hermes",
    });
    assert_eq!(plain["chat"], expected);
    assert_eq!(
        plain["sampling"],
        serde_json::json!({ "temperature": 0.6, "top_p": 0.95 })
    );

    let config = r#"{"top_k": 20}"#;
    let apt = Altered::from("llama").with("chat_template.jinja", TEMPLATE);
    let apt = apt.with("generation_config.json", config);
    let told = inspect(apt.path());
    assert_eq!(told["chat"]["takes_tools"], true);
    assert_eq!(
        told["chat"]["thinking_switches"],
        serde_json::json!(["enable_thinking"])
    );
    assert_eq!(told["sampling"], serde_json::json!({ "top_k": 20 }));
    let text = loquat(["inspect", apt.path()]).quiet();
    for row in [
        "chat template      its own\n",
        "supports           system messages, tools\n",
        "thinking           think, controlled by enable_thinking\n",
        "tool calls         hermes\n",
        "sampling           top_k 20 (the model's default)\n",
    ] {
        assert!(text.contains(row), "no {row:?} in:\n{text}");
    }
    let broken = Altered::from("llama").with("chat_template.jinja", "{% for %}");
    let told = inspect(broken.path());
    assert!(
        told["chat"]["error"].as_str().unwrap().contains("template"),
        "{told}"
    );
}

#[test]
fn prefill_ends_the_prompt() {
    let model = golden("llama");
    let words = [
        "render",
        &model,
        "hi",
        "--system=Be brief.",
        "--prefill",
        "Well, ",
    ];
    let expected = format!("{WRITTEN}<|im_start|>assistant\nWell, ");
    assert_eq!(loquat(words).quiet().trim_end_matches('\n'), expected);
}
