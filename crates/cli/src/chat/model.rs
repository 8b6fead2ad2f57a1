//! The argument of `/model`: a model as for `run`.

use clap::Parser;

use crate::args::{KindArgs, ModelChoice};
use crate::error::CliError;

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct ModelArgument {
    /// A path may have spaces.
    words: Vec<String>,
    #[command(flatten)]
    kinds: KindArgs,
}

pub fn parse_choice(argument: &str) -> Result<ModelChoice, CliError> {
    let named = ModelArgument::try_parse_from(argument.split(' ')).map_err(invalid)?;
    let reference = named.words.join(" ").trim().to_owned();
    Ok(ModelChoice {
        reference: Some(reference).filter(|reference| !reference.is_empty()),
        kind: named.kinds.kind(),
        ..ModelChoice::default()
    })
}

/// The first line of the error; usage and hints only make sense on a command line.
fn invalid(error: clap::Error) -> CliError {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    CliError::Field {
        flag: "/model",
        what: line.strip_prefix("error: ").unwrap_or(line).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use loquat_store::FileKind;

    use super::*;

    #[test]
    fn models_are_named_as_for_run() {
        for (argument, reference, kind) in [
            ("qwen3:4b", Some("qwen3:4b"), None),
            ("qwen3:4b --mlx", Some("qwen3:4b"), Some(FileKind::Mlx)),
            ("--gguf  a/b", Some("a/b"), Some(FileKind::Gguf)),
            ("--safetensors", None, Some(FileKind::Safetensors)),
            ("./a  b.gguf", Some("./a  b.gguf"), None),
        ] {
            let found = parse_choice(argument).unwrap();
            assert_eq!(
                (found.reference.as_deref(), found.kind),
                (reference, kind),
                "{argument:?}"
            );
        }
    }

    #[test]
    fn other_flags_are_refused_by_name() {
        for (argument, word) in [
            ("a --mxl", "'--mxl'"),
            ("a --gguf --mlx", "cannot be used with"),
            ("a --help", "'--help'"),
        ] {
            let refused = parse_choice(argument).unwrap_err().to_string();
            assert!(
                refused.starts_with("/model: ") && refused.contains(word),
                "{refused}"
            );
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }
}
