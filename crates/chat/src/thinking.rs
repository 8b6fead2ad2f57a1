//! A request's wish to think, in the words of a template.

use loquat_text::{ChatTemplate, ThinkingSwitch, ThinkingValues};
use serde_json::{Map, Value, json};

use crate::{ChatError, Effort, Thinking};

/// The template's variables for what a request asks.
pub(crate) fn variables(
    template: &ChatTemplate,
    thinking: Thinking,
) -> Result<Map<String, Value>, ChatError> {
    let Thinking { effort, budget } = thinking;
    let switches = template.thinking_switches();
    let mut set = Map::new();
    if let (Some(budget), Some(switch)) = (budget, switches.iter().find(is_budget)) {
        // So that the model knows; the engine closes its thinking all the same.
        set.insert(switch.variable.to_owned(), json!(budget));
    }
    let Some(effort) = effort else {
        return Ok(set);
    };
    let degree = match effort {
        Effort::None | Effort::Some => None,
        Effort::Low => Some("low"),
        Effort::Medium => Some("medium"),
        Effort::High => Some("high"),
    };
    for switch in switches {
        let value = match switch.values {
            ThinkingValues::Flag => Some(json!(effort != Effort::None)),
            ThinkingValues::Effort => degree.map(|degree| json!(degree)),
            ThinkingValues::Budget => (effort == Effort::None).then(|| json!(0)),
        };
        set.extend(value.map(|value| (switch.variable.to_owned(), value)));
    }
    if set.is_empty() {
        Err(ChatError::Unsupported {
            field: "thinking",
            why: "its template has no variable that sets it so; where it thinks anyway, a budget \
                  bounds it"
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
    fn a_template_is_told_in_the_words_it_knows() {
        let switch = "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}";
        let effort = "{{ reasoning_effort or 'medium' }}";
        let both = "{{ reasoning_effort or 'low' if thinking else 'off' }}{{ thinking }}";
        let tokens = "{{ thinking_budget }}";
        let cases = [
            (switch, None, Some(json!({}))),
            (
                switch,
                Some(Effort::None),
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
            (effort, Some(Effort::None), None),
            (effort, Some(Effort::Some), None),
            (both, Some(Effort::None), Some(json!({"thinking": false}))),
            (
                tokens,
                Some(Effort::None),
                Some(json!({"thinking_budget": 0})),
            ),
            ("always", Some(Effort::None), None),
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
