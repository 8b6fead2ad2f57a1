use loquat_chat::{
    ChatContext, Effort, Message, MessageContent, Role, Thinking, Tool, ToolCall, ToolChoice,
};
use loquat_engine::{Logprobs, SamplingParams};
use loquat_grammar::{GrammarSource, Grammars};
use loquat_text::ChatTemplate;
use loquat_text::format::{FormatOverrides, OutputFormat};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::field::FieldPath;
use crate::openai::chat::ChatCompletionRequest;
use crate::openai::chat::lower::{LoweredChatCompletion, lower};
use crate::openai::options::Streaming;
use crate::testing;
use crate::unknown_fields::FieldPolicy;
use crate::wire::JsonBody;

fn lowered(request: &Value) -> Result<LoweredChatCompletion, ApiError> {
    lower_with(request, &testing::chat())
}

fn lower_with(request: &Value, chat: &ChatContext) -> Result<LoweredChatCompletion, ApiError> {
    let bytes = request.to_string();
    let body = JsonBody::<ChatCompletionRequest>::read(bytes.as_bytes(), FieldPolicy::Lenient)?;
    lower(body, chat, &SamplingParams::greedy())
}

/// A request of one message, with more in it.
fn with(more: &Value) -> Value {
    let mut request = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }] });
    let more = more.as_object().expect("an object");
    request.as_object_mut().expect("one").extend(more.clone());
    request
}

fn accepted(more: &Value) -> LoweredChatCompletion {
    lowered(&with(more)).unwrap_or_else(|error| panic!("{more}: {error:?}"))
}

fn lowered_messages(messages: &Value) -> Vec<Message> {
    let lowered = lowered(&json!({ "messages": messages }));
    lowered
        .unwrap_or_else(|error| panic!("{messages}: {error:?}"))
        .chat
        .messages
}

