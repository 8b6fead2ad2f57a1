//! The chat template, output formats and sampling defaults of a model.

use loquat::{ModelFiles, TemplateOrigin};
use loquat_text::ChatTemplate;
use loquat_text::format::{FormatOverrides, OutputFormat};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::sampling::Sampling;

/// The chat section of the report. Errors are part of it, since a model without a usable template
/// can still be inspected.
pub struct ChatSummary {
    template: Result<Option<TemplateSummary>, CliError>,
    sampling: Result<Sampling, CliError>,
}

/// A template and the formats detected from it.
struct TemplateSummary {
    origin: TemplateOrigin,
    template: ChatTemplate,
    format: OutputFormat,
}

impl ChatSummary {
    pub fn new(model: &ModelFiles) -> Self {
        Self {
            template: template(model),
            sampling: sampling(model),
        }
    }

    /// Names and values; an empty value is not shown.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let sampling = match &self.sampling {
            Ok(sampling) => sampling.describe(),
            Err(error) => error.to_string(),
        };
        let mut rows = match &self.template {
            Ok(Some(template)) => template.rows(),
            Ok(None) => vec![("chat template", "none".to_owned())],
            Err(error) => vec![("chat template", format!("unusable: {error}"))],
        };
        rows.push(("sampling", sampling));
        rows
    }

    pub fn to_json(&self) -> Value {
        let chat = match &self.template {
            Ok(Some(template)) => template.to_json(),
            Ok(None) => Value::Null,
            Err(error) => json!({ "error": error.to_string() }),
        };
        let sampling = match &self.sampling {
            Ok(sampling) => sampling.to_json(),
            Err(error) => json!({ "error": error.to_string() }),
        };
        json!({ "chat": chat, "sampling": sampling })
    }
}

fn sampling(model: &ModelFiles) -> Result<Sampling, CliError> {
    Sampling::from_config(&model.generation_config()?)
}

fn template(model: &ModelFiles) -> Result<Option<TemplateSummary>, CliError> {
    let tokenizer = model.tokenizer()?;
    let found = model.template(&tokenizer)?;
    Ok(found.map(|(origin, template)| TemplateSummary {
        format: OutputFormat::for_model(Some(&template), &tokenizer, FormatOverrides::default()),
        origin,
        template,
    }))
}

impl TemplateSummary {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let supported = [
            (self.template.supports_system(), "system messages"),
            (self.template.supports_tools(), "tools"),
            (self.template.takes_parts(), "content in parts"),
        ];
        let supported = supported.iter().filter(|(supports, _)| *supports);
        let supported: Vec<&str> = supported.map(|(_, what)| *what).collect();
        vec![
            ("chat template", self.origin.to_string()),
            ("supports", supported.join(", ")),
            ("thinking", self.thinking()),
            (
                "tool calls",
                self.tool_format().unwrap_or("none").to_owned(),
            ),
        ]
    }

    fn thinking(&self) -> String {
        let switches = self.thinking_switches().join(", ");
        let marked = self.reasoning_format().unwrap_or("not marked");
        if switches.is_empty() {
            marked.to_owned()
        } else {
            format!("{marked}, controlled by {switches}")
        }
    }

    /// Template variables that control thinking.
    fn thinking_switches(&self) -> Vec<&'static str> {
        let switches = self.template.thinking_switches().iter();
        switches.map(|switch| switch.variable).collect()
    }

    fn reasoning_format(&self) -> Option<&'static str> {
        self.format.reasoning.map(|format| format.name)
    }

    fn tool_format(&self) -> Option<&'static str> {
        self.format.calls.map(|format| format.name)
    }

    fn to_json(&self) -> Value {
        json!({
            "template": self.origin.to_string(),
            "takes_system": self.template.supports_system(),
            "takes_tools": self.template.supports_tools(),
            "takes_parts": self.template.takes_parts(),
            "thinking_switches": self.thinking_switches(),
            "reasoning_format": self.reasoning_format(),
            "tool_format": self.tool_format(),
        })
    }
}
