//! Every number of every golden's config replaced by impossible ones: each is refused or read, and
//! nothing panics.

use crate::goldens;
use std::panic::{AssertUnwindSafe, catch_unwind};

use loquat_spec::{Config, families};
use serde_json::{Value, json};

/// Removes the field.
const GONE: &str = "\u{0}gone";

fn hostile() -> Vec<Value> {
    vec![
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(1e300),
        json!(-1e-300),
        json!(0.3),
        json!("x"),
        json!(true),
        json!(null),
        json!([]),
        json!({}),
        json!(4_096),
        json!(16_777_216),
        json!(u32::MAX),
        json!(u64::MAX),
        json!({"__float__": "NaN"}),
        json!({"__float__": "-Infinity"}),
        json!(GONE),
    ]
}

/// Older configs have bare infinities, which are not JSON.
fn json(text: &str) -> Value {
    let spelled = || text.replace("Infinity", r#"{"__float__": "Infinity"}"#);
    serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&spelled()))
        .unwrap()
}

/// Pointers to every number, and to every list and table that holds some.
fn numeric(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at),
        Value::Array(items) => {
            found.push(at.clone());
            // The first is as good as the others.
            if let Some(first) = items.first() {
                numeric(first, format!("{at}/0"), found);
            }
        }
        Value::Object(fields) => {
            if !at.is_empty() {
                found.push(at.clone());
            }
            for (field, value) in fields {
                numeric(value, format!("{at}/{field}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn replaced(config: &Value, pointer: &str, value: &Value) -> Value {
    let mut config = config.clone();
    if value == GONE {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        match config.pointer_mut(parent) {
            Some(Value::Object(fields)) => drop(fields.remove(field)),
            Some(Value::Array(items)) => drop(items.remove(0)),
            other => panic!("{other:?}"),
        }
    } else {
        *config.pointer_mut(pointer).unwrap() = value.clone();
    }
    config
}

/// Reads the text: the spec validates, and each of its roles has a name.
fn read(text: &str) -> Result<(), String> {
    let Ok(config) = Config::parse(text, "config.json") else {
        return Ok(());
    };
    let Ok(described) = families::from_config(&config) else {
        return Ok(());
    };
    for naming in &described.namings {
        let spec = naming.fitted(described.spec.clone());
        spec.validate().map_err(|error| error.to_string())?;
        for slot in naming.slots(&spec) {
            if slot.names.iter().any(String::is_empty) {
                return Err(format!("{} has no name", slot.role));
            }
        }
    }
    Ok(())
}

#[test]
fn hostile_numbers_are_refused_without_panic() {
    let folders = goldens::folders();
    assert!(folders.len() >= 8, "{folders:?}");
    let mut wrong = Vec::new();
    let mut tried = 0;
    for folder in folders {
        for style in ["config.json", "config.hub_style.json"] {
            let text = goldens::config(&folder, style);
            let config = json(&text);
            let mut pointers = Vec::new();
            numeric(&config, String::new(), &mut pointers);
            assert!(pointers.len() > 8, "{}: {pointers:?}", folder.display());
            for pointer in pointers {
                for value in hostile() {
                    let changed = replaced(&config, &pointer, &value).to_string();
                    let outcome = catch_unwind(AssertUnwindSafe(|| read(&changed)));
                    let outcome = outcome.unwrap_or_else(|_| Err("a panic".into()));
                    if let Err(problem) = outcome {
                        let name = folder.display();
                        wrong.push(format!("{name} {style} {pointer} = {value}: {problem}"));
                    }
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1000, "{tried}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
