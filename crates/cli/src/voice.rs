//! How a model is spoken to and speaks: its template, its formats, its grammars.

use std::fmt;
use std::path::Path;

use loquat_chat::{Chat, ChatError};
use loquat_grammar::{Grammar, Grammars};
use loquat_text::format::OutputFormat;
use loquat_text::{ChatTemplate, Tokenizer};

use crate::args::{FormatArgs, Wanted};
use crate::error::CliError;
use crate::files;
use crate::load::Model;

/// Whose template it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Checkpoint,
    BuiltIn(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint => f.write_str("its own"),
            Self::BuiltIn(name) => write!(f, "built-in {name}"),
        }
    }
}

/// The checkpoint's own template, or one that fits its family and vocabulary.
pub fn template(
    model: &Model,
    tokenizer: &Tokenizer,
) -> Result<Option<(Origin, ChatTemplate)>, CliError> {
    if let Some(own) = model.template()? {
        return Ok(Some((Origin::Checkpoint, own)));
    }
    let has_token = |text: &str| tokenizer.token_id(text).is_some();
    let builtin = ChatTemplate::builtin(model.source.spec.family, &has_token);
    Ok(builtin.map(|(name, template)| (Origin::BuiltIn(name), template)))
}

/// The same for whoever cannot do without one, unless a flag says otherwise.
pub fn required_template(
    model: &Model,
    tokenizer: &Tokenizer,
    flag: Option<&Path>,
) -> Result<ChatTemplate, CliError> {
    if let Some(named) = flag {
        return named_template("--template", named);
    }
    let found = template(model, tokenizer)?;
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

/// How the model marks its thinking and its calls, as its template and its vocabulary tell.
pub fn format(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> OutputFormat {
    let source = template.map_or("", |template| template.source(true));
    OutputFormat::detect(source, &|text| tokenizer.token_id(text).is_some())
}

pub fn chat(
    model: &Model,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    formats: &FormatArgs,
) -> Chat {
    let format = formats.over(format(Some(&template), &tokenizer));
    let grammars = grammars(model, tokenizer.clone());
    Chat::with_format(tokenizer, Some(template), grammars, format)
}

pub fn grammars(model: &Model, tokenizer: Tokenizer) -> Grammars {
    Grammars::new(tokenizer, model.source.spec.vocab_size)
}

/// Compiles what an answer must be, or says what is wrong with it by its flag.
pub fn grammar(grammars: &Grammars, wanted: &Wanted) -> Result<Grammar, CliError> {
    let Wanted { flag, source } = wanted;
    let grammar = grammars.compile(source);
    grammar.map_err(|source| CliError::Grammar { flag, source })
}
