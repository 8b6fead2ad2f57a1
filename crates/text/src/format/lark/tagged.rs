//! Calls whose parameters are elements with raw text in them.

use serde_json::{Map, Value, json};

use super::{ToolRule, Writer, cannot_hold, join, literal};
use crate::Result;
use crate::format::data::{Tagged, Value as Holds};

/// Keywords of a text parameter that raw text can be held to, and those that say nothing of it.
const TEXT_KEYWORDS: &[&str] = &[
    "type",
    "enum",
    "const",
    "minLength",
    "maxLength",
    "title",
    "description",
    "default",
    "examples",
];

impl Writer<'_> {
    pub(super) fn tagged_call(
        &mut self,
        index: usize,
        tool: &ToolRule<'_>,
        syntax: &Tagged,
    ) -> Result<String> {
        let parameters = match tool.parameters.get("properties").and_then(Value::as_object) {
            Some(properties) => self.parameters(index, tool, syntax, properties)?,
            None => self.any_parameters(index, syntax),
        };
        let name = [syntax.name.open, tool.name, syntax.name.close].concat();
        Ok(join([
            self.spell(&name),
            parameters,
            self.spell(syntax.end),
        ]))
    }

    /// In the schema's order, each once.
    fn parameters(
        &mut self,
        index: usize,
        tool: &ToolRule<'_>,
        syntax: &Tagged,
        properties: &Map<String, Value>,
    ) -> Result<String> {
        let required = tool.parameters.get("required").and_then(Value::as_array);
        let mut names = Vec::with_capacity(properties.len());
        for (at, (key, schema)) in properties.iter().enumerate() {
            let name = format!("parameter_{index}_{at}");
            let body = self.parameter(&name, tool, syntax, (key, schema))?;
            self.rule(&name, &body);
            let is_required = required.is_some_and(|keys| keys.iter().any(|each| each == key));
            names.push(if is_required {
                name
            } else {
                format!("{name}?")
            });
        }
        Ok(names.join(" "))
    }

    fn parameter(
        &mut self,
        name: &str,
        tool: &ToolRule<'_>,
        syntax: &Tagged,
        (key, schema): (&str, &Value),
    ) -> Result<String> {
        let is_text = holds_text(schema);
        let wanted = |holds: &&(&str, Holds)| match holds.1 {
            Holds::BySchema => true,
            Holds::Text => is_text,
            Holds::Json => !is_text,
        };
        let close = syntax.key_close.iter().find(wanted);
        let close = close.map_or("", |(close, _)| *close);
        let open = [syntax.key_open, key, close, syntax.value_open].concat();
        let value = format!("{name}_value");
        let value = match is_text {
            true => self.text(&value, tool, schema, syntax.value_close)?,
            false => {
                let schema = match tool.strict {
                    true => with_definitions(schema, tool.parameters),
                    false => kind_only(schema),
                };
                self.rule(&value, &format!("%json {schema}"));
                join([value, self.spell(syntax.value_close)])
            }
        };
        Ok(join([self.spell(&open), value]))
    }

    /// Raw text, with what closes it.
    fn text(
        &mut self,
        name: &str,
        tool: &ToolRule<'_>,
        schema: &Value,
        close: &str,
    ) -> Result<String> {
        if tool.strict {
            let keywords = schema.as_object().into_iter().flat_map(Map::keys);
            let unknown = |keyword: &&String| !TEXT_KEYWORDS.contains(&keyword.as_str());
            if let Some(keyword) = keywords.into_iter().find(unknown) {
                return Err(cannot_hold(tool, keyword));
            }
        }
        if let Some(values) = choices(schema) {
            let values: Vec<String> = values
                .iter()
                .filter_map(|value| value.as_str())
                .map(literal)
                .collect();
            let values = match values.iter().any(String::is_empty) {
                true => format!("({})?", values.join(" | ").trim_matches([' ', '|'])),
                false => format!("({})", values.join(" | ")),
            };
            return Ok(join([values, self.spell(close)]));
        }
        let bound = |keyword: &str| match tool.strict {
            true => schema.get(keyword).and_then(Value::as_u64),
            false => None,
        };
        let count = match (bound("minLength"), bound("maxLength")) {
            (None, None) => "*".to_owned(),
            (least, most) => {
                let most = most.map(|most| most.to_string()).unwrap_or_default();
                format!("{{{},{most}}}", least.unwrap_or(0))
            }
        };
        // The first closing ends the value, so only what is after it is spelt out.
        let mark = close.trim_end();
        match (self.special)(mark) {
            Some(_) => self.rule(name, &format!("/(?s:.){count}/ {}", self.spell(mark))),
            None => {
                let mark = literal(mark);
                self.rule(&format!("{name}[lazy]"), &format!("/(?s:.){count}/ {mark}"));
            }
        }
        Ok(join([name.to_owned(), self.spell(&close[mark.len()..])]))
    }

    /// Of a tool that does not say which it has.
    fn any_parameters(&mut self, index: usize, syntax: &Tagged) -> String {
        let name = format!("parameter_{index}");
        let close = syntax.key_close.first().map_or("", |(close, _)| *close);
        let value = format!("{name}_value");
        let mark = syntax.value_close.trim_end();
        self.rule(
            &format!("{value}[lazy]"),
            &format!("/(?s:.*)/ {}", literal(mark)),
        );
        let body = join([
            self.spell(syntax.key_open),
            "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/".into(),
            self.spell(&[close, syntax.value_open].concat()),
            value,
            self.spell(&syntax.value_close[mark.len()..]),
        ]);
        self.rule(&name, &body);
        format!("{name}*")
    }
}

/// Whether a parameter's raw text is its value, rather than JSON of it.
fn holds_text(schema: &Value) -> bool {
    match (schema.get("type"), choices(schema)) {
        (Some(kind), _) => kind == "string",
        (None, Some(values)) => values.iter().all(|value| value.is_string()),
        (None, None) => !schema.as_object().is_some_and(|keywords| {
            let structured = ["$ref", "anyOf", "oneOf", "allOf", "properties", "items"];
            structured
                .iter()
                .any(|keyword| keywords.contains_key(*keyword))
        }),
    }
}

fn choices(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// A property may refer to what the whole schema defines.
fn with_definitions(schema: &Value, whole: &Value) -> Value {
    let mut schema = schema.clone();
    for key in ["$defs", "definitions"] {
        if let (Some(definitions), Some(keywords)) = (whole.get(key), schema.as_object_mut()) {
            keywords.insert(key.into(), definitions.clone());
        }
    }
    schema
}

/// Nothing but the type, where a schema is advice and may hold what grammars cannot.
fn kind_only(schema: &Value) -> Value {
    match schema.get("type") {
        Some(kind) => json!({ "type": kind }),
        None => json!({}),
    }
}
