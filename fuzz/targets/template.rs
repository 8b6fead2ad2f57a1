//! Parses arbitrary text as a chat template: an error, or a rendering within its budget of steps
//! and memory. The runner limits both the time and the memory of each input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use loquat_text::{ChatInput, ChatTemplate};
use serde_json::json;

fuzz_target!(|text: &str| {
    let Ok(template) = ChatTemplate::new(text) else {
        return;
    };
    let input = ChatInput {
        messages: json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "<b>Hello</b>\n\u{200b} world" },
            {
                "role": "assistant",
                "content": null,
                "reasoning_content": "hm",
                "tool_calls": [{
                    "id": "call00001",
                    "type": "function",
                    "function": { "name": "f", "arguments": { "x": [1, 2.5, true, null] } },
                }],
            },
            { "role": "tool", "tool_call_id": "call00001", "content": "21" },
        ]),
        tools: Some(json!([{
            "type": "function",
            "function": { "name": "f", "parameters": { "type": "object", "properties": {} } },
        }])),
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let _ = template.render(&input);
});
