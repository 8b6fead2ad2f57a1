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
                lowered_to(None, false, &[EFFORT, "thinking"]),
            ],
        ),
        (
            json!({ "thinking": enabled }),
            [
                lowered_to(Some(Effort::On), true, &[]),
                lowered_to(None, true, &[]),
                lowered_to(None, false, &["thinking"]),
            ],
        ),
        (
            json!({ "output_config": hard, "thinking": enabled }),
            [
                lowered_to(Some(Effort::High), true, &[]),
                lowered_to(None, true, &[EFFORT]),
                lowered_to(None, false, &[EFFORT, "thinking"]),
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
            [
                lowered_to(Some(Effort::Off), false, &[EFFORT]),
                lowered_to(Some(Effort::Off), false, &[EFFORT]),
                lowered_to(None, false, &[EFFORT]),
            ],
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

#[test]
fn late_system_message_suits_the_template() {
    let strict = "{% for message in messages %}{% if message.role == 'system' and not loop.first %}\
        {{ raise_exception('system must be first') }}{% endif %}\
        {{ message.role }}: {{ message.content }}\n{% endfor %}";
    let template = ChatTemplate::new(strict).expect("a template");
    let grammars = Grammars::new(tokenizer(), tokenizer().vocab_size());
    let strict = ChatContext::new(
        tokenizer(),
        Some(template),
        grammars,
        FormatOverrides::default(),
    );
    let body = json!({ "model": MODEL, "system": "a", "messages": [
        { "role": "user", "content": "b" },
        { "role": "system", "content": "c" },
        { "role": "user", "content": "d" },
    ]});
    let rendered = |chat: &ChatContext| {
        let lowered = lower(conversation(&body), chat).expect("lowered");
        chat.render(&lowered.request, false).expect("rendered")
    };
    assert_eq!(rendered(&strict), "system: a\n\nc\nuser: b\n\nd\n");
    let turns = [
        ("system", "a"),
        ("user", "b"),
        ("system", "c"),
        ("user", "d"),
    ];
    let turns = turns.map(|(role, text)| format!("<|im_start|>{role}\n{text}<|im_end|>\n"));
    assert_eq!(rendered(&chat()), turns.concat());
}
