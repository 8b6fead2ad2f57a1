//! Maps a request's thinking options to template variables.

use loquat_text::{ChatTemplate, ThinkingSwitch, ThinkingValues};
use serde_json::{Map, Value, json};

use crate::{ChatError, Effort, Thinking};

/// The template variables that express the options.
pub(crate) fn variables(
    template: &ChatTemplate,
    thinking: Thinking,
) -> Result<Map<String, Value>, ChatError> {
    let Thinking { effort, budget } = thinking;
    let switches = template.thinking_switches();
    let mut set = Map::new();
    if let (Some(budget), Some(switch)) = (budget, switches.iter().find(is_budget)) {
        // Tells the model. The engine enforces the budget in any case.
        set.insert(switch.variable.to_owned(), json!(budget));
    }
    let Some(effort) = effort else {
        return Ok(set);
    };
    let degree = match effort {
        Effort::Off | Effort::On => None,
        Effort::Low => Some("low"),
        Effort::Medium => Some("medium"),
        Effort::High => Some("high"),
    };
    for switch in switches {
        let value = match switch.values {
            ThinkingValues::Flag => Some(json!(effort != Effort::Off)),
            ThinkingValues::Effort => degree.map(|degree| json!(degree)),
            ThinkingValues::Budget => (effort == Effort::Off).then(|| json!(0)),
        };
        set.extend(value.map(|value| (switch.variable.to_owned(), value)));
    }
    if set.is_empty() {
        Err(ChatError::Unsupported {
            field: "thinking",
            why: "its template has no variable for it; a thinking budget still limits reasoning"
                .into(),
        })
    } else {
        Ok(set)
    }
}

fn is_budget(switch: &&ThinkingSwitch) -> bool {
    switch.values == ThinkingValues::Budget
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_the_templates_variables() {
        let switch = "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}";
        let effort = "{{ reasoning_effort or 'medium' }}";
        let both = "{{ reasoning_effort or 'low' if thinking else 'off' }}{{ thinking }}";
        let tokens = "{{ thinking_budget }}";
        let cases = [
            (switch, None, Some(json!({}))),
            (
                switch,
                Some(Effort::Off),
                Some(json!({"enable_thinking": false})),
            ),
            (
                switch,
                Some(Effort::High),
                Some(json!({"enable_thinking": true})),
            ),
            (
                effort,
                Some(Effort::Low),
                Some(json!({"reasoning_effort": "low"})),
            ),
            (effort, Some(Effort::Off), None),
            (effort, Some(Effort::On), None),
            (both, Some(Effort::Off), Some(json!({"thinking": false}))),
            (
                tokens,
                Some(Effort::Off),
                Some(json!({"thinking_budget": 0})),
            ),
            ("always", Some(Effort::Off), None),
            ("always", Some(Effort::High), None),
            ("always", None, Some(json!({}))),
        ];
        for (source, effort, expected) in cases {
            let template = ChatTemplate::new(source).expect("a template");
            let thinking = Thinking {
                effort,
                budget: None,
            };
            let set = variables(&template, thinking);
            let set = set.ok().map(Value::Object);
            assert_eq!(set, expected, "{source} {effort:?}");
        }
        let template = ChatTemplate::new(tokens).expect("a template");
        let bounded = Thinking {
            effort: None,
            budget: Some(7),
        };
        let set = variables(&template, bounded).expect("known");
        assert_eq!(Value::Object(set), json!({"thinking_budget": 7}));
    }
}
