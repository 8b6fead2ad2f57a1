//! Where templates are kept, and the tags to rewrite before they are compiled.

use std::path::Path;

use loquat_weights::gguf::{Metadata, Value as GgufValue};
use serde_json::Value;

use super::DEFAULT;
use crate::huggingface::read_json;
use crate::{Result, TextError};

const GGUF_KEY: &str = "tokenizer.chat_template";

/// The templates of a model folder as `(name, text)`.
pub(super) fn in_folder(dir: &Path) -> Result<Vec<(String, String)>> {
    let path = dir.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
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

/// A template with the tags rewritten that Jinja2 under `transformers` reads differently.
///
/// `{% generation %}` marks what to train on and means nothing here; it becomes a condition that
/// always holds, so that its effect on the white space around it stays. A line break after
/// `{% raw %}` belongs to the raw text, and is not trimmed as after other tags.
pub(super) fn adapted(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        let Some(close) = tag.find("%}") else {
            break;
        };
        let inner = &tag[2..close];
        let trimmed = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match trimmed {
            "generation" => inner.replacen("generation", "if true", 1),
            "endgeneration" => inner.replacen("endgeneration", "endif", 1),
            "raw" if !inner.ends_with(['-', '+']) => format!("{inner}+"),
            _ => inner.to_owned(),
        };
        out.push_str(before);
        out.push_str("{%");
        out.push_str(&replacement);
        out.push_str("%}");
        rest = &tag[close + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_tags_keep_their_white_space_control() {
        let cases = [
            (
                "a {% generation %}b{% endgeneration %}",
                "a {% if true %}b{% endif %}",
            ),
            (
                "{%- generation -%}x{%+ endgeneration -%}",
                "{%- if true -%}x{%+ endif -%}",
            ),
            (
                "{% if generation %}{{ x }}{% endif %}",
                "{% if generation %}{{ x }}{% endif %}",
            ),
            ("{% raw %}\n{% endraw %}", "{% raw +%}\n{% endraw %}"),
            ("{% raw -%}\n{% endraw %}", "{% raw -%}\n{% endraw %}"),
            ("no tags, {% unclosed", "no tags, {% unclosed"),
        ];
        for (template, plain) in cases {
            assert_eq!(adapted(template), plain);
        }
    }
}
