//! JSON schemas: supported and refused keywords, and the form passed to llguidance.

mod counts;
mod dates;
mod disjoint;
mod keywords;
mod lower;
mod path;
mod productive;
mod values;

use serde_json::{Value, json};

use crate::Result;
use crate::compile::on_large_stack;
use crate::source::Notation;

/// Checks that every keyword of a schema is supported. Otherwise names one that is not, with its
/// path.
pub fn check_schema(schema: &Value) -> Result<()> {
    on_large_stack(Notation::Schema, || lower::lower(schema).map(drop))
}

/// A schema in the form passed to llguidance: supported keywords only, references by number, and
/// fixed spacing. Needs a large stack.
pub(crate) fn prepare(schema: &Value) -> Result<Value> {
    let mut lowered = match lower::lower(schema)? {
        // Options are an object.
        Value::Bool(true) => json!({}),
        lowered => lowered,
    };
    if let Some(members) = lowered.as_object_mut() {
        members.insert("x-guidance".to_string(), options());
    }
    Ok(lowered)
}

/// One way to write each value. `\u` is excluded because a property name written with it would
/// count as another property.
fn options() -> Value {
    json!({
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": false,
        "json_allowed_escapes": "nrbtf\\\"",
    })
}
