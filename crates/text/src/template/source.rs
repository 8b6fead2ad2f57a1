//! Reads templates from checkpoints.

use std::path::Path;

use loquat_weights::gguf::{Metadata, Value as GgufValue};
use loquat_weights::{MAX_CONFIG_BYTES, read_side_file};
use serde_json::Value;

use super::DEFAULT;
use crate::huggingface::read_json;
use crate::{Result, TextError};

const GGUF_KEY: &str = "tokenizer.chat_template";

/// The templates of a model folder as `(name, text)`.
pub(super) fn in_folder(dir: &Path) -> Result<Vec<(String, String)>> {
    let path = dir.join("chat_template.jinja");
    let read = read_side_file(&path, MAX_CONFIG_BYTES)
        .and_then(|text| String::from_utf8(text).map_err(std::io::Error::other));
    match read {
        Ok(text) => return Ok(vec![(DEFAULT.to_owned(), text)]),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(TextError::Read { path, source }),
    }
    for file in ["chat_template.json", "tokenizer_config.json"] {
        let json = read_json(dir.join(file))?;
        let templates = json.get("chat_template").map(named).unwrap_or_default();
        if !templates.is_empty() {
            return Ok(templates);
        }
    }
    Ok(Vec::new())
}

/// One template, or a list of `{name, template}`.
fn named(value: &Value) -> Vec<(String, String)> {
    match value {
        Value::String(text) => vec![(DEFAULT.to_owned(), text.clone())],
        Value::Array(list) => {
            let pair = |entry: &Value| {
                let text = |key| entry.get(key)?.as_str().map(str::to_owned);
                Some((text("name")?, text("template")?))
            };
            list.iter().filter_map(pair).collect()
        }
        _ => Vec::new(),
    }
}

/// The templates of a GGUF file: the default one, and others under `.NAME`.
pub(super) fn in_gguf(metadata: &Metadata) -> Vec<(String, String)> {
    let texts = metadata.iter().filter_map(|(key, value)| match value {
        GgufValue::String(text) => Some((key.strip_prefix(GGUF_KEY)?, text)),
        _ => None,
    });
    let named = texts.filter_map(|(rest, text)| match rest {
        "" => Some((DEFAULT.to_owned(), text.clone())),
        _ => Some((rest.strip_prefix('.')?.to_owned(), text.clone())),
    });
    named.collect()
}
