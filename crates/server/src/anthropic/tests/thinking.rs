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

/// A model whose template has no thinking switch.
fn without_switch(reasoning: Option<&str>) -> ChatContext {
    let template = ChatTemplate::new("{{ messages[0].content }}").expect("a template");
    let grammars = Grammars::new(tokenizer(), tokenizer().vocab_size());
    let format = OutputFormat::named(reasoning, None).expect("known");
    let overrides = FormatOverrides {
        reasoning: Some(format.reasoning),
        ..FormatOverrides::default()
    };
    ChatContext::new(tokenizer(), Some(template), grammars, overrides)
}

/// The effort, whether there is a budget, and the ignored fields; or the invalid field.
type Outcome = Result<(Option<Effort>, bool, Vec<&'static str>), String>;

fn outcome(fields: &Value, chat: &ChatContext) -> Outcome {
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
fn thinking_depends_on_the_template() {
    let switched = chat();
    let always = without_switch(Some("think"));
    let never = without_switch(None);
    let enabled = json!({ "type": "enabled", "budget_tokens": BUDGET });
    let disabled = json!({ "type": "disabled" });
    let hard = json!({ "effort": "max" });
    let lowered_to =
        |effort, bounded, ignored: &[&'static str]| Ok((effort, bounded, ignored.to_vec()));
    let fault = |field: &str| -> Outcome { Err(field.to_owned()) };
    let cases: [(Value, [Outcome; 3]); 6] = [
        (
            json!({ "output_config": hard }),
            [
                lowered_to(Some(Effort::High), false, &[]),
                lowered_to(None, false, &[EFFORT]),
                lowered_to(None, false, &[EFFORT]),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": { "type": "adaptive" } }),
            [
                lowered_to(Some(Effort::High), false, &[]),
                lowered_to(None, false, &[EFFORT]),
                lowered_to(None, false, &[EFFORT]),
            ],
        ),
        (
            json!({ "thinking": enabled }),
            [
                lowered_to(Some(Effort::On), true, &[]),
                lowered_to(None, true, &[]),
                fault("thinking"),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": enabled }),
            [
                lowered_to(Some(Effort::High), true, &[]),
                lowered_to(None, true, &[EFFORT]),
                fault("thinking"),
            ],
        ),
        (
            // The template decides whether that is possible.
            json!({ "thinking": disabled }),
            [
                lowered_to(Some(Effort::Off), false, &[]),
                lowered_to(Some(Effort::Off), false, &[]),
                lowered_to(None, false, &[]),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": disabled }),
            [fault(EFFORT), fault(EFFORT), fault(EFFORT)],
        ),
    ];
    for (fields, expected) in cases {
        let models = [&switched, &always, &never];
        assert_eq!(
            models.map(|chat| outcome(&fields, chat)),
            expected,
            "{fields}"
        );
    }
}
