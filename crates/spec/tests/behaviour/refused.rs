//! Configs with one error, and its refusal.

use loquat_spec::SpecError;
use serde_json::Value;

use crate::common::{load, with};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Variant {
    Missing,
    Invalid,
    Unsupported,
}

use Variant::{Invalid, Missing, Unsupported};

/// A change to a config that loads, and the field its refusal names.
pub fn refused(config: Value, table: Vec<(Value, Variant, &str)>) {
    if let Err(error) = load(&config) {
        panic!("before it is changed: {error}");
    }
    for (changes, expected, name) in table {
        let changed = with(config.clone(), changes.clone());
        let Err(error) = load(&changed) else {
            panic!("{changes} is taken");
        };
        let (variant, field) = match &error {
            SpecError::Missing { field } => (Missing, field),
            SpecError::Invalid { field, .. } => (Invalid, field),
            SpecError::Unsupported { field, .. } => (Unsupported, field),
            other => panic!("{changes}: {other}"),
        };
        assert_eq!((variant, field.as_str()), (expected, name), "{changes}");
        let message = error.to_string();
        assert!(message.contains(name), "{message}");
        assert!(message.len() < 300, "{message}");
    }
}