#[test]
fn messages_keep_roles_and_content() {
    let call = json!({ "id": "1", "type": "function", "index": 0,
        "function": { "name": "f", "arguments": "" } });
    let called = Message {
        tool_calls: vec![ToolCall {
            id: "1".to_owned(),
            name: "f".to_owned(),
            arguments: "{}".to_owned(),
        }],
        ..Message::new(Role::Assistant, "")
    };
    let thought = Message {
        reasoning: Some("hm".to_owned()),
        ..Message::new(Role::Assistant, "yes")
    };
    let parts =
        |parts: &[&str]| MessageContent::Parts(parts.iter().map(|part| (*part).into()).collect());
    let cases = [
        (
            json!({ "role": "system", "content": "be" }),
            Message::new(Role::System, "be"),
        ),
        (
            json!({ "role": "developer", "content": "be" }),
            Message::new(Role::Developer, "be"),
        ),
        (
            json!({ "role": "user", "name": "ada", "content": [
                { "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }),
            Message {
                content: parts(&["a", "b"]),
                name: Some("ada".to_owned()),
                ..Message::new(Role::User, "")
            },
        ),
        (
            json!({ "role": "assistant", "content": "yes", "reasoning_content": "hm",
                "reasoning": "hm" }),
            thought.clone(),
        ),
        (
            json!({ "role": "assistant", "content": "yes", "reasoning": "hm" }),
            thought,
        ),
        // The SDK's form of a reply that is sent back.
        (
            json!({ "role": "assistant", "content": null, "refusal": null, "audio": null,
                "annotations": [], "function_call": null, "tool_calls": [call] }),
            called.clone(),
        ),
        // Arguments as an object, and none.
        (
            json!({ "role": "assistant", "tool_calls": [
                { "id": "1", "function": { "name": "f", "arguments": {} } }] }),
            called.clone(),
        ),
        (
            json!({ "role": "assistant", "tool_calls": [
                { "id": "1", "function": { "name": "f" } }] }),
            called,
        ),
        (
            json!({ "role": "assistant", "content": null, "refusal": "no" }),
            Message::new(Role::Assistant, "no"),
        ),
        (
            json!({ "role": "assistant", "content": [{ "type": "refusal", "refusal": "no" }] }),
            Message {
                content: parts(&["no"]),
                ..Message::new(Role::Assistant, "")
            },
        ),
        (
            json!({ "role": "tool", "content": "4", "tool_call_id": "1" }),
            Message {
                tool_call_id: Some("1".to_owned()),
                ..Message::new(Role::Tool, "4")
            },
        ),
    ];
    for (wire, expected) in cases {
        assert_eq!(
            lowered_messages(&json!([wire.clone()])),
            [expected],
            "{wire}"
        );
    }
}

#[test]
fn invalid_message_names_its_field() {
    let part = |part: Value| json!([{ "role": "user", "content": [part] }]);
    let cases = [
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (
            json!([{ "role": "wizard", "content": "" }]),
            "messages[0].role",
        ),
        (json!([{ "content": "" }]), "messages[0].role"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (
            json!([{ "role": "user", "content": null }]),
            "messages[0].content",
        ),
        (
            json!([{ "role": "user", "content": 7 }]),
            "messages[0].content",
        ),
        (
            json!([{ "role": "user", "content": "", "nane": "good" }]),
            "messages[0].nane",
        ),
        (
            json!([{ "role": "user", "content": "", "audio": {} }]),
            "messages[0].audio",
        ),
        (
            json!([{ "role": "assistant", "content": "", "annotations": [{}] }]),
            "messages[0].annotations",
        ),
        (
            json!([{ "role": "assistant", "content": "", "function_call": {} }]),
            "messages[0].function_call",
        ),
        (
            json!([{ "role": "user", "content": "", "reasoning": "hm" }]),
            "messages[0].reasoning",
        ),
        (
            json!([{ "role": "assistant", "content": "", "reasoning": "a",
                "reasoning_content": "b" }]),
            "messages[0].reasoning",
        ),
        (
            json!([{ "role": "user", "content": "", "tool_call_id": "1" }]),
            "messages[0].tool_call_id",
        ),
        (
            json!([{ "role": "tool", "content": "" }]),
            "messages[0].tool_call_id",
        ),
        (
            json!([{ "role": "user", "content": "" }, { "role": "assistant", "tool_calls": [
                { "id": "1", "function": { "name": "f", "arguments": [1] } }] }]),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            part(json!({ "type": "text" })),
            "messages[0].content[0].text",
        ),
        (
            part(json!({ "type": "text", "text": 1 })),
            "messages[0].content[0].text",
        ),
        (
            part(json!({ "type": "smell" })),
            "messages[0].content[0].type",
        ),
        (
            part(json!({ "type": "text", "text": "", "refusal": "" })),
            "messages[0].content[0].refusal",
        ),
        (
            part(json!({ "type": "refusal", "refusal": "" })),
            "messages[0].content[0].refusal",
        ),
        (
            part(json!({ "type": "image_url", "image_url": { "url": "data:," } })),
            "messages[0].content[0].image_url",
        ),
        (
            part(json!({ "type": "input_audio", "input_audio": {} })),
            "messages[0].content[0].input_audio",
        ),
        (
            part(json!({ "type": "file", "file": {} })),
            "messages[0].content[0].file",
        ),
    ];
    for (messages, param) in cases {
        let error = lowered(&json!({ "messages": messages })).expect_err("refused");
        assert_eq!(
            error.param,
            Some(FieldPath::verbatim(param)),
            "{messages} {}",
            error.message
        );
        assert!(error.message.contains('`'), "{}", error.message);
    }
}

#[test]
fn invalid_field_is_named() {
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    let cases = [
        (json!({ "max_token": 1 }), "max_token"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 129 }), "n"),
        (json!({ "n": "two" }), "n"),
        (json!({ "stream": "yes" }), "stream"),
        (
            json!({ "stream_options": { "include_usage": true } }),
            "stream_options",
        ),
        (
            json!({ "stream": true, "stream_options": { "include_usge": 1 } }),
            "stream_options.include_usge",
        ),
        (json!({ "stop": vec!["x"; 65] }), "stop"),
        (json!({ "stop": 7 }), "stop"),
        (json!({ "stop": ["a", 7] }), "stop[1]"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (
            json!({ "logprobs": true, "top_logprobs": 21 }),
            "top_logprobs",
        ),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (
            json!({ "max_completion_tokens": 0 }),
            "max_completion_tokens",
        ),
        (
            json!({ "max_completion_tokens": 1, "max_tokens": 2 }),
            "max_tokens",
        ),
        (json!({ "max_tokens": -2 }), "max_tokens"),
        (
            json!({ "thinking_budget": 1, "thinking_token_budget": 2 }),
            "thinking_token_budget",
        ),
        (json!({ "reasoning_effort": "utmost" }), "reasoning_effort"),
        (json!({ "modalities": ["text", "audio"] }), "modalities[1]"),
        (json!({ "modalities": [] }), "modalities"),
        (json!({ "temperature": "warm" }), "temperature"),
        (json!({ "logit_bias": { "word": true } }), "logit_bias"),
        (json!({ "seed": 1.5 }), "seed"),
        (
            json!({ "tools": [{ "type": "function", "function": {} }] }),
            "tools[0].function.name",
        ),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "f",
                "parameters": "none" } }] }),
            "tools[0].function.parameters",
        ),
        (
            json!({ "tools": tool, "tool_choice": "maybe" }),
            "tool_choice",
        ),
        (
            json!({ "tools": tool, "tool_choice": { "type": "function" } }),
            "tool_choice.function",
        ),
        (
            json!({ "tools": tool, "tool_choice": { "type": "allowed_tools",
                "allowed_tools": { "mode": "auto", "tools": [] } } }),
            "tool_choice.allowed_tools",
        ),
        (
            json!({ "response_format": { "type": "yaml" } }),
            "response_format.type",
        ),
        (
            json!({ "response_format": { "type": "json_schema" } }),
            "response_format.json_schema",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x" } } }),
            "response_format.json_schema.schema",
        ),
        (
            json!({ "response_format": { "type": "text", "json_schema": { "schema": {} } } }),
            "response_format.json_schema",
        ),
        (
            json!({ "response_format": { "type": "json_object" }, "guided_regex": "a" }),
            "guided_regex",
        ),
        (json!({ "guided_json": "{" }), "guided_json"),
        (json!({ "guided_choice": "a" }), "guided_choice"),
        (json!({ "structured_outputs": {} }), "structured_outputs"),
        (
            json!({ "structured_outputs": { "regex": "a", "choice": ["b"] } }),
            "structured_outputs",
        ),
        (
            json!({ "structured_outputs": { "jsn": 1 } }),
            "structured_outputs.jsn",
        ),
        (json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs"),
        (json!({ "audio": {} }), "audio"),
        (json!({ "web_search_options": {} }), "web_search_options"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "function_call": "auto" }), "function_call"),
    ];
    for (more, param) in cases {
        let error = lowered(&with(&more)).map(|_| ()).expect_err("refused");
        assert_eq!(
            error.param,
            Some(FieldPath::verbatim(param)),
            "{more} {}",
            error.message
        );
    }
}

