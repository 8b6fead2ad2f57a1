//! The loop that runs tools.

use loquat::{Error, Role, Tool, Toolbox};
use serde_json::json;

use crate::scripted;

const CALL: &str = "<tool_call>\n{\"name\": \"flip\", \"arguments\": {\"bit\": 1}}\n</tool_call>";

fn flip() -> Tool {
    Tool {
        name: "flip".to_owned(),
        description: None,
        parameters: json!({
            "type": "object",
            "properties": { "bit": { "type": "integer" } },
            "required": ["bit"]
        }),
        strict: false,
    }
}

#[test]
fn tool_rounds_are_bounded() {
    let model = scripted(CALL);
    let mut bits = Vec::new();
    let mut tools = Toolbox::new().with(flip(), |arguments| {
        let bit = arguments["bit"].as_u64().ok_or("no bit")?;
        bits.push(bit);
        Ok((1 - bit).to_string())
    });
    let refused = model.chat("hi").temperature(0.0).run_tools(&mut tools, 2);
    assert!(matches!(refused, Err(Error::ToolRounds { rounds: 2 })));
    drop(tools);
    assert_eq!(bits, [1, 1]);
}

#[test]
fn answer_without_call_ends_the_loop() {
    let model = scripted("done");
    let mut tools = Toolbox::new().with(flip(), |_| Err("must not be called".into()));
    let done = model.chat("hi").temperature(0.0).run_tools(&mut tools, 2);
    let done = done.unwrap();
    assert_eq!(done.reply.text, "done");
    let roles: Vec<_> = done.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant]);
}
