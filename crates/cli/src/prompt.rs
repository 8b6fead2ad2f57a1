//! Which argument is the model and which the prompt, and reading the prompt from stdin.

use std::io::{IsTerminal, Read};

use loquat_store::{ModelQuery, Store, StoreError};

use crate::args::ModelArgs;
use crate::error::CliError;
use crate::load::open_store_on;
use crate::terminal::remark;

/// The two optional arguments of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct ModelAndPrompt {
    pub model: Option<String>,
    pub prompt: Option<String>,
}

/// Opens the store and tells the model from the prompt, as [`model_and_prompt`] does.
pub fn read_arguments(
    source: &ModelArgs,
    first: &Option<String>,
    second: &Option<String>,
) -> Result<(Store, ModelAndPrompt), CliError> {
    let store = open_store_on(source.network)?;
    let words = model_and_prompt(&store, source, first.as_deref(), second.as_deref())?;
    Ok((store, words))
}

/// A single argument is the model if the store resolves it, and a prompt if it has spaces, unless
/// it ends like a model file. A single unknown word is refused: it may be a misspelt model.
///
/// If a flag names a file, that is the model, and the argument is the prompt.
pub fn model_and_prompt(
    store: &Store,
    source: &ModelArgs,
    first: Option<&str>,
    second: Option<&str>,
) -> Result<ModelAndPrompt, CliError> {
    let words = |model: Option<&str>, prompt: Option<&str>| ModelAndPrompt {
        model: model.map(str::to_owned),
        prompt: prompt.map(str::to_owned),
    };
    if let Some((flag, ..)) = source.file() {
        return match (first, second) {
            (one, None) | (None, one) => Ok(words(None, one)),
            (Some(_), Some(_)) => Err(CliError::Usage {
                what: format!("`{flag}` names the model; the argument before the prompt"),
                expected: "omitted".to_owned(),
            }),
        };
    }
    let Some(first) = first else {
        return Ok(words(None, second));
    };
    if second.is_some() {
        return Ok(words(Some(first), second));
    }
    if first.trim().is_empty() {
        return Err(CliError::NoPrompt);
    }
    let wanted = ModelQuery {
        reference: first,
        kind: source.choice(None).kind,
        ..ModelQuery::default()
    };
    match store.resolve(&wanted) {
        Ok(_) => Ok(words(Some(first), None)),
        Err(_) if is_sentence(first) => Ok(words(None, Some(first))),
        Err(StoreError::UnknownModel { reference, advice }) => {
            Err(unknown_word(&reference, Some(advice)))
        }
        Err(StoreError::NotAReference { reference }) => Err(unknown_word(&reference, None)),
        Err(error) => Err(error.into()),
    }
}

fn unknown_word(word: &str, advice: Option<String>) -> CliError {
    CliError::UnknownModelWord {
        word: word.to_owned(),
        advice,
    }
}

fn is_sentence(word: &str) -> bool {
    let file_endings = [".gguf", ".safetensors", ".json"];
    word.trim().contains(char::is_whitespace)
        && !file_endings
            .iter()
            .any(|ending| word.trim().ends_with(ending))
}

/// The prompt on stdin without one trailing line break, or `None` for a chat on a terminal.
pub fn from_stdin() -> Result<Option<String>, CliError> {
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return Ok(None);
    }
    if std::io::stdin().is_terminal() {
        remark("Reading the prompt from the terminal. End it with Ctrl-D.");
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(CliError::Stdin)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use loquat_store::StoreOptions;

    use super::*;

    fn store(cache: &std::path::Path) -> Store {
        let options = StoreOptions {
            cache_dir: Some(cache.to_owned()),
            ..StoreOptions::default()
        };
        Store::open(options).unwrap()
    }

    #[test]
    fn arguments_are_models_or_prompts() {
        let cache = tempfile::tempdir().unwrap();
        let store = store(cache.path());
        let model = cache.path().join("model.gguf");
        std::fs::write(&model, "GGUF").unwrap();
        let directory = cache.path().to_str().unwrap();
        let name = store.default_model().to_string();
        let table = [
            (None, None, (None, None)),
            (None, Some("hi"), (None, Some("hi"))),
            (Some(directory), None, (Some(directory), None)),
            (Some(&name), None, (Some(&name), None)),
            (Some(&name), Some("hi"), (Some(&name), Some("hi"))),
            // With a prompt, the first argument is always the model.
            (Some("nope"), Some("hi"), (Some("nope"), Some("hi"))),
            (Some("owner/name"), None, (Some("owner/name"), None)),
            (Some("Who are you?"), None, (None, Some("Who are you?"))),
            (Some("1/2 or 2/4?"), None, (None, Some("1/2 or 2/4?"))),
        ];
        for (first, second, (model, prompt)) in table {
            let expected = ModelAndPrompt {
                model: model.map(str::to_owned),
                prompt: prompt.map(str::to_owned),
            };
            let found = model_and_prompt(&store, &ModelArgs::default(), first, second).unwrap();
            assert_eq!(found, expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn single_unknown_word_is_refused() {
        let cache = tempfile::tempdir().unwrap();
        let store = store(cache.path());
        for (word, code) in [("hello", 2), (" hello ", 2), ("", 2), ("  ", 2)] {
            let error =
                model_and_prompt(&store, &ModelArgs::default(), Some(word), None).unwrap_err();
            assert_eq!(error.exit_code(), code, "{word:?}: {error}");
        }
        for word in ["./missing.gguf", "my models/missing.gguf"] {
            let error =
                model_and_prompt(&store, &ModelArgs::default(), Some(word), None).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{word:?}: {error}");
        }
    }

    #[test]
    fn file_flag_leaves_argument_to_prompt() {
        let cache = tempfile::tempdir().unwrap();
        let store = store(cache.path());
        let source = ModelArgs {
            gguf_file: Some("a.gguf".into()),
            ..ModelArgs::default()
        };
        let words = model_and_prompt(&store, &source, Some("hello"), None).unwrap();
        assert_eq!(
            (words.model, words.prompt),
            (None, Some("hello".to_owned()))
        );
        let words = model_and_prompt(&store, &source, None, Some("hello")).unwrap();
        assert_eq!(words.prompt.as_deref(), Some("hello"));
        let refused =
            model_and_prompt(&store, &source, Some("smollm2"), Some("hello")).unwrap_err();
        assert!(refused.to_string().contains("--gguf-file"), "{refused}");
    }
}
