//! What a chat template accepts, found by rendering probes.

use loquat_text::{ChatInput, ChatTemplate};
use serde_json::json;

/// The shape of messages a template accepts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TemplateTraits {
    pub content_parts: bool,
    /// Whether the template writes a marker for each image among the parts.
    pub image_parts: bool,
    pub arguments_as_text: bool,
    pub developer_role: bool,
    /// Whether a message may have thinking, text and calls at once: gpt-oss accepts only two.
    pub thinking_with_text_and_calls: bool,
}

impl TemplateTraits {
    /// `image_marker` is the text that names an image in prompts of the model.
    pub fn probe(template: &ChatTemplate, image_marker: Option<&str>) -> Self {
        Self {
            image_parts: image_marker.is_some_and(|marker| writes_images(template, marker)),
            content_parts: template.takes_parts(),
            arguments_as_text: template.arguments_as_text(),
            developer_role: template.source(true).contains("developer"),
            thinking_with_text_and_calls: accepts_thinking_with_text_and_calls(template),
        }
    }
}

fn writes_images(template: &ChatTemplate, marker: &str) -> bool {
    let content = json!([{ "type": "image" }, { "type": "text", "text": "?" }]);
    let input = ChatInput {
        messages: json!([{ "role": "user", "content": content }]),
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let rendered = template.render(&input);
    rendered.is_ok_and(|prompt| prompt.matches(marker).count() == 1)
}

/// Renders a message with and without thinking. A template that renders neither counts as accepting.
fn accepts_thinking_with_text_and_calls(template: &ChatTemplate) -> bool {
    let renders = |thinking: bool| {
        let mut reply = json!({
            "role": "assistant",
            "content": "so",
            "tool_calls": [{
                "id": "call00001",
                "type": "function",
                "function": { "name": "f", "arguments": {} },
            }],
        });
        if thinking {
            reply["reasoning_content"] = json!("hm");
            reply["thinking"] = json!("hm");
        }
        let user = json!({ "role": "user", "content": "?" });
        let result = json!({ "role": "tool", "tool_call_id": "call00001", "content": "0" });
        let input = ChatInput {
            messages: json!([user, reply, result]),
            ..ChatInput::default()
        };
        template.render(&input).is_ok()
    };
    renders(true) || !renders(false)
}
