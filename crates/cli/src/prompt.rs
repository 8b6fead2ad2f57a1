//! Which word is the model, which the prompt, and what stdin is for.

use std::io::{IsTerminal, Read};

use loquat_store::{ModelQuery, Store, StoreError};

use crate::args::ModelArgs;
use crate::error::CliError;
use crate::terminal::remark;

/// What the two optional words on the command line came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    pub model: Option<String>,
    pub prompt: Option<String>,
}

/// One word alone is the model if it can be one, and a prompt if it has spaces, unless it ends
/// like a model file. A single unknown word is neither: it may be a misspelt model, and
/// answering it would be a guess.
///
/// Where a flag names a file, that is the model, and the one word a prompt.
pub fn sort(
    store: &Store,
    source: &ModelArgs,
    first: Option<&str>,
    second: Option<&str>,
) -> Result<Words, CliError> {
    let words = |model: Option<&str>, prompt: Option<&str>| Words {
        model: model.map(str::to_owned),
        prompt: prompt.map(str::to_owned),
    };
    if let Some((flag, ..)) = source.file() {
        return match second {
            None => Ok(words(None, first)),
            Some(_) => Err(CliError::Usage {
                what: format!("`{flag}` names the model; another one before the prompt"),
                expected: "left out".to_owned(),
            }),
        };
    }
    let Some(first) = first else {
        return Ok(words(None, None));
    };
    if second.is_some() {
        return Ok(words(Some(first), second));
    }
    if first.trim().is_empty() {
        return Err(CliError::NoPrompt);
    }
    let wanted = ModelQuery {
        reference: first,
        kind: source.chosen(None).kind,
    };
    match store.resolve(&wanted) {
        Ok(_) => Ok(words(Some(first), None)),
        Err(_) if is_sentence(first) => Ok(words(None, Some(first))),
        Err(StoreError::UnknownModel { reference, advice }) => {
            Err(one_word(store, &reference, &advice))
        }
        Err(StoreError::NotAReference { reference }) => {
            Err(one_word(store, &reference, "no model is called so"))
        }
        Err(error) => Err(error.into()),
    }
}

fn one_word(store: &Store, word: &str, advice: &str) -> CliError {
    CliError::OneWord {
        word: word.to_owned(),
        advice: advice.to_owned(),
        default: store.default_model().to_string(),
    }
}

fn is_sentence(word: &str) -> bool {
    let file_endings = [".gguf", ".safetensors", ".json"];
    word.trim().contains(char::is_whitespace)
        && !file_endings
            .iter()
            .any(|ending| word.trim().ends_with(ending))
}

/// The prompt on stdin, or `None` when a person sits there to converse. One line break at the
/// end is the pipe's, not the prompt's.
pub fn from_stdin() -> Result<Option<String>, CliError> {
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return Ok(None);
    }
    if std::io::stdin().is_terminal() {
        remark("Reading the prompt until Ctrl-D.");
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
    fn words_are_models_or_prompts() {
        let cache = tempfile::tempdir().unwrap();
        let store = store(cache.path());
        let model = cache.path().join("model.gguf");
        std::fs::write(&model, "GGUF").unwrap();
        let directory = cache.path().to_str().unwrap();
        let name = store.default_model().to_string();
        let table = [
            (None, None, (None, None)),
            (Some(directory), None, (Some(directory), None)),
            (Some(&name), None, (Some(&name), None)),
            (Some(&name), Some("hi"), (Some(&name), Some("hi"))),
            // Whatever it is: with a prompt beside it, it was meant as a model.
            (Some("nope"), Some("hi"), (Some("nope"), Some("hi"))),
            (Some("owner/name"), None, (Some("owner/name"), None)),
            (Some("Who are you?"), None, (None, Some("Who are you?"))),
            (Some("1/2 or 2/4?"), None, (None, Some("1/2 or 2/4?"))),
        ];
        for (first, second, (model, prompt)) in table {
            let expected = Words {
                model: model.map(str::to_owned),
                prompt: prompt.map(str::to_owned),
            };
            let found = sort(&store, &ModelArgs::default(), first, second).unwrap();
            assert_eq!(found, expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn one_word_that_is_no_model_is_not_guessed_at() {
        let cache = tempfile::tempdir().unwrap();
        let store = store(cache.path());
        for (word, code) in [("hello", 2), (" hello ", 2), ("", 2), ("  ", 2)] {
            let error = sort(&store, &ModelArgs::default(), Some(word), None).unwrap_err();
            assert_eq!(error.exit_code(), code, "{word:?}: {error}");
        }
        for word in ["./missing.gguf", "my models/missing.gguf"] {
            let error = sort(&store, &ModelArgs::default(), Some(word), None).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{word:?}: {error}");
        }
    }

    #[test]
    fn a_flag_that_names_a_file_leaves_the_words_to_the_prompt() {
        let cache = tempfile::tempdir().unwrap();
        let store = store(cache.path());
        let source = ModelArgs {
            gguf_file: Some("a.gguf".into()),
            ..ModelArgs::default()
        };
        let words = sort(&store, &source, Some("hello"), None).unwrap();
        assert_eq!(
            (words.model, words.prompt),
            (None, Some("hello".to_owned()))
        );
        let refused = sort(&store, &source, Some("smollm2"), Some("hello")).unwrap_err();
        assert!(refused.to_string().contains("--gguf-file"), "{refused}");
    }
}