#[test]
fn answer_formats_become_constraints() {
    let schema = json!({ "type": "object", "properties": {} });
    let json_schema = Some(GrammarSource::JsonSchema(schema.clone()));
    let gbnf = "root ::= \"a\"";
    let lark = "start: \"a\"";
    let cases = [
        (json!({}), None),
        (json!({ "response_format": { "type": "text" } }), None),
        (
            json!({ "response_format": { "type": "json_object" } }),
            Some(GrammarSource::JsonObject),
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": {
                "name": "x", "strict": true, "schema": schema } } }),
            json_schema.clone(),
        ),
        (json!({ "guided_json": schema }), json_schema.clone()),
        (
            json!({ "response_format": { "type": "json_object", "schema": schema } }),
            json_schema.clone(),
        ),
        (
            json!({ "response_format": { "type": "json_schema", "schema": schema } }),
            json_schema.clone(),
        ),
        (json!({ "json_schema": schema }), json_schema.clone()),
        (
            json!({ "grammar": gbnf }),
            Some(GrammarSource::Gbnf(gbnf.to_owned())),
        ),
        (json!({ "grammar": "" }), None),
        (
            json!({ "guided_json": schema.to_string() }),
            json_schema.clone(),
        ),
        (
            json!({ "structured_outputs": { "json": schema } }),
            json_schema,
        ),
        (
            json!({ "structured_outputs": { "json_object": true } }),
            Some(GrammarSource::JsonObject),
        ),
        (
            json!({ "guided_regex": "a+" }),
            Some(GrammarSource::Regex("a+".to_owned())),
        ),
        (
            json!({ "guided_choice": ["a"] }),
            Some(GrammarSource::Choice(vec!["a".to_owned()])),
        ),
        (
            json!({ "guided_grammar": gbnf }),
            Some(GrammarSource::Gbnf(gbnf.to_owned())),
        ),
        (
            json!({ "guided_grammar": lark }),
            Some(GrammarSource::Lark(lark.to_owned())),
        ),
        // `text` does not conflict with another constraint.
        (
            json!({ "response_format": { "type": "text" }, "guided_regex": "a" }),
            Some(GrammarSource::Regex("a".to_owned())),
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(accepted(&more).chat.answer, expected, "{more}");
    }
}

