//! Finds out what a template supports by rendering small conversations.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};

use super::{ChatInput, ChatTemplate, FaultKind};
use crate::error::TextError;

/// Texts that no template contains.
const MARK: &str = "loquat-probe-text";
const TOOL: &str = "loquat_probe_tool";
const ARGUMENT: &str = "loquat_probe_key";
/// Some templates insist on nine letters and digits.
const CALL_ID: &str = "loquat123";

/// Cached probe results.
#[derive(Debug, Default)]
pub(super) struct Probes {
    takes_parts: OnceLock<bool>,
    supports_tools: OnceLock<bool>,
    supports_system: OnceLock<bool>,
    arguments_as_text: OnceLock<bool>,
    thinking: OnceLock<Vec<ThinkingSwitch>>,
    /// A probe exceeded the budget of a rendering. Further ones would take as long.
    exhausted: AtomicBool,
}

/// A template variable that controls whether, or how much, the model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkingSwitch {
    /// The key in [`ChatInput::kwargs`].
    pub variable: &'static str,
    /// What the variable accepts.
    pub values: ThinkingValues,
}

/// The values of a thinking switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingValues {
    /// `true` and `false`
    Flag,
    /// `"low"`, `"medium"`, `"high"`
    Effort,
    /// A number of tokens, 0 for none.
    Budget,
}

/// Switches that published templates know.
const SWITCHES: [ThinkingSwitch; 7] = [
    flag("enable_thinking"),
    flag("thinking"),
    flag("enable_reasoning"),
    flag("reasoning"),
    flag("think"),
    ThinkingSwitch {
        variable: "reasoning_effort",
        values: ThinkingValues::Effort,
    },
    ThinkingSwitch {
        variable: "thinking_budget",
        values: ThinkingValues::Budget,
    },
];

const fn flag(variable: &'static str) -> ThinkingSwitch {
    ThinkingSwitch {
        variable,
        values: ThinkingValues::Flag,
    }
}

impl ChatTemplate {
    /// Whether a message's content may be a list of parts (`[{"type": "text", "text": …}]`): true
    /// if a part's text appears as text. Other templates accept only strings, and print a list as
    /// Python would or refuse it.
    pub fn takes_parts(&self) -> bool {
        *self.probes.takes_parts.get_or_init(|| {
            let rendered = |content: Value| {
                self.probe(json!([{"role": "user", "content": content}]), false, None)
                    .unwrap_or_default()
            };
            let as_part = rendered(json!([{"type": "text", "text": MARK}]));
            let as_text = rendered(json!(MARK));
            let keys =
                |text: &str| text.matches("'type'").count() + text.matches("\"type\"").count();
            as_part.contains(MARK) && keys(&as_part) <= keys(&as_text)
        })
    }

    /// Whether offered tools appear in the prompt, at least if there is a system message.
    pub fn supports_tools(&self) -> bool {
        *self.probes.supports_tools.get_or_init(|| {
            let system = json!({"role": "system", "content": "be kind"});
            let conversations = [json!([user()]), json!([system, user()])];
            conversations.into_iter().any(|messages| {
                let rendered = self.probe(messages, true, None);
                rendered.is_some_and(|text| text.contains(TOOL))
            })
        })
    }

    /// Whether a system message appears in the prompt.
    pub fn supports_system(&self) -> bool {
        *self.probes.supports_system.get_or_init(|| {
            let system = json!({"role": "system", "content": MARK});
            let rendered = self.probe(json!([system, user()]), false, None);
            rendered.is_some_and(|text| text.contains(MARK))
        })
    }

    /// Whether the arguments of an assistant's tool calls must be JSON text: true if the template
    /// ignores an object or prints it as Python would, but accepts text.
    pub fn arguments_as_text(&self) -> bool {
        *self.probes.arguments_as_text.get_or_init(|| {
            // Some templates see calls only in messages without content, others require text there.
            let taken = |arguments: &Value| {
                [json!(""), Value::Null].into_iter().any(|content| {
                    let round = tool_round(content, arguments.clone());
                    let rendered = self.probe(round, true, None);
                    rendered.is_some_and(|text| {
                        let as_python = format!("{{'{ARGUMENT}'");
                        text.contains(ARGUMENT) && !text.contains(&as_python)
                    })
                })
            };
            let object = json!({ARGUMENT: MARK});
            !taken(&object) && taken(&object.to_string().into())
        })
    }

    /// The variables that turn thinking on and off or set its amount: those the template mentions
    /// and that change the prompt.
    pub fn thinking_switches(&self) -> &[ThinkingSwitch] {
        self.probes.thinking.get_or_init(|| {
            let works = |switch: &&ThinkingSwitch| {
                self.default.mentions(switch.variable) && {
                    let (on, off) = match switch.values {
                        ThinkingValues::Flag => (json!(true), json!(false)),
                        ThinkingValues::Effort => (json!("high"), json!("low")),
                        ThinkingValues::Budget => (json!(512), json!(0)),
                    };
                    let rendered =
                        |value| self.probe(json!([user()]), false, Some((switch.variable, value)));
                    let (on, off) = (rendered(on), rendered(off));
                    on.is_some() && off.is_some() && on != off
                }
            };
            SWITCHES.iter().filter(works).copied().collect()
        })
    }

    /// The first thinking switch.
    pub fn thinking_switch(&self) -> Option<ThinkingSwitch> {
        self.thinking_switches().first().copied()
    }

    /// Renders these messages; `None` if the template refuses them, or has exceeded its budget before.
    fn probe(
        &self,
        messages: Value,
        with_tools: bool,
        variable: Option<(&str, Value)>,
    ) -> Option<String> {
        if self.probes.exhausted.load(Ordering::Relaxed) {
            return None;
        }
        let kwargs: Map<_, _> = variable
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let input = ChatInput {
            messages,
            tools: with_tools.then(tools),
            add_generation_prompt: true,
            bos_token: "<s>".to_owned(),
            eos_token: "</s>".to_owned(),
            kwargs,
        };
        let rendered = self.render(&input);
        if let Err(TextError::TemplateRender { source }) = &rendered
            && source.kind == FaultKind::Limit
        {
            self.probes.exhausted.store(true, Ordering::Relaxed);
        }
        rendered.ok()
    }
}

fn user() -> Value {
    json!({"role": "user", "content": "hello"})
}

fn tools() -> Value {
    json!([{
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {"probe": {"type": "string", "description": "Anything."}},
                "required": ["probe"],
            },
        },
    }])
}

/// A question, a call of the tool, and its answer.
fn tool_round(content: Value, arguments: Value) -> Value {
    json!([
        user(),
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [{
                "id": CALL_ID,
                "type": "function",
                "function": {"name": TOOL, "arguments": arguments},
            }],
        },
        {"role": "tool", "tool_call_id": CALL_ID, "name": TOOL, "content": "done"},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_without_end_is_probed_once() {
        let source = "{% if tools %}{% for a in range(99999) %}{% for b in range(99999) %}\
                      {% endfor %}{% endfor %}{% endif %}\
                      {% for message in messages %}{{ message.content }}{% endfor %}";
        let template = || ChatTemplate::new(source).expect("a template");
        let quick = template();
        assert!(quick.supports_system());
        let slow = template();
        assert!(!slow.supports_tools());
        assert!(
            !slow.supports_system(),
            "rendered after the budget was exceeded"
        );
    }
}
