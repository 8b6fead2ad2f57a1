//! Chat templates, output formats and constraints that flags set.

use std::path::Path;

use loquat::{ModelFiles, TemplateOrigin};
use loquat_chat::{ChatContext, ChatError};
use loquat_grammar::{Grammar, Grammars};
use loquat_text::{ChatTemplate, Tokenizer};

use crate::args::{AnswerConstraint, FormatArgs};
use crate::error::CliError;
use crate::files;

/// The template that a flag names, or the model's own; an error if there is none.
pub fn required_template(
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    flag: Option<&Path>,
) -> Result<ChatTemplate, CliError> {
    if let Some(named) = flag {
        return named_template("--template", named);
    }
    let found = files.template(tokenizer)?;
    let (origin, template) = found.ok_or(ChatError::NoTemplate)?;
    if let TemplateOrigin::BuiltIn(name) = origin {
        let model = &files.name;
        tracing::warn!("{model} has no chat template; the built-in `{name}` is used");
    }
    Ok(template)
}

/// A built-in template by name, or a template file. `option` is the option that names it.
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

/// The model's chat context with this template and the formats that flags set.
pub fn chat_context(
    files: &ModelFiles,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    formats: &FormatArgs,
) -> ChatContext {
    let grammars = files.grammars(tokenizer.clone());
    let context = ChatContext::new(tokenizer, Some(template), grammars, formats.overrides());
    files.with_media(context)
}

/// Compiles a constraint. The error names its flag.
pub fn grammar(grammars: &Grammars, wanted: &AnswerConstraint) -> Result<Grammar, CliError> {
    let AnswerConstraint { flag, source } = wanted;
    let grammar = grammars.compile(source);
    grammar.map_err(|source| CliError::Grammar { flag, source })
}
