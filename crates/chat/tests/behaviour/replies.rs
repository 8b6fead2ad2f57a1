//! Model output becomes reasoning, text and tool calls, under the request's constraints.

use loquat_chat::{
    ChatRequest, Effort, Message, Reply, ReplyEvent, Role, Thinking, Tool, ToolChoice,
};
use loquat_engine::FinishReason;
use loquat_grammar::GrammarSource;
use serde_json::json;

use crate::support::{answer, chat};

/// Supports tools and thinking as Qwen 3 does.
const QWEN: &str = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>\
    {\"name\": …, \"arguments\": …}</tool_call>{% endif %}{% for m in messages %}<|im_start|>\
    {{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n\
    {% endif %}";

fn request() -> ChatRequest {
    ChatRequest {
        messages: vec![Message::new(Role::User, "?")],
        max_tokens: 200,
        ..ChatRequest::default()
    }
}

fn tools(strict: bool) -> Vec<Tool> {
    ["add", "sub"]
        .map(|name| Tool {
            name: name.into(),
            description: None,
            parameters: json!({
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": false,
            }),
            strict,
        })
        .to_vec()
}

fn schema() -> GrammarSource {
    GrammarSource::JsonSchema(json!({
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": false,
    }))
}

fn said(request: ChatRequest, script: &str) -> Reply {
    let lowered = chat(QWEN).lower(request).expect("lowered");
    answer(lowered, script).2
}

#[test]
fn reply_ends_at_end_token() {
    let lowered = chat(QWEN).lower(request()).expect("lowered");
    let (completion, _, reply) = answer(lowered, "hello<|im_end|>");
    assert_eq!(reply.text, "hello");
    assert_eq!(completion.reason, FinishReason::Stop);
    assert_eq!(completion.usage.completion_tokens, 6);
}

#[test]
fn reasoning_text_and_calls_are_separated() {
    let script = "<think>\nhm\n</think>\n\nLet me add.\n<tool_call>\n\
        {\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>";
    let with_tools = ChatRequest {
        tools: tools(false),
        ..request()
    };
    let reply = said(with_tools, script);
    assert_eq!(reply.reasoning.trim(), "hm");
    assert_eq!(reply.text.trim(), "Let me add.");
    assert_eq!(reply.tool_calls.len(), 1);
    assert_eq!(reply.tool_calls[0].name, "add");
    assert_eq!(reply.tool_calls[0].arguments, "{\"a\": 1}");
    assert_eq!(reply.tool_calls[0].id.len(), 9);
    let message = reply.into_message();
    assert_eq!(message.role, Role::Assistant);
    assert_eq!(message.reasoning.as_deref().map(str::trim), Some("hm"));

    let reply = said(request(), script);
    assert!(reply.tool_calls.is_empty(), "no tools were offered");
    assert!(
        reply.text.contains("<tool_call>"),
        "so it is text: {reply:?}"
    );
}

#[test]
fn answer_follows_its_schema() {
    for (script, budget, thought) in [
        ("I would rather chat, on and on.", Some(0), ""),
        ("<think>\nhm</think>I would rather chat.", None, "hm"),
        ("{\"city\": \"Oslo\"}", None, ""),
    ] {
        let constrained = ChatRequest {
            answer: Some(schema()),
            thinking: Thinking {
                budget,
                effort: None,
            },
            ..request()
        };
        let lowered = chat(QWEN).lower(constrained).expect("lowered");
        let (completion, _, reply) = answer(lowered, script);
        assert_eq!(completion.reason, FinishReason::Stop, "{script}");
        let value: serde_json::Value = serde_json::from_str(&reply.text).expect(script);
        assert!(["Rome", "Oslo"].contains(&value["city"].as_str().expect("a city")));
        assert_eq!(reply.reasoning.trim(), thought, "{script}");
    }
}

#[test]
fn disabled_thinking_stays_off_under_constraint() {
    let off = ChatRequest {
        answer: Some(schema()),
        thinking: Thinking {
            effort: Some(Effort::Off),
            budget: None,
        },
        ..request()
    };
    let lowered = chat(QWEN).lower(off).expect("lowered");
    let reply = answer(lowered, "<think>\nhm</think>{").2;
    assert_eq!(reply.reasoning, "");
    assert!(reply.text.starts_with("{\"city\": "), "{reply:?}");
}

#[test]
fn budget_closes_reasoning() {
    for (budget, thought) in [(0, ""), (4, "on a")] {
        let bounded = ChatRequest {
            thinking: Thinking {
                budget: Some(budget),
                effort: None,
            },
            max_tokens: 40,
            ..request()
        };
        let script = "<think>on and on and on and on and on and on and on and on and on";
        let reply = said(bounded, script);
        assert_eq!(reply.reasoning.trim(), thought);
        assert!(!reply.text.is_empty(), "it goes on to answer");
    }
}

#[test]
fn tool_choice_is_enforced() {
    let script = "I call nobody. <tool_call>\n{\"name\": \"mul\", \"arguments\": {}}\n</tool_call>";
    let choose = |choice: ToolChoice, strict: bool| {
        let chosen = ChatRequest {
            tools: tools(strict),
            tool_choice: choice,
            ..request()
        };
        said(chosen, script)
    };
    for strict in [false, true] {
        let named = choose(ToolChoice::Named("sub".into()), strict);
        let names: Vec<&str> = named
            .tool_calls
            .iter()
            .map(|call| call.name.as_str())
            .collect();
        assert_eq!(names, ["sub"], "{named:?}");
        let required = choose(ToolChoice::Required, strict);
        assert!(!required.tool_calls.is_empty(), "{required:?}");
        for call in named.tool_calls.iter().chain(&required.tool_calls) {
            assert!(["add", "sub"].contains(&call.name.as_str()), "{call:?}");
        }
    }
    let none = choose(ToolChoice::None, false);
    assert!(none.tool_calls.is_empty());
    assert!(!none.text.contains("<tool_call>"), "{none:?}");
    let auto = choose(ToolChoice::Auto, false);
    assert!(auto.text.starts_with("I call nobody."), "{auto:?}");
}

#[test]
fn strict_arguments_follow_schema_in_optional_calls() {
    let strict = ChatRequest {
        tools: tools(true),
        max_tokens: 100,
        ..request()
    };
    let script = "Well. <tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": true}}\n</tool_call><|im_end|>";
    let lowered = chat(QWEN).lower(strict).expect("lowered");
    let (_, events, reply) = answer(lowered, script);
    assert!(reply.text.starts_with("Well."), "{reply:?}");
    let call = &reply.tool_calls[0];
    assert_eq!(call.name, "add");
    if events.contains(&ReplyEvent::CallEnd { index: 0 }) {
        let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
        assert!(arguments["a"].is_i64(), "{arguments}");
    } else {
        assert!(call.arguments.starts_with("{\"a\": "), "{call:?}");
    }
}

#[test]
fn unsupported_schema_names_field() {
    let unsupported = ChatRequest {
        answer: Some(GrammarSource::JsonSchema(json!({"not": {}}))),
        ..request()
    };
    let error = chat(QWEN).lower(unsupported).expect_err("not");
    assert!(error.to_string().contains("`not`"), "{error}");

    let mut bad = tools(true);
    bad[1].parameters = json!({"type": "object", "not": {"type": "null"}});
    let required = ChatRequest {
        tools: bad,
        tool_choice: ToolChoice::Required,
        ..request()
    };
    let error = chat(QWEN).lower(required).expect_err("not");
    let error = error.to_string();
    assert!(
        error.contains("`not`") && error.contains("`tools[1].parameters`"),
        "{error}"
    );
}
