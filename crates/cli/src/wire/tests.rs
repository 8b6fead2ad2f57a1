use loquat_chat::{Message, MessageContent, Role, Tool, ToolCall};
use serde_json::{Value, json};

use super::{messages, to_json, tools};

const FLAG: &str = "--messages";

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    }
}

#[test]
fn messages_are_read_as_clients_write_them() {
    let said = json!([
        { "role": "system", "content": "Be kind." },
        { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "text": "b" }] },
        { "role": "user", "content": "hi", "name": "ann", "refusal": null },
        {
            "role": "assistant", "content": null, "reasoning_content": "hm", "audio": null,
            "tool_calls": [
                { "id": "x1", "type": "function",
                  "function": { "name": "add", "arguments": "{\"a\": 1}" } },
                { "function": { "name": "sub", "arguments": { "b": [2, 3] } } },
                { "function": { "name": "now" } },
            ],
        },
        { "role": "tool", "tool_call_id": "x1", "content": "2" },
        { "role": "assistant", "reasoning": "well" },
    ]);
    let expected = [
        Message::new(Role::System, "Be kind."),
        Message::new(
            Role::Developer,
            MessageContent::Parts(vec!["a".into(), "b".into()]),
        ),
        Message {
            name: Some("ann".into()),
            ..Message::new(Role::User, "hi")
        },
        Message {
            reasoning: Some("hm".into()),
            tool_calls: vec![
                call("x1", "add", "{\"a\": 1}"),
                call("call00001", "sub", "{\"b\":[2,3]}"),
                call("call00002", "now", "{}"),
            ],
            ..Message::new(Role::Assistant, "")
        },
        Message {
            tool_call_id: Some("x1".into()),
            ..Message::new(Role::Tool, "2")
        },
        Message {
            reasoning: Some("well".into()),
            ..Message::new(Role::Assistant, "")
        },
    ];
    assert_eq!(messages(FLAG, said).unwrap(), expected);
    // What was written reads as what it was.
    assert_eq!(messages(FLAG, to_json(&expected)).unwrap(), expected);
}

#[test]
fn what_is_wrong_with_a_message_is_named() {
    let call = |function: Value| {
        json!([{ "role": "assistant", "content": "",
            "tool_calls": [{ "function": function }] }])
    };
    for (said, error) in [
        (json!({}), "`messages` is an object; it must be a list"),
        (
            json!(["hi"]),
            "`messages[0]` is \"hi\"; it must be an object",
        ),
        (
            json!([{ "content": "hi" }]),
            "`messages[0].role` is missing",
        ),
        (
            json!([{ "role": "bot", "content": "hi" }]),
            "`messages[0].role` is \"bot\"; it must be one of system, developer, user, \
             assistant, tool",
        ),
        (
            json!([{ "role": 3 }]),
            "`messages[0].role` is 3; it must be a string",
        ),
        (
            json!([{ "role": "user" }]),
            "`messages[0].content` is missing",
        ),
        (
            json!([{ "role": "user", "content": 3 }]),
            "`messages[0].content` is 3; it must be a string or a list of parts",
        ),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
            "`messages[0].content[0].type` is \"image_url\"; it must be \"text\"",
        ),
        (
            json!([{ "role": "user", "content": "a" }, { "role": "user", "content": "b", "x": 1 }]),
            "`messages[1].x` is not known; known here: role, name, content",
        ),
        (
            json!([{ "role": "user", "content": "a", "tool_calls": [] }]),
            "`messages[0].tool_calls` is not known; known here: role, name, content",
        ),
        (
            json!([{ "role": "assistant", "content": "", "reasoning": "a",
                "reasoning_content": "a" }]),
            "`messages[0].reasoning` says what `reasoning_content` says already; one is enough",
        ),
        (
            json!([{ "role": "assistant", "content": "", "tool_calls": [{ "id": "1" }] }]),
            "`messages[0].tool_calls[0].function` is missing",
        ),
        (
            call(json!({ "arguments": "{}" })),
            "`messages[0].tool_calls[0].function.name` is missing",
        ),
        (
            call(json!({ "name": "f", "arguments": [1] })),
            "`messages[0].tool_calls[0].function.arguments` is a list; it must be an object, or \
             one as text",
        ),
        (
            call(json!({ "name": "f", "args": {} })),
            "`messages[0].tool_calls[0].function.args` is not known; known here: name, arguments",
        ),
    ] {
        let found = messages(FLAG, said).unwrap_err();
        assert_eq!(found.to_string(), format!("{FLAG}: {error}"));
        assert_eq!(found.exit_code(), 2);
    }
}

fn add() -> Tool {
    Tool {
        name: "add".into(),
        description: Some("Adds".into()),
        parameters: json!({ "type": "object" }),
        strict: false,
    }
}

#[test]
fn tools_are_read_in_every_form() {
    let bare = json!({ "name": "add", "description": "Adds", "parameters": { "type": "object" } });
    let mut typed = bare.clone();
    typed["type"] = "function".into();
    let wrapped = json!({ "type": "function", "function": bare });
    for (written, count) in [
        (bare.clone(), 1),
        (typed, 1),
        (wrapped.clone(), 1),
        (json!([wrapped, bare]), 2),
    ] {
        assert_eq!(tools("--tools", written).unwrap(), vec![add(); count]);
    }
    let terse = json!([{ "function": { "name": "now", "strict": true } }]);
    let expected = Tool {
        name: "now".into(),
        description: None,
        parameters: json!({ "type": "object", "properties": {} }),
        strict: true,
    };
    assert_eq!(tools("--tools", terse).unwrap(), [expected]);
}

#[test]
fn what_is_wrong_with_a_tool_is_named() {
    for (written, error) in [
        (json!(3), "`tools` is 3; it must be a list of tools, or one"),
        (json!([[]]), "`tools[0]` is a list; it must be an object"),
        (json!([{}]), "`tools[0].name` is missing"),
        (
            json!([{ "type": "web_search" }]),
            "`tools[0].type` is \"web_search\"; it must be \"function\"",
        ),
        (
            json!([{ "function": { "name": "f", "schema": {} } }]),
            "`tools[0].function.schema` is not known; known here: name, description, parameters, \
             strict",
        ),
        (
            json!([{ "name": "f", "parameters": "none" }]),
            "`tools[0].parameters` is \"none\"; it must be a JSON schema, which is an object",
        ),
        (
            json!([{ "name": "f", "strict": 1 }]),
            "`tools[0].strict` is 1; it must be true or false",
        ),
    ] {
        let found = tools("--tools", written).unwrap_err();
        assert_eq!(found.to_string(), format!("--tools: {error}"));
    }
}
