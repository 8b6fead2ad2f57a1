//! Renders conversations for the judges: one JSON object per line in, one per line out.
//!
//! In: `template` or the name of a `builtin` one, `messages`, and optionally `tools`, `kwargs`,
//! `bos`, `eos`, `generate` (open the assistant's turn) and `now` (seconds since 1970). Out:
//! `text`, or `refused` with the template's message, or `failed` with ours.

use std::error::Error;
use std::io::{self, BufRead, Write};

use loquat_text::{ChatInput, ChatTemplate, Clock, TextError};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match render(&serde_json::from_str(&line?)?) {
            Ok(text) => json!({ "text": text }),
            Err(TextError::TemplateRefused { message }) => json!({ "refused": message }),
            Err(error) => json!({ "failed": error.to_string() }),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn render(case: &Value) -> Result<String, TextError> {
    let word = |field: &str| case[field].as_str().unwrap_or_default().to_owned();
    let mut template = match case["builtin"].as_str() {
        Some(name) => ChatTemplate::builtin_named(name).ok_or(TextError::NoChatTemplate)?,
        None => ChatTemplate::new(&word("template"))?,
    };
    if let Some(now) = case["now"].as_u64() {
        template = template.with_clock(Clock::Fixed(now));
    }
    template.render(&ChatInput {
        messages: case["messages"].clone(),
        tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
        add_generation_prompt: case["generate"].as_bool().unwrap_or(false),
        bos_token: word("bos"),
        eos_token: word("eos"),
        kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
    })
}
