//! What the model may ask to have done.

use serde_json::{Value, json};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema of an object: the arguments.
    pub parameters: Value,
    /// Hold the arguments to the schema while they are generated.
    pub strict: bool,
}

impl Tool {
    /// As templates expect it.
    pub(crate) fn definition(&self) -> Value {
        let Self {
            name,
            description,
            parameters,
            strict: _,
        } = self;
        let mut function = json!({ "name": name });
        if let Some(description) = description {
            function["description"] = json!(description);
        }
        function["parameters"] = parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

/// Whether tools are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}
