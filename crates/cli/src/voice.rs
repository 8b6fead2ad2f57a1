//! How a model is spoken to and speaks: its template, its formats, its grammars.

use std::path::Path;

use loquat::Origin;
use loquat_chat::{ChatContext, ChatError};
use loquat_grammar::{Grammar, Grammars};
use loquat_text::{ChatTemplate, Tokenizer};

use crate::args::{FormatArgs, Wanted};
use crate::error::CliError;
use crate::files;
use crate::load::Model;

/// The model's template, for whoever cannot do without one, unless a flag says otherwise.
pub fn required_template(
    model: &Model,
    tokenizer: &Tokenizer,
    flag: Option<&Path>,
) -> Result<ChatTemplate, CliError> {
    if let Some(named) = flag {
        return named_template("--template", named);
    }
    let found = model.template(tokenizer)?;
    let (origin, template) = found.ok_or(ChatError::NoTemplate)?;
    if let Origin::BuiltIn(name) = origin {
        let model = &model.name;
        tracing::warn!("{model} brings no chat template; the built-in `{name}` is used");
    }
    Ok(template)
}

/// A built-in template by its name, or the one of a file; `option` is who named it.
pub fn named_template(option: &'static str, named: &Path) -> Result<ChatTemplate, CliError> {
    let builtin = named.to_str().and_then(ChatTemplate::builtin_named);
    builtin.map_or_else(|| template_file(option, named), Ok)
}

fn template_file(option: &'static str, path: &Path) -> Result<ChatTemplate, CliError> {
    let text = files::text(option, path)?;
    ChatTemplate::new(&text).map_err(|source| CliError::Template {
        option,
        path: path.to_owned(),
        source,
    })
}

pub fn chat(
    model: &Model,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    formats: &FormatArgs,
) -> ChatContext {
    let grammars = model.grammars(tokenizer.clone());
    ChatContext::new(tokenizer, Some(template), grammars, formats.overrides())
}

/// Compiles what an answer must be, or says what is wrong with it by its flag.
pub fn grammar(grammars: &Grammars, wanted: &Wanted) -> Result<Grammar, CliError> {
    let Wanted { flag, source } = wanted;
    let grammar = grammars.compile(source);
    grammar.map_err(|source| CliError::Grammar { flag, source })
}
