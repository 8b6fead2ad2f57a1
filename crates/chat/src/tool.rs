//! Tools the model may call.

use serde_json::{Value, json};

/// A function the model may call.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tool {
    /// The name by which the model calls it.
    pub name: String,
    /// What the tool does and when to call it, for the model to read.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub description: Option<String>,
    /// The JSON schema of the arguments, an object.
    pub parameters: Value,
    /// Constrain the arguments to the schema during generation.
    #[cfg_attr(feature = "serde", serde(default))]
    pub strict: bool,
}

impl Tool {
    /// The definition in the form templates expect.
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

/// Which tools a reply must or may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}
