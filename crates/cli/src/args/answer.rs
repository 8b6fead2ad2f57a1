//! What an answer must be.

use std::path::{Path, PathBuf};

use clap::Args;
use loquat_grammar::GrammarSource;

use crate::error::CliError;
use crate::files;

/// What an answer is held to; one of these at most.
#[derive(Debug, Args)]
#[command(next_help_heading = "Structured output")]
#[group(multiple = false)]
pub struct AnswerArgs {
    /// The answer is a JSON object.
    #[arg(long)]
    json: bool,
    /// The answer is JSON that this schema admits: a file, or the schema itself.
    #[arg(long, value_name = "FILE|JSON")]
    json_schema: Option<String>,
    /// The whole answer matches this regular expression, in the syntax of Rust's `regex`.
    #[arg(long, value_name = "RE")]
    regex: Option<String>,
    /// The answer is one of these texts. Given once for each.
    #[arg(long, value_name = "TEXT")]
    choice: Vec<String>,
    /// The answer follows this grammar, in Lark's notation, or in llama.cpp's where the file's
    /// name ends in .gbnf.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

/// What an answer must be, and the flag that said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub flag: &'static str,
    pub source: GrammarSource,
}

impl AnswerArgs {
    /// Reads the files that flags name.
    pub fn wanted(&self) -> Result<Option<Wanted>, CliError> {
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
        Ok(Some(Wanted { flag, source }))
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
