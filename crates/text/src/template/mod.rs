//! Chat templates: a conversation written out the way a model was trained to read it.
//!
//! Templates are written for Jinja2 as `transformers` sets it up, so the engine here is set up the
//! same way: block trimming, Python's string methods and spelling of values, `tojson` as
//! `json.dumps`, `raise_exception`, `strftime_now`.

mod clock;
mod python;
mod source;

use std::error::Error as _;
use std::path::Path;

use loquat_weights::gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Map;

pub use self::clock::Clock;
use crate::{Result, TextError};

const DEFAULT: &str = "default";
/// The template of this name is used instead when tools are offered.
const TOOL_USE: &str = "tool_use";

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The conversation: an array of objects with `role` and `content`.
    pub messages: serde_json::Value,
    /// Tool definitions, an array.
    pub tools: Option<serde_json::Value>,
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    pub bos_token: String,
    pub eos_token: String,
    /// Further variables of the template, such as `enable_thinking`.
    pub kwargs: Map<String, serde_json::Value>,
}

/// A model's chat template, compiled.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// The message of a template's own `raise_exception`, carried through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles one template.
    pub fn new(template: &str) -> Result<Self> {
        Self::from_named(vec![(DEFAULT.to_owned(), template.to_owned())])
    }

    /// The template of a model folder: `chat_template.jinja`, `chat_template.json` or the
    /// `chat_template` of `tokenizer_config.json`, the first that is there.
    pub fn from_huggingface(dir: &Path) -> Result<Self> {
        Self::from_named(source::in_folder(dir)?)
    }

    /// The template of a GGUF file, `tokenizer.chat_template`.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        Self::from_named(source::in_gguf(metadata))
    }

    /// The same template reading another clock.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        let now = move |format: &str| clock.strftime(format);
        self.environment.add_function("strftime_now", now);
        self
    }

    fn from_named(templates: Vec<(String, String)>) -> Result<Self> {
        let mut environment = environment()?;
        for (name, text) in templates {
            let text = source::adapted(&text);
            environment
                .add_template_owned(name, text)
                .map_err(|source| TextError::TemplateSyntax { source })?;
        }
        match environment.get_template(DEFAULT) {
            Ok(_) => Ok(Self { environment }.with_clock(Clock::System)),
            Err(_) => Err(TextError::NoChatTemplate),
        }
    }

    /// Writes the conversation out.
    pub fn render(&self, input: &ChatInput) -> Result<String> {
        let ChatInput {
            messages,
            tools,
            add_generation_prompt,
            bos_token,
            eos_token,
            kwargs,
        } = input;
        let mut variables = vec![
            ("messages", Value::from(Serde(messages))),
            ("tools", Value::from(Serde(tools))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(*add_generation_prompt)),
            ("bos_token", Value::from(bos_token.as_str())),
            ("eos_token", Value::from(eos_token.as_str())),
        ];
        for (name, value) in kwargs {
            variables.push((name, Value::from(Serde(value))));
        }
        let template = tools
            .as_ref()
            .and_then(|_| self.environment.get_template(TOOL_USE).ok())
            .map_or_else(|| self.environment.get_template(DEFAULT), Ok)
            .map_err(|_| TextError::NoChatTemplate)?;
        template
            .render(Value::from_pairs(variables))
            .map_err(|error| match raised(&error) {
                Some(message) => TextError::TemplateRefused { message },
                None => TextError::TemplateRender { source: error },
            })
    }
}

/// An engine that behaves as Jinja2 does under `transformers`.
fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|source| TextError::TemplateSyntax { source })?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| {
        let text = python::str(value);
        out.write_str(&text).map_err(Error::from)
    });
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_test("iterable", python::is_iterable);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| python::str(value));
    environment.add_function("raise_exception", |message: &str| -> Result<Value, Error> {
        let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err(error.with_source(Raised(message.to_owned())))
    });
    Ok(environment)
}

/// `json.dumps` with the arguments `transformers` passes on.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let options = python::JsonOptions {
        indent: kwargs.get::<Option<usize>>("indent")?,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: kwargs.get::<Option<Vec<String>>>("separators")?,
    };
    kwargs.assert_all_used()?;
    python::json_dumps(value, &options)
}

fn raised(error: &Error) -> Option<String> {
    let mut next = error.source();
    while let Some(cause) = next {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Some(message.clone());
        }
        next = cause.source();
    }
    None
}
