//! Templates for single features, compared with transformers. `templates/README.md` describes how
//! the expected texts were made.

use std::path::{Path, PathBuf};

use loquat_text::{ChatInput, ChatTemplate, Clock, TextError};
use serde_json::{Map, Value};

/// 2026-01-02 03:04:05, when the references were rendered.
const NOW: u64 = 1_767_323_045;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).expect(name)
}

fn input(conversation: &Value) -> ChatInput {
    let variables = conversation.get("variables").and_then(Value::as_object);
    ChatInput {
        messages: conversation["messages"].clone(),
        tools: conversation.get("tools").cloned(),
        add_generation_prompt: conversation.get("add_generation_prompt") != Some(&false.into()),
        bos_token: "<s>".to_owned(),
        eos_token: "</s>".to_owned(),
        kwargs: variables.cloned().unwrap_or_default(),
    }
}

/// The same text, or a refusal with the template's message if Python refused.
fn agrees(template: &str, conversation: &Value, wanted: &Value) -> Result<(), String> {
    let rendered = ChatTemplate::new(template)
        .map(|template| template.with_clock(Clock::Fixed(NOW)))
        .and_then(|template| template.render(&input(conversation)));
    match (rendered, wanted["ok"].as_str(), wanted["error"].as_str()) {
        (Ok(text), Some(wanted), _) if text == wanted => Ok(()),
        (Err(TextError::TemplateRefused { message }), None, Some(wanted))
            if wanted == format!("TemplateError: {message}") =>
        {
            Ok(())
        }
        (Err(error), None, Some(wanted)) if !wanted.starts_with("TemplateError: ") => {
            let is_own = matches!(error, TextError::TemplateRefused { .. });
            if is_own {
                Err(error.to_string())
            } else {
                Ok(())
            }
        }
        (rendered, _, _) => Err(format!("got {rendered:?}\nwanted {wanted}")),
    }
}

#[test]
fn templates_render_like_transformers() {
    let conversations: Map<String, Value> =
        serde_json::from_str(&read("conversations.json")).expect("conversations");
    let expected: Map<String, Value> =
        serde_json::from_str(&read("expected.json")).expect("expected texts");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder()).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path
            .extension()
            .is_none_or(|extension| extension != "jinja")
        {
            continue;
        }
        let template = std::fs::read_to_string(&path).expect("a template");
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        for (name, conversation) in &conversations {
            let key = format!("{}/{name}", stem.expect("a name"));
            let wanted = expected.get(&key).expect(&key);
            if let Err(why) = agrees(&template, conversation, wanted) {
                panic!("{key}: {why}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, expected.len(), "every expected text was compared");
}

#[test]
fn snippets_render_like_transformers() {
    let conversations: Value =
        serde_json::from_str(&read("conversations.json")).expect("conversations");
    let snippets: Vec<Value> = serde_json::from_str(&read("snippets.json")).expect("snippets");
    let failures: Vec<String> = snippets
        .iter()
        .filter_map(|snippet| {
            let template = snippet["template"].as_str().expect("a template");
            let why = agrees(template, &conversations["system"], snippet).err()?;
            Some(format!("{template:?}: {why}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
