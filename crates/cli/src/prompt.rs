//! Which word is the model, which the prompt, and what stdin is for.

use std::io::{IsTerminal, Read};

use loquat_store::Store;

use crate::error::CliError;

/// What the two optional words on the command line came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    pub model: Option<String>,
    pub prompt: Option<String>,
}

/// One word alone is the model if it can be one, and a prompt if it has spaces. A single
/// unknown word is neither: it may be a misspelt model, and answering it would be a guess.
pub fn sort(store: &Store, first: Option<&str>, second: Option<&str>) -> Result<Words, CliError> {
    let words = |model: Option<&str>, prompt: Option<&str>| Words {
        model: model.map(str::to_owned),
        prompt: prompt.map(str::to_owned),
    };
    let Some(first) = first else {
        return Ok(words(None, None));
    };
    if second.is_some() {
        return Ok(words(Some(first), second));
    }
    match store.resolve(first) {
        Ok(_) => Ok(words(Some(first), None)),
        Err(_) if first.trim().contains(char::is_whitespace) => Ok(words(None, Some(first))),
        Err(loquat_store::StoreError::UnknownModel { reference, known }) => {
            Err(CliError::OneWord {
                word: reference,
                known,
                default: store.default_model().to_string(),
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// The prompt on stdin, or `None` when a person sits there. One line break at the end is the
/// pipe's, not the prompt's.
pub fn from_stdin() -> Result<Option<String>, CliError> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
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
