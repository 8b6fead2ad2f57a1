//! The prompt and the parser agree on one tool-call format.

use std::fs;
use std::path::Path;

use loquat_chat::{ChatContext, ChatError, ChatRequest, Message, Role, Tool};
use loquat_grammar::Grammars;
use loquat_text::format::{FormatOverrides, OutputFormat};
use loquat_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

use crate::support::{GOLDEN, answer_with};

/// The tokens that select the built-in `llama3` template, and one that suggests Llama 3's calls.
const LLAMA3_TOKENS: [&str; 4] = [
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
];

/// The byte-level tokenizer with Llama 3's special tokens.
fn llama3_tokenizer() -> Tokenizer {
    let dir = tempfile::tempdir().expect("a directory");
    let path = Path::new(GOLDEN).join("tokenizer.json");
    let text = fs::read_to_string(path).expect("the golden tokenizer");
    let mut golden: Value = serde_json::from_str(&text).expect("JSON");
    let added = golden["added_tokens"].as_array_mut().expect("a list");
    added.retain(|token| {
        !token["content"]
            .as_str()
            .is_some_and(|it| it.contains("tool_call"))
    });
    let next = added.iter().filter_map(|token| token["id"].as_u64()).max();
    let mut id = next.expect("added tokens");
    for content in LLAMA3_TOKENS {
        id += 1;
        let mut token = added[0].clone();
        token["id"] = json!(id);
        token["content"] = json!(content);
        token["special"] = json!(true);
        added.push(token);
    }
    fs::write(dir.path().join("tokenizer.json"), golden.to_string()).expect("written");
    let config = json!({ "eos_token": "<|eot_id|>" }).to_string();
    fs::write(dir.path().join("tokenizer_config.json"), config).expect("written");
    Tokenizer::from_huggingface(dir.path()).expect("a tokenizer")
}

fn llama3(calls: Option<Option<&str>>) -> ChatContext {
    let tokenizer = llama3_tokenizer();
    let template = ChatTemplate::builtin_named("llama3");
    let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
    let named = |name| OutputFormat::named(None, name).expect("a format").calls;
    let overrides = FormatOverrides {
        calls: calls.map(named),
        ..FormatOverrides::default()
    };
    ChatContext::new(tokenizer, template, grammars, overrides)
}

fn request() -> ChatRequest {
    ChatRequest {
        messages: vec![Message::new(Role::User, "1+1?")],
        tools: vec![Tool {
            name: "add".into(),
            description: None,
            parameters: json!({"type": "object"}),
            strict: false,
        }],
        max_tokens: 100,
        ..ChatRequest::default()
    }
}

const HERMES_CALL: &str =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|eot_id|>";

#[test]
fn builtin_template_parses_the_calls_it_describes() {
    let context = llama3(None);
    let prompt = context.render(&request(), true).expect("a prompt");
    assert!(prompt.contains("</tool_call>"), "{prompt}");
    assert_eq!(
        context.format().calls.map(|calls| calls.name),
        Some("hermes")
    );

    let lowered = context.lower(request()).expect("lowered");
    let (_, _, reply) = answer_with(llama3_tokenizer(), lowered, HERMES_CALL);
    assert_eq!(reply.tool_calls.len(), 1, "{reply:?}");
    assert_eq!(reply.tool_calls[0].arguments, "{\"a\": 1}");
    assert_eq!(reply.text, "");
}

#[test]
fn override_the_prompt_cannot_describe_is_refused() {
    let error = llama3(Some(Some("llama_json"))).lower(request());
    let error = error.expect_err("two formats");
    assert!(matches!(
        error,
        ChatError::Unsupported { field: "tools", .. }
    ));
    assert!(error.to_string().contains("`llama_json`"), "{error}");

    let mut without_tools = request();
    without_tools.tools.clear();
    let context = llama3(Some(Some("llama_json")));
    assert!(context.lower(without_tools).is_ok());
}

#[test]
fn disabled_tool_format_leaves_calls_as_text() {
    let lowered = llama3(Some(None)).lower(request()).expect("lowered");
    let (_, _, reply) = answer_with(llama3_tokenizer(), lowered, HERMES_CALL);
    assert!(reply.tool_calls.is_empty(), "{reply:?}");
    assert!(reply.text.contains("<tool_call>"), "{reply:?}");
}
