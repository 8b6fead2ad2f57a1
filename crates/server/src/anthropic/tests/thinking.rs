use loquat_chat::{ChatContext, Effort};
use loquat_grammar::Grammars;
use loquat_text::ChatTemplate;
use loquat_text::format::{FormatOverrides, OutputFormat};
use serde_json::{Value, json};

use super::conversation;
use crate::anthropic::lower::lower;
use crate::testing::{MODEL, chat, tokenizer};

const BUDGET: usize = 100;
const EFFORT: &str = "output_config.effort";

/// A model whose template has nothing to set.
fn unswitched(reasoning: Option<&str>) -> ChatContext {
    let template = ChatTemplate::new("{{ messages[0].content }}").expect("a template");
    let grammars = Grammars::new(tokenizer(), tokenizer().vocab_size());
    let format = OutputFormat::named(reasoning, None).expect("known");
    let overrides = FormatOverrides {
        reasoning: Some(format.reasoning),
        ..FormatOverrides::default()
    };
    ChatContext::new(tokenizer(), Some(template), grammars, overrides)
}

/// How hard to think, whether within a budget, and what was ignored; or the field at fault.
type Came = Result<(Option<Effort>, bool, Vec<&'static str>), String>;

fn came(fields: &Value, chat: &ChatContext) -> Came {
    let mut body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let lowered = lower(conversation(&body), chat);
    let lowered = lowered.map_err(|error| {
        error
            .param
            .map(|param| param.to_string())
            .unwrap_or_default()
    })?;
    let thinking = lowered.request.thinking;
    let bounded = thinking.budget == Some(BUDGET);
    Ok((thinking.effort, bounded, lowered.ignored))
}

#[test]
fn models_are_asked_to_think_as_far_as_they_can_be() {
    let switched = chat();
    let always = unswitched(Some("think"));
    let never = unswitched(None);
    let enabled = json!({ "type": "enabled", "budget_tokens": BUDGET });
    let disabled = json!({ "type": "disabled" });
    let hard = json!({ "effort": "max" });
    let came_to =
        |effort, bounded, ignored: &[&'static str]| Ok((effort, bounded, ignored.to_vec()));
    let fault = |field: &str| -> Came { Err(field.to_owned()) };
    let cases: [(Value, [Came; 3]); 6] = [
        (
            json!({ "output_config": hard }),
            [
                came_to(Some(Effort::High), false, &[]),
                came_to(None, false, &[EFFORT]),
                came_to(None, false, &[EFFORT]),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": { "type": "adaptive" } }),
            [
                came_to(Some(Effort::High), false, &[]),
                came_to(None, false, &[EFFORT]),
                came_to(None, false, &[EFFORT]),
            ],
        ),
        (
            json!({ "thinking": enabled }),
            [
                came_to(Some(Effort::On), true, &[]),
                came_to(None, true, &[]),
                fault("thinking"),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": enabled }),
            [
                came_to(Some(Effort::High), true, &[]),
                came_to(None, true, &[EFFORT]),
                fault("thinking"),
            ],
        ),
        (
            // Whether that can be is for the template to say.
            json!({ "thinking": disabled }),
            [
                came_to(Some(Effort::Off), false, &[]),
                came_to(Some(Effort::Off), false, &[]),
                came_to(None, false, &[]),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": disabled }),
            [fault(EFFORT), fault(EFFORT), fault(EFFORT)],
        ),
    ];
    for (fields, expected) in cases {
        let models = [&switched, &always, &never];
        assert_eq!(models.map(|chat| came(&fields, chat)), expected, "{fields}");
    }
}
