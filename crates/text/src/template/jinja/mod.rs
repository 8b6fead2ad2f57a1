//! Jinja2 as `transformers` sets it up, down to its quirks.
//!
//! Chat templates are programs written against one implementation: Jinja2 on Python values, in an
//! immutable sandbox, with `trim_blocks` and `lstrip_blocks`. Their output goes into a model, so it
//! must match to the byte, and if Python refuses (text plus a list, a loop over `None`) the
//! conversation must be refused. That needs Python's values and operators as well as Jinja's
//! syntax, hence a dedicated interpreter: [`lexer`] → [`parser`] → [`ast`], run by [`interpreter`]
//! and [`evaluate`] over [`value`], within a [`budget`].
//!
//! Not supported: other templates (`include`, `import`, `extends`), automatic escaping, and filters
//! that prompts do not use. These are refused by name.

mod ast;
mod budget;
mod call;
mod compare;
mod dict;
mod error;
mod evaluate;
mod filters;
mod format;
mod globals;
mod interpreter;
mod lexer;
mod methods;
mod ops;
mod parser;
mod predicates;
mod printing;
mod scope;
mod str_methods;
mod strings;
mod unicode;
mod value;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

pub use self::error::TemplateFault;
pub(crate) use self::error::{FaultKind, Result};
use self::interpreter::Interpreter;
use self::value::Value;
use super::clock::Clock;

/// A template, ready to be rendered.
pub(super) struct Template {
    source: String,
    body: ast::Body,
    blocks: Vec<Arc<ast::Block>>,
    names: HashSet<Arc<str>>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.source).finish()
    }
}

/// The largest source that is parsed. Published templates have up to 60 kB.
const MAX_SOURCE: usize = 2 << 20;

impl Template {
    pub fn parse(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            let reason = format!("the template is larger than {MAX_SOURCE} bytes");
            return Err(TemplateFault::new(FaultKind::Syntax, reason));
        }
        let parser::Parsed {
            body,
            blocks,
            names,
        } = parser::parse(source)?;
        Ok(Self {
            source: source.to_owned(),
            body,
            blocks,
            names,
        })
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it reads a variable of this name.
    pub fn mentions(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Renders with these variables.
    pub fn render(&self, variables: &[(&str, &Json)], clock: Clock) -> Result<String> {
        let input_bytes = variables.iter().map(|(_, value)| size(value)).sum();
        let interpreter = Interpreter::new(&self.blocks, clock, input_bytes);
        for (name, value) in variables {
            let value = Value::from_json(value, &interpreter.budget)?;
            interpreter.define(name, value);
        }
        interpreter.render(&self.body)
    }
}

/// The approximate size of a JSON value in bytes.
fn size(json: &Json) -> usize {
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => size_of::<Value>(),
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(size).sum(),
        Json::Object(map) => map.iter().map(|(key, value)| key.len() + size(value)).sum(),
    }
}