#[test]
fn reasoning_effort_maps_to_thinking() {
    let cases = [
        (json!({}), None, None),
        (
            json!({ "reasoning_effort": "none" }),
            Some(Effort::Off),
            None,
        ),
        (
            json!({ "reasoning_effort": "minimal" }),
            Some(Effort::Low),
            None,
        ),
        (
            json!({ "reasoning_effort": "low" }),
            Some(Effort::Low),
            None,
        ),
        (
            json!({ "reasoning_effort": "medium" }),
            Some(Effort::Medium),
            None,
        ),
        (
            json!({ "reasoning_effort": "high" }),
            Some(Effort::High),
            None,
        ),
        (
            json!({ "reasoning_effort": "xhigh" }),
            Some(Effort::High),
            None,
        ),
        (
            json!({ "reasoning_effort": "max" }),
            Some(Effort::High),
            None,
        ),
        (json!({ "enable_thinking": false }), Some(Effort::Off), None),
        (json!({ "enable_thinking": true }), Some(Effort::On), None),
        (
            json!({ "chat_template_kwargs": { "enable_thinking": false } }),
            Some(Effort::Off),
            None,
        ),
        (
            json!({ "enable_thinking": true, "reasoning_effort": "low" }),
            Some(Effort::Low),
            None,
        ),
        (json!({ "thinking_budget": 5 }), None, Some(5)),
        (json!({ "thinking_token_budget": 5 }), None, Some(5)),
    ];
    for (more, effort, budget) in cases {
        let expected = Thinking { effort, budget };
        assert_eq!(accepted(&more).chat.thinking, expected, "{more}");
    }
}

#[test]
fn tools_and_their_choice_are_lowered() {
    let parameters = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
    let lowered = accepted(&json!({
        "tools": [
            { "type": "function", "function": { "name": "f", "description": "does",
                "parameters": parameters, "strict": true } },
            { "type": "function", "function": { "name": "g" } },
        ],
        "tool_choice": { "type": "function", "function": { "name": "g" } },
        "parallel_tool_calls": false,
    }));
    let expected = [
        Tool {
            name: "f".to_owned(),
            description: Some("does".to_owned()),
            parameters,
            strict: true,
        },
        Tool {
            name: "g".to_owned(),
            description: None,
            parameters: json!({ "type": "object", "properties": {} }),
            strict: true,
        },
    ];
    assert_eq!(lowered.chat.tools, expected);
    assert_eq!(lowered.chat.tool_choice, ToolChoice::Named("g".to_owned()));
    assert!(!lowered.chat.parallel_tool_calls);
    let with_schema = |schema: Value, strict: Value, choice: &str| {
        let function = json!({ "name": "f", "parameters": schema, "strict": strict });
        let tools = json!([{ "type": "function", "function": function }]);
        let lowered = accepted(&json!({ "tools": tools, "tool_choice": choice }));
        lowered.chat.tools[0].strict
    };
    let held = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
    let loose = json!({ "type": "object", "properties": {}, "dependentSchemas": { "x": {} } });
    for (schema, strict, choice, expected) in [
        (&held, json!(null), "auto", false),
        (&held, json!(null), "required", true),
        (&held, json!(false), "required", false),
        (&loose, json!(null), "required", false),
        (&held, json!(true), "auto", true),
    ] {
        let found = with_schema(schema.clone(), strict.clone(), choice);
        assert_eq!(found, expected, "{schema} {strict} {choice}");
    }
    for (word, expected) in [
        ("none", ToolChoice::None),
        ("auto", ToolChoice::Auto),
        ("required", ToolChoice::Required),
    ] {
        let choice = accepted(&json!({ "tool_choice": word })).chat.tool_choice;
        assert_eq!(choice, expected);
    }
}

#[test]
fn remaining_fields_are_lowered() {
    let lowered = accepted(&json!({
        "temperature": 0.5, "top_k": 3, "seed": 9, "presence_penalty": 1.0,
        "logit_bias": { "3": -100 },
        "n": 3, "stop": ["a", "b"], "logprobs": true, "top_logprobs": 4, "max_tokens": 7,
        "max_completion_tokens": 7, "chat_template_kwargs": { "x": 1 }, "cache_salt": "s",
        "priority": -5, "ignore_eos": true, "modalities": ["text"],
        "stream": true, "stream_options": { "include_usage": true, "include_obfuscation": false },
    }));
    let LoweredChatCompletion {
        chat,
        options,
        choices,
        streaming,
        answer_field,
        ignored,
    } = lowered;
    let expected = SamplingParams {
        temperature: 0.5,
        top_k: 3,
        seed: Some(9),
        presence_penalty: 1.0,
        logit_bias: vec![(3, -100.0)],
        ..SamplingParams::greedy()
    };
    assert_eq!(chat.sampling, expected);
    assert_eq!(chat.stop, ["a", "b"]);
    assert_eq!(chat.logprobs, Some(Logprobs::for_model(4)));
    assert_eq!(Value::Object(chat.template_variables), json!({ "x": 1 }));
    assert_eq!(options.max_tokens, Some(7));
    assert_eq!(options.cache_salt.as_deref(), Some("s"));
    assert_eq!(
        (options.priority, options.ignore_eos, choices),
        (-5, true, 3)
    );
    let usage_at_the_end = Streaming {
        usage: true,
        continuous_usage: false,
    };
    assert_eq!(streaming, Some(usage_at_the_end));
    assert_eq!(answer_field, None);
    assert_eq!(ignored, ["stream_options.include_obfuscation"]);
    assert_eq!(accepted(&json!({ "stop": "a" })).chat.stop, ["a"]);
    assert_eq!(accepted(&json!({ "stream": false })).streaming, None);
}

