//! Calls whose parameters are elements with raw text.

use serde_json::{Map, Value, json};

use super::{Part, ToolRule, Writer, cannot_hold, join, literal};
use crate::Result;
use crate::format::data::{RawValue, Tagged};
use crate::format::parse::schema::Types;

/// Keywords of a text parameter that raw text can be constrained to, and those without effect.
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
        let name = [tool.name, syntax.name.close].concat();
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
        let types = Types::for_parameter(tool.parameters, key);
        let schema = resolved(schema, tool.parameters);
        let raw = types == Types::STRING
            || types.allow_text()
                && syntax
                    .key_close
                    .iter()
                    .all(|(_, holds)| *holds == RawValue::BySchema);
        let wanted = |holds: &&(&str, RawValue)| match holds.1 {
            RawValue::BySchema => true,
            RawValue::Text => raw,
            RawValue::Json => !raw,
        };
        let close = syntax.key_close.iter().find(wanted);
        let close = close.map_or("", |(close, _)| *close);
        let open = [syntax.key_open, key, close, syntax.value_open].concat();
        let value = format!("{name}_value");
        let value = if raw {
            self.text(&value, tool, schema, syntax)?
        } else {
            let schema = if tool.strict {
                with_definitions(schema, tool.parameters)
            } else {
                kind_only(schema)
            };
            self.rule(&value, &format!("%json {schema}"));
            join([value, self.spell(syntax.value_close)])
        };
        Ok(join([self.spell(&open), value]))
    }

    /// Raw text with its closing mark.
    fn text(
        &mut self,
        name: &str,
        tool: &ToolRule<'_>,
        schema: &Value,
        syntax: &Tagged,
    ) -> Result<String> {
        if tool.strict {
            check_text(tool, schema)?;
        }
        if let Some(values) = choices(schema) {
            let raw = |value: &&Value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let values: Vec<String> = values.iter().map(raw).collect();
            let close = syntax.value_close.trim();
            if values.iter().any(|value| value.contains(close)) {
                return Err(cannot_hold(tool, "enum"));
            }
            let empty = if values.iter().any(String::is_empty) {
                "?"
            } else {
                ""
            };
            let values = values.iter().map(|value| literal(value));
            let values: Vec<String> = values.filter(|value| !value.is_empty()).collect();
            let values = format!("({}){empty}", values.join(" | "));
            return Ok(join([values, self.spell(syntax.value_close)]));
        }
        let bound = |keyword: &str| {
            if tool.strict {
                schema.get(keyword).and_then(Value::as_u64)
            } else {
                None
            }
        };
        let count = match (bound("minLength"), bound("maxLength")) {
            (None, None) => "*".to_owned(),
            (least, most) => {
                let most = most.map(|most| most.to_string()).unwrap_or_default();
                format!("{{{},{most}}}", least.unwrap_or(0))
            }
        };
        let padding = if syntax.padded { r"\n?" } else { "" };
        Ok(self.up_to(
            name,
            &format!("/(?s:.){count}{padding}/"),
            syntax.value_close,
        ))
    }

    /// Text that ends at the first `close`, matched without the white space around it.
    fn up_to(&mut self, name: &str, text: &str, close: &'static str) -> String {
        let mark = close.trim();
        match self.parts(mark)[..] {
            [Part::Text(mark)] => {
                let mark = literal(mark);
                self.rule(&format!("{name}[lazy]"), &format!("{text} {mark}"));
            }
            _ => self.rule(name, &join([text.to_owned(), self.spell(mark)])),
        }
        let after = close.find(mark).unwrap_or(0) + mark.len();
        join([name.to_owned(), self.spell(&close[after..])])
    }

    /// For a tool that does not list its parameters.
    fn any_parameters(&mut self, index: usize, syntax: &Tagged) -> String {
        let name = format!("parameter_{index}");
        let close = syntax.key_close.first().map_or("", |(close, _)| *close);
        let value = format!("{name}_value");
        let value = self.up_to(&value, "/(?s:.*)/", syntax.value_close);
        let body = join([
            self.spell(syntax.key_open),
            "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/".into(),
            self.spell(&[close, syntax.value_open].concat()),
            value,
        ]);
        self.rule(&name, &body);
        format!("{name}*")
    }
}

/// Refuses keywords that raw text cannot be constrained to.
fn check_text(tool: &ToolRule<'_>, schema: &Value) -> Result<()> {
    if let Some(Value::Array(schemas)) = schema.get("anyOf") {
        // A union of bare types: any text is a string.
        let bare = |schema: &&Value| {
            let keywords = schema.as_object().into_iter().flat_map(Map::keys);
            keywords.into_iter().all(|keyword| keyword == "type")
        };
        return if schemas.iter().all(|schema| bare(&schema)) {
            Ok(())
        } else {
            Err(cannot_hold(tool, "anyOf"))
        };
    }
    let mut keywords = schema.as_object().into_iter().flat_map(Map::keys);
    match keywords.find(|keyword| !TEXT_KEYWORDS.contains(&keyword.as_str())) {
        Some(keyword) => Err(cannot_hold(tool, keyword)),
        None => Ok(()),
    }
}

/// The target of a reference. A dangling or cyclic reference is left unchanged.
fn resolved<'a>(schema: &'a Value, whole: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..8 {
        let target = schema.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|target| target.strip_prefix('#'));
        match target.and_then(|path| whole.pointer(path)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

fn choices(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// A property may refer to definitions of the whole schema.
fn with_definitions(schema: &Value, whole: &Value) -> Value {
    let mut schema = schema.clone();
    for key in ["$defs", "definitions"] {
        if let (Some(definitions), Some(keywords)) = (whole.get(key), schema.as_object_mut()) {
            keywords.insert(key.into(), definitions.clone());
        }
    }
    schema
}

/// Only the type, for schemas that are advisory and may contain what grammars cannot express.
fn kind_only(schema: &Value) -> Value {
    const KINDS: [&str; 6] = ["array", "boolean", "integer", "null", "number", "object"];
    match schema.get("type").and_then(Value::as_str) {
        Some(kind) if KINDS.contains(&kind) => json!({ "type": kind }),
        _ => json!({}),
    }
}
