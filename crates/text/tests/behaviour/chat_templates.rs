//! Loading chat templates, their variables and their errors.

use crate::common::{folder, metadata};
use loquat_text::{Blame, ChatInput, ChatTemplate, Clock, TextError};
use loquat_weights::gguf::Value as GgufValue;
use serde_json::{Value, json};

fn input() -> ChatInput {
    ChatInput {
        messages: json!([{"role": "user", "content": "hi <b>"}]),
        add_generation_prompt: true,
        bos_token: "<s>".to_owned(),
        eos_token: "</s>".to_owned(),
        ..ChatInput::default()
    }
}

fn render(template: &str) -> Result<String, TextError> {
    let clock = Clock::Fixed(1_767_323_045);
    ChatTemplate::new(template)?
        .with_clock(clock)
        .render(&input())
}

#[test]
fn templates_get_transformers_variables() {
    let cases = [
        (
            "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
            "<s>hi <b></s>",
        ),
        ("{% if add_generation_prompt %}A{% endif %}", "A"),
        ("{{ tools is none }}{{ tools is iterable }}", "TrueFalse"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{{ strftime_now('%d %B %Y') }}", "02 January 2026"),
        (
            "{{ messages | tojson }}",
            r#"[{"role": "user", "content": "hi <b>"}]"#,
        ),
        (
            "{{ {'a': [1]} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1\n  ]\n}",
        ),
        ("{{ 'é' | tojson(ensure_ascii=True) }}", "\"\\u00e9\""),
        ("{{ '  x '.strip().upper() }}", "X"),
        ("{{ messages }}", "[{'role': 'user', 'content': 'hi <b>'}]"),
        (
            "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "1",
        ),
        ("{% generation %}\nx{% endgeneration %}", "x"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        (
            "{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}",
            "2",
        ),
        ("{{ true | string }} {{ none | string }}", "True None"),
    ];
    for (template, text) in cases {
        let rendered = render(template).map_err(|error| error.to_string());
        assert_eq!(rendered.as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn raised_exception_keeps_the_templates_message() {
    let direct = "{{ raise_exception('Roles must alternate!') }}";
    let in_macro =
        "{% macro m() %}{{ raise_exception('Roles must alternate!') }}{% endmacro %}{{ m() }}";
    for template in [direct, in_macro] {
        match render(template) {
            Err(error @ TextError::TemplateRefused { .. }) => {
                assert_eq!(error.to_string(), "Roles must alternate!");
                assert_eq!(error.blame(), Blame::Request);
            }
            other => panic!("{template}: {other:?}"),
        }
    }
}

#[test]
fn other_failures_have_a_blame() {
    let cases = [
        ("{{ messages + 'x' }}", Blame::Request),
        ("{{ 1 | no_such_filter }}", Blame::System),
        ("{% if %}", Blame::System),
        ("{{ 'x'.encode() }}", Blame::System),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            Blame::System,
        ),
        ("{{ missing | tojson }}", Blame::Request),
    ];
    for (template, blame) in cases {
        let error = render(template).expect_err(template);
        assert!(
            !matches!(error, TextError::TemplateRefused { .. }),
            "{template}"
        );
        assert_eq!(error.blame(), blame, "{error}");
    }
}

#[test]
fn failures_name_cause_and_position() {
    let cases = [
        (
            "a\n{{ 'x' + 1 }}",
            "line 2: can only concatenate str (not \"int\") to str",
        ),
        (
            "\n\n{% if x %}",
            "line 3: the template ends before `elif` or `else` or `endif`",
        ),
        (
            "{% set y = 1 %}\n{{ messages[0].tools.name }}",
            "line 2: 'dict object' has no attribute 'tools'",
        ),
        (
            "{% macro m() %}\n{{ none.x.y }}{% endmacro %}\n{{ m() }}",
            "line 2: 'None' has no attribute 'x'",
        ),
        (
            "{{ 1 | no_such_filter }}",
            "line 1: No filter named 'no_such_filter'.",
        ),
        (
            "{% include 'x' %}",
            "line 1: `include` names another template, and there is only this one",
        ),
        (
            "{{ [1] | map('string') }}",
            "line 1: a generator has no text of its own",
        ),
        (
            "{{ 'x' | pprint }}",
            "line 1: the filter 'pprint' is not supported",
        ),
    ];
    for (template, why) in cases {
        let error = render(template).expect_err(template).to_string();
        assert!(error.ends_with(why), "{template}: {error}");
    }
}

#[test]
fn reasoning_is_set_under_every_name() {
    let template = "{% for m in messages %}{{ m.thinking }}/{{ m.reasoning_content }};{% endfor %}";
    let template = ChatTemplate::new(template).expect("a template");
    let messages = json!([
        {"role": "assistant", "reasoning_content": "a"},
        {"role": "assistant", "reasoning": "b"},
        {"role": "assistant", "thinking": "c", "reasoning_content": null},
        {"role": "assistant", "content": "d"},
    ]);
    let input = ChatInput {
        messages,
        ..input()
    };
    assert_eq!(template.render(&input).expect("text"), "a/a;b/b;c/c;/;");
}

#[test]
fn source_is_of_the_template_in_use() {
    let list = json!([
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
        {"name": "rag", "template": "{% broken"},
    ]);
    let dir = folder(&[("tokenizer_config.json", json!({"chat_template": list}))]);
    let named = ChatTemplate::from_huggingface(dir.path()).expect("a template");
    assert_eq!(
        (named.source(false), named.source(true)),
        ("plain", "tools")
    );
    let single = ChatTemplate::new("only").expect("a template");
    assert_eq!(
        (single.source(false), single.source(true)),
        ("only", "only")
    );
}

#[test]
fn request_variables_reach_the_template() {
    let template = ChatTemplate::new("{{ enable_thinking }}").expect("a template");
    let mut input = input();
    input.kwargs.insert("enable_thinking".into(), json!(false));
    assert_eq!(template.render(&input).expect("text"), "False");
}

#[test]
fn templates_are_found_in_every_location() {
    let list = json!([
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]);
    let cases: [(&str, Value, &str, &str); 3] = [
        (
            "chat_template.json",
            json!({"chat_template": "json"}),
            "json",
            "json",
        ),
        (
            "tokenizer_config.json",
            json!({"chat_template": "config"}),
            "config",
            "config",
        ),
        (
            "tokenizer_config.json",
            json!({"chat_template": list}),
            "plain",
            "tools",
        ),
    ];
    let with_tools = ChatInput {
        tools: Some(json!([])),
        ..input()
    };
    for (file, json, plain, tools) in cases {
        let dir = folder(&[(file, json)]);
        let template = ChatTemplate::from_huggingface(dir.path()).expect("a template");
        assert_eq!(template.render(&input()).expect("text"), plain, "{file}");
        assert_eq!(template.render(&with_tools).expect("text"), tools, "{file}");
        std::fs::write(dir.path().join("chat_template.jinja"), "jinja").expect("a file");
        let template = ChatTemplate::from_huggingface(dir.path()).expect("a template");
        assert_eq!(template.render(&input()).expect("text"), "jinja", "{file}");
    }

    let text = |text: &str| GgufValue::String(text.into());
    let gguf = metadata([
        ("tokenizer.chat_template", text("plain")),
        ("tokenizer.chat_template.tool_use", text("tools")),
        ("tokenizer.chat_templates", text("not a template")),
    ]);
    let template = ChatTemplate::from_gguf(&gguf).expect("a template");
    assert_eq!(template.render(&input()).expect("text"), "plain");
    assert_eq!(template.render(&with_tools).expect("text"), "tools");
}

#[test]
fn missing_template_is_an_error() {
    let empty = folder(&[("tokenizer_config.json", json!({"chat_template": null}))]);
    let refusals = [
        ChatTemplate::from_huggingface(empty.path()),
        ChatTemplate::from_gguf(&metadata([])),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Err(TextError::NoChatTemplate)));
    }
}
