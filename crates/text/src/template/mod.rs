//! Chat templates render a conversation as the model was trained to read it.
//!
//! Templates are written for Jinja2 as `transformers` configures it; [`jinja`] interprets them the
//! same way. Probes find out what a template supports ([`probe`]). A model without a template gets
//! its family's ([`builtin`]).

mod builtin;
mod clock;
mod jinja;
mod probe;
mod source;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use loquat_weights::gguf::Metadata;
use serde_json::{Map, Value};

pub use self::clock::Clock;
pub(crate) use self::jinja::FaultKind;
use self::jinja::Template;
pub use self::jinja::TemplateFault;
use self::probe::Probes;
pub use self::probe::{ThinkingSwitch, ThinkingValues};
use crate::{Result, TextError};

const DEFAULT: &str = "default";
/// The template of this name is used instead when tools are offered.
const TOOL_USE: &str = "tool_use";

/// Names of a message's reasoning, the standard one first.
const REASONING_NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The input of a template.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The conversation: an array of objects with `role` and `content`.
    pub messages: Value,
    /// Tool definitions, an array.
    pub tools: Option<Value>,
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Text of the beginning-of-sequence token.
    pub bos_token: String,
    /// Text of the end-of-sequence token.
    pub eos_token: String,
    /// Further variables of the template, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
}

/// A model's chat template, compiled.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    default: Arc<Template>,
    tool_use: Option<Arc<Template>>,
    clock: Clock,
    probes: Arc<Probes>,
}

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
        self.clock = clock;
        self
    }

    fn from_named(templates: Vec<(String, String)>) -> Result<Self> {
        let (mut default, mut tool_use) = (None, None);
        for (name, text) in templates {
            let slot = match name.as_str() {
                DEFAULT => &mut default,
                TOOL_USE => &mut tool_use,
                _ => continue,
            };
            let template =
                Template::parse(&text).map_err(|source| TextError::TemplateSyntax { source })?;
            *slot = Some(Arc::new(template));
        }
        Ok(Self {
            default: default.ok_or(TextError::NoChatTemplate)?,
            tool_use,
            clock: Clock::System,
            probes: Arc::default(),
        })
    }

    /// The template's text: the one that is used with tools, or without them.
    pub fn source(&self, with_tools: bool) -> &str {
        self.template(with_tools).source()
    }

    fn template(&self, with_tools: bool) -> &Template {
        match &self.tool_use {
            Some(template) if with_tools => template,
            _ => &self.default,
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
        let messages = with_reasoning_names(messages);
        let opens_turn = Value::Bool(*add_generation_prompt);
        let (bos, eos) = (bos_token.as_str().into(), eos_token.as_str().into());
        let mut variables = vec![("bos_token", &bos), ("eos_token", &eos)];
        variables.extend(kwargs.iter().map(|(name, value)| (name.as_str(), value)));
        // The conversation overrides variables of the same names.
        variables.extend([
            ("messages", messages.as_ref()),
            ("tools", tools.as_ref().unwrap_or(&Value::Null)),
            ("add_generation_prompt", &opens_turn),
        ]);
        if !kwargs.contains_key("documents") {
            variables.push(("documents", &Value::Null));
        }
        self.template(tools.is_some())
            .render(&variables, self.clock)
            .map_err(|source| match source.kind {
                FaultKind::Raised => TextError::TemplateRefused {
                    message: source.reason,
                },
                _ => TextError::TemplateRender { source },
            })
    }
}

/// The conversation with each message's reasoning under every name that templates read, as in
/// `transformers`.
fn with_reasoning_names(messages: &Value) -> Cow<'_, Value> {
    let reasoning = |message: &Value| {
        let mut names = REASONING_NAMES.iter();
        names.find_map(|name| message.get(name).filter(|value| !value.is_null()).cloned())
    };
    let Value::Array(list) = messages else {
        return Cow::Borrowed(messages);
    };
    if !list.iter().any(|message| reasoning(message).is_some()) {
        return Cow::Borrowed(messages);
    }
    let named = list
        .iter()
        .map(|message| match (message, reasoning(message)) {
            (Value::Object(fields), Some(reasoning)) => {
                let mut named = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
                named.extend(fields.clone());
                named.insert("reasoning_content".to_owned(), reasoning);
                Value::Object(named)
            }
            _ => message.clone(),
        });
    Cow::Owned(named.collect())
}
