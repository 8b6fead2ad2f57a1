//! JSON schemas: what is honoured, what is refused, and what reaches llguidance.

mod counts;
mod dates;
mod disjoint;
mod keywords;
mod lower;
mod place;
mod productive;
mod values;

use serde_json::{Value, json};

use crate::Result;
use crate::compile::on_large_stack;
use crate::source::Notation;

/// Whether every keyword of a schema can be honoured; otherwise names one that cannot, and where.
pub fn check_schema(schema: &Value) -> Result<()> {
    on_large_stack(Notation::Schema, || lower::lower(schema).map(drop))
}

/// A schema in the form llguidance gets: honoured keywords only, references by number, and our
/// choice of spacing. Needs a large stack.
pub(crate) fn prepare(schema: &Value) -> Result<Value> {
    let mut lowered = match lower::lower(schema)? {
        // Options stand in an object.
        Value::Bool(true) => json!({}),
        lowered => lowered,
    };
    if let Some(members) = lowered.as_object_mut() {
        members.insert("x-guidance".to_string(), options());
    }
    Ok(lowered)
}

/// One way to write each value. `\u` is left out because a property's name written with it would
/// count as another property.
fn options() -> Value {
    json!({
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": false,
        "json_allowed_escapes": "nrbtf\\\"",
    })
}