/// A model whose template has no thinking switch.
fn without_switch(reasoning: Option<&str>) -> ChatContext {
    let template = ChatTemplate::new("{{ messages[0].content }}").expect("a template");
    let tokenizer = testing::tokenizer();
    let grammars = Grammars::new(tokenizer.clone(), tokenizer.vocab_size());
    let format = OutputFormat::named(reasoning, None).expect("known");
    let overrides = FormatOverrides {
        reasoning: Some(format.reasoning),
        ..FormatOverrides::default()
    };
    ChatContext::new(tokenizer, Some(template), grammars, overrides)
}

#[test]
fn thinking_fields_without_effect_are_ignored() {
    let never = without_switch(None);
    let always = without_switch(Some("think"));
    let kwargs = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    let cases: [(Value, &[&str], &[&str]); 5] = [
        (
            json!({ "reasoning_effort": "high" }),
            &["reasoning_effort"],
            &["reasoning_effort"],
        ),
        (json!({ "thinking_budget": 5 }), &["thinking_budget"], &[]),
        (
            json!({ "enable_thinking": true }),
            &["enable_thinking"],
            &["enable_thinking"],
        ),
        (
            json!({ "enable_thinking": false }),
            &[],
            &["enable_thinking"],
        ),
        (
            kwargs,
            &["chat_template_kwargs.enable_thinking"],
            &["chat_template_kwargs.enable_thinking"],
        ),
    ];
    for (more, by_never, by_always) in cases {
        for (chat, expected) in [(&never, by_never), (&always, by_always)] {
            let lowered = lower_with(&with(&more), chat).expect("accepted");
            assert_eq!(lowered.ignored, expected, "{more}");
            assert_eq!(lowered.chat.thinking.effort, None, "{more}");
        }
    }
}

#[test]
fn fields_of_other_servers_are_lowered() {
    let lowered = accepted(&json!({
        "repeat_penalty": 1.5, "repeat_last_n": 32, "stop_token_ids": [7, 8],
        "skip_special_tokens": false, "max_tokens": -1, "cache_prompt": true,
    }));
    let sampling = &lowered.chat.sampling;
    assert_eq!(
        (sampling.repetition_penalty, sampling.penalty_last_n),
        (1.5, 32)
    );
    let options = &lowered.options;
    assert_eq!(options.stop_token_ids, [7, 8]);
    assert!(options.show_special);
    assert_eq!(options.max_tokens, Some(usize::MAX));
    assert_eq!(lowered.ignored, ["cache_prompt"]);
    let both = json!({ "repeat_penalty": 1.5, "repetition_penalty": 1.1 });
    let error = lowered_error(&both);
    assert_eq!(error.param, Some(FieldPath::verbatim("repetition_penalty")));
    // False means what this server does anyway.
    assert!(
        lowered_error(&json!({ "use_beam_search": true }))
            .param
            .is_some()
    );
    assert!(
        accepted(&json!({ "use_beam_search": false }))
            .ignored
            .is_empty()
    );
}

fn lowered_error(more: &Value) -> ApiError {
    lowered(&with(more)).map(|_| ()).expect_err("refused")
}

#[test]
fn parts_may_have_cache_control_and_no_content() {
    let ephemeral = json!({ "type": "ephemeral" });
    let lowered = accepted(&json!({ "messages": [
        { "role": "user", "content": [
            { "type": "text", "text": "a", "cache_control": ephemeral },
            { "type": "text", "text": "b", "cache_control": ephemeral },
        ]},
        { "role": "assistant", "content": null },
        { "role": "user", "content": "c" },
    ]}));
    assert_eq!(lowered.ignored, ["cache_control"]);
    assert!(lowered.chat.messages[1].content.is_empty());
    let refused = json!({ "messages": [{ "role": "user", "content": null }] });
    let param = lowered_error(&refused).param;
    assert_eq!(param, Some(FieldPath::verbatim("messages[0].content")));
}
