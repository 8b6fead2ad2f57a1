//! Tool definitions.

use loquat_chat::Tool;
use serde_json::{Value, json};

use super::object::{Object, Place};
use crate::error::CliError;

/// A list of tools, or one.
pub fn tools(flag: &'static str, value: Value) -> Result<Vec<Tool>, CliError> {
    let place = Place::root(flag, "tools");
    match value {
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            items
                .map(|(index, item)| tool(&place.item(index), item))
                .collect()
        }
        one @ Value::Object(_) => Ok(vec![tool(&place.item(0), one)?]),
        other => Err(place.wrong(&other, "a list of tools, or one")),
    }
}

/// With `function` around its definition, or without.
fn tool(place: &Place, value: Value) -> Result<Tool, CliError> {
    let mut fields = place.object(value)?;
    fields.constant("type", "function")?;
    match fields.take("function") {
        Some(function) => {
            let mut function = place.field("function").object(function)?;
            let tool = definition(&mut function)?;
            function.end()?;
            fields.end()?;
            Ok(tool)
        }
        None => {
            let tool = definition(&mut fields)?;
            fields.end()?;
            Ok(tool)
        }
    }
}

fn definition(fields: &mut Object) -> Result<Tool, CliError> {
    Ok(Tool {
        name: fields.required_text("name")?,
        description: fields.text("description")?,
        parameters: match fields.take("parameters") {
            Some(schema @ Value::Object(_)) => schema,
            None => json!({ "type": "object", "properties": {} }),
            Some(other) => {
                let place = fields.place.field("parameters");
                return Err(place.wrong(&other, "a JSON schema, which is an object"));
            }
        },
        strict: fields.flag("strict")?.unwrap_or(false),
    })
}
