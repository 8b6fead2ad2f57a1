//! Flags that constrain the answer.

use std::path::{Path, PathBuf};

use clap::Args;
use loquat_grammar::GrammarSource;

use crate::error::CliError;
use crate::files;

/// Constraints on the answer; at most one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Structured output")]
#[group(multiple = false)]
pub struct AnswerArgs {
    /// Constrain the answer to a JSON object.
    #[arg(long)]
    json: bool,
    /// Constrain the answer to JSON that is valid under this schema: a file, or the schema itself.
    #[arg(long, value_name = "FILE|JSON")]
    json_schema: Option<String>,
    /// Constrain the whole answer to this regular expression, in the syntax of Rust's `regex`.
    #[arg(long, value_name = "RE")]
    regex: Option<String>,
    /// Constrain the answer to one of these texts. May be repeated.
    #[arg(long, value_name = "TEXT")]
    choice: Vec<String>,
    /// Constrain the answer to this grammar, in Lark syntax, or in llama.cpp's if the file name
    /// ends in .gbnf.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

/// A constraint on the answer, and its flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerConstraint {
    pub flag: &'static str,
    pub source: GrammarSource,
}

impl AnswerArgs {
    /// Reads the files that the flags name.
    pub fn constraint(&self) -> Result<Option<AnswerConstraint>, CliError> {
        let Self {
            json,
            json_schema,
            regex,
            choice,
            grammar,
        } = self;
        let (flag, source) = if *json {
            ("--json", GrammarSource::JsonObject)
        } else if let Some(text) = json_schema {
            ("--json-schema", schema(text)?)
        } else if let Some(pattern) = regex {
            ("--regex", GrammarSource::Regex(pattern.clone()))
        } else if !choice.is_empty() {
            ("--choice", GrammarSource::Choice(choice.clone()))
        } else if let Some(path) = grammar {
            ("--grammar", self::grammar(path)?)
        } else {
            return Ok(None);
        };
        Ok(Some(AnswerConstraint { flag, source }))
    }
}

fn schema(text: &str) -> Result<GrammarSource, CliError> {
    let flag = "--json-schema";
    let schema = if text.trim_start().starts_with('{') {
        files::parse(flag, "it", text)?
    } else {
        files::json(flag, Path::new(text))?
    };
    Ok(GrammarSource::JsonSchema(schema))
}

fn grammar(path: &Path) -> Result<GrammarSource, CliError> {
    let text = files::text("--grammar", path)?;
    let gbnf = path.extension().is_some_and(|ending| ending == "gbnf");
    Ok(if gbnf {
        GrammarSource::Gbnf(text)
    } else {
        GrammarSource::Lark(text)
    })
}
