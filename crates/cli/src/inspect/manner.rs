//! How a model speaks: its template, its formats, its sampling.

use loquat::TemplateOrigin;
use loquat_text::ChatTemplate;
use loquat_text::format::{FormatOverrides, OutputFormat};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::load::Model;
use crate::sampling::Sampling;

/// What is told of it. What cannot be read is told as that: a model is worth describing whether
/// or not it can chat.
pub struct Manner {
    template: Result<Option<Spoken>, CliError>,
    sampling: Result<Sampling, CliError>,
}

/// A template, and what goes with it.
struct Spoken {
    origin: TemplateOrigin,
    template: ChatTemplate,
    format: OutputFormat,
}

impl Manner {
    pub fn of(model: &Model) -> Self {
        Self {
            template: spoken(model),
            sampling: sampling(model),
        }
    }

    /// Names and values for people; an empty value is none.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let sampling = match &self.sampling {
            Ok(sampling) => sampling.told(),
            Err(error) => error.to_string(),
        };
        let mut rows = match &self.template {
            Ok(Some(spoken)) => spoken.rows(),
            Ok(None) => vec![("chat template", "none".to_owned())],
            Err(error) => vec![("chat template", format!("none to be had: {error}"))],
        };
        rows.push(("sampling", sampling));
        rows
    }

    pub fn to_json(&self) -> Value {
        let chat = match &self.template {
            Ok(Some(spoken)) => spoken.to_json(),
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

fn sampling(model: &Model) -> Result<Sampling, CliError> {
    Sampling::of(&model.generation_config()?)
}

fn spoken(model: &Model) -> Result<Option<Spoken>, CliError> {
    let tokenizer = model.tokenizer()?;
    let found = model.template(&tokenizer)?;
    Ok(found.map(|(origin, template)| Spoken {
        format: OutputFormat::for_model(Some(&template), &tokenizer, FormatOverrides::default()),
        origin,
        template,
    }))
}

impl Spoken {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let taken = [
            (self.template.supports_system(), "a system message"),
            (self.template.supports_tools(), "tools"),
            (self.template.takes_parts(), "content in parts"),
        ];
        let taken = taken.iter().filter(|(takes, _)| *takes);
        let taken: Vec<&str> = taken.map(|(_, what)| *what).collect();
        vec![
            ("chat template", self.origin.to_string()),
            ("it takes", taken.join(", ")),
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
            format!("{marked}, switched by {switches}")
        }
    }

    /// Variables of the template.
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
