//! Probes of template features.

use loquat_text::{ChatTemplate, ThinkingSwitch, ThinkingValues};
use serde_json::Value;

fn template(text: &str) -> ChatTemplate {
    ChatTemplate::new(text).expect(text)
}

type Probe = fn(&ChatTemplate) -> bool;

#[test]
fn probes_detect_template_features() {
    let parts: Probe = ChatTemplate::takes_parts;
    let tools: Probe = ChatTemplate::supports_tools;
    let system: Probe = ChatTemplate::supports_system;
    let as_text: Probe = ChatTemplate::arguments_as_text;
    let cases = [
        (
            "content as it is",
            parts,
            false,
            "{{ messages[0].content }}",
        ),
        (
            "content added to text",
            parts,
            false,
            "{{ 'x' + messages[0].content }}",
        ),
        (
            "content as JSON",
            parts,
            false,
            "{{ messages[0].content | tojson }}",
        ),
        (
            "parts in a loop",
            parts,
            true,
            "{% for p in messages[0].content %}{{ p.text }}{% endfor %}",
        ),
        (
            "parts, and \"type\" in its own words",
            parts,
            true,
            "Give \"type\". {% for p in messages[0].content %}{{ p.text }}{% endfor %}",
        ),
        ("no tools", tools, false, "{{ messages[0].content }}"),
        ("tools as JSON", tools, true, "{{ tools | tojson }}"),
        (
            "tools, but refused",
            tools,
            false,
            "{% if tools %}{{ raise_exception('no tools') }}{% endif %}",
        ),
        (
            "every message",
            system,
            true,
            "{% for m in messages %}{{ m.content }}{% endfor %}",
        ),
        (
            "system messages left out",
            system,
            false,
            "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
        ),
        (
            "system messages refused",
            system,
            false,
            "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}",
        ),
        ("arguments as JSON", as_text, false, &calls("| tojson")),
        ("arguments as they are", as_text, true, &calls("")),
        ("arguments added to text", as_text, true, &calls("+ ''")),
        (
            "arguments one by one",
            as_text,
            false,
            &calls(".items() | map('join', '=') | join"),
        ),
        ("no calls", as_text, false, "{{ messages[0].content }}"),
    ];
    for (what, probe, wanted, text) in cases {
        let template = template(text);
        assert_eq!(probe(&template), wanted, "{what}");
        assert_eq!(probe(&template), wanted, "{what}, asked again");
    }
}

/// A template that writes the arguments of every call, through this.
fn calls(through: &str) -> String {
    format!(
        "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}\
         {{{{ c.function.arguments {through} }}}}{{% endfor %}}{{% endfor %}}"
    )
}

#[test]
fn thinking_switches_are_detected() {
    let flag = |variable| ThinkingSwitch {
        variable,
        values: ThinkingValues::Flag,
    };
    let effort = ThinkingSwitch {
        variable: "reasoning_effort",
        values: ThinkingValues::Effort,
    };
    let cases: [(&str, &[ThinkingSwitch]); 7] = [
        (
            "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
            &[flag("enable_thinking")],
        ),
        (
            "{% set thinking = thinking | default(false) %}{{ '<think>' if thinking }}",
            &[flag("thinking")],
        ),
        (
            "Reasoning: {{ reasoning_effort | default('medium') }}",
            &[effort],
        ),
        (
            "{{ thinking }}{{ reasoning_effort }}",
            &[flag("thinking"), effort],
        ),
        (
            "{% if thinking_budget == 0 %}<no_think>{% endif %}",
            &[ThinkingSwitch {
                variable: "thinking_budget",
                values: ThinkingValues::Budget,
            }],
        ),
        // A message field, and a variable without effect.
        (
            "{{ messages[0].thinking }}{% set thinking = 1 %}{{ thinking }}",
            &[],
        ),
        ("thinking", &[]),
    ];
    for (text, wanted) in cases {
        let template = template(text);
        assert_eq!(template.thinking_switches(), wanted, "{text}");
        assert_eq!(template.thinking_switch(), wanted.first().copied());
    }
}

#[test]
fn corpus_templates_probe_as_expected() {
    let Some(dir) = crate::common::shared("templates") else {
        return;
    };
    let text = std::fs::read_to_string(dir.join("corpus.json")).expect("the corpus");
    let corpus: Value = serde_json::from_str(&text).expect("JSON");
    let find = |name: &str| {
        let entries = corpus.as_object().expect("an object").values();
        let named = |entry: &&Value| entry["names"].to_string().contains(name);
        let found = entries.into_iter().find(named).expect(name);
        template(found["template"].as_str().expect("a template"))
    };
    // Name, then parts, tools, system, arguments as text, and the thinking switch.
    let cases = [
        (
            "Qwen-Qwen3-0.6B",
            [false, true, true, false],
            Some("enable_thinking"),
        ),
        ("google-gemma-2-2b-it", [false, false, false, false], None),
        ("meta-llama-Llama-3.1-8B", [false, true, true, false], None),
        ("Phi-3.5-mini", [false, false, true, false], None),
        (
            "tool_chat_template_deepseekv31",
            [false, true, true, false],
            Some("thinking"),
        ),
        (
            "tool_chat_template_phi4_mini",
            [false, true, true, true],
            None,
        ),
        (
            "ByteDance-Seed-OSS",
            [false, true, true, false],
            Some("thinking_budget"),
        ),
        (
            "openai-gpt-oss-120b",
            [false, true, true, false],
            Some("reasoning_effort"),
        ),
        ("Mistral-Small-3.2", [true, true, true, false], None),
        (
            "GLM-4.6",
            [true, true, true, false],
            Some("enable_thinking"),
        ),
    ];
    for (name, [parts, tools, system, as_text], thinking) in cases {
        let template = find(name);
        assert_eq!(template.takes_parts(), parts, "{name}: parts");
        assert_eq!(template.supports_tools(), tools, "{name}: tools");
        assert_eq!(template.supports_system(), system, "{name}: system");
        assert_eq!(template.arguments_as_text(), as_text, "{name}: arguments");
        let switch = template.thinking_switch().map(|switch| switch.variable);
        assert_eq!(switch, thinking, "{name}: thinking");
    }
}
