//! 131 real chat templates over nine conversations, compared with transformers.

use std::path::Path;

use loquat_text::{ChatInput, ChatTemplate, Clock};
use serde_json::{Map, Value};

/// 2026-01-02 03:04:05, when the references were rendered.
const NOW: u64 = 1_767_323_045;

fn read(dir: &Path, name: &str) -> Map<String, Value> {
    let text = std::fs::read_to_string(dir.join(name)).expect("the file");
    serde_json::from_str(&text).expect("a JSON object")
}

fn input(conversation: &Value) -> ChatInput {
    let kwargs = conversation.get("kw").and_then(Value::as_object);
    ChatInput {
        messages: conversation["m"].clone(),
        tools: conversation.get("tools").cloned(),
        add_generation_prompt: conversation.get("gen") != Some(&Value::Bool(false)),
        bos_token: "<s>".to_owned(),
        eos_token: "</s>".to_owned(),
        kwargs: kwargs.cloned().unwrap_or_default(),
    }
}

/// Whether the result equals the reference: the same text, or a refusal if it refused.
fn compare(template: &str, conversation: &Value, wanted: &Value) -> Result<(), String> {
    let rendered = ChatTemplate::new(template)
        .map(|template| template.with_clock(Clock::Fixed(NOW)))
        .and_then(|template| template.render(&input(conversation)));
    match (rendered, wanted["ok"].as_str()) {
        (Ok(text), Some(wanted)) if text == wanted => Ok(()),
        (Ok(text), Some(wanted)) => {
            let same = text.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b);
            let at = same.count().saturating_sub(40);
            let near = |text: &str| text.chars().skip(at).take(160).collect::<String>();
            Err(format!("got {:?}\nwanted {:?}", near(&text), near(wanted)))
        }
        (Ok(_), None) => Err(format!("rendered, wanted {}", wanted["err"])),
        (Err(error), Some(_)) => Err(format!("{error}")),
        (Err(error), None) => match wanted["err"]
            .as_str()
            .and_then(|e| e.strip_prefix("TemplateError: "))
        {
            Some(message) if message != error.to_string() => {
                Err(format!("refused with {error}, wanted {message}"))
            }
            _ => Ok(()),
        },
    }
}

#[test]
fn corpus_renders_like_transformers() {
    let Some(dir) = crate::common::shared("templates") else {
        return;
    };
    let corpus = read(&dir, "corpus.json");
    let conversations = read(&dir, "conversations.json");
    let rendered = read(&dir, "rendered.json");
    let mut failures = 0;
    for (key, wanted) in &rendered {
        let (id, conversation) = key.split_once('/').expect("template/conversation");
        let template = corpus[id]["template"].as_str().expect("a template");
        if let Err(why) = compare(template, &conversations[conversation], wanted) {
            failures += 1;
            eprintln!("{key} ({}): {why}\n", corpus[id]["names"]);
        }
    }
    assert_eq!(failures, 0, "of {} renderings", rendered.len());
}
