//! Fill in the middle: prompts from which a code model writes the text between a prefix and a suffix.
//!
//! The tokens are those that the file's metadata names, or the vocabulary's under published names.

use crate::tokenizer::Tokenizer;
use crate::{Result, Special, TextError};

/// The published names of a format's tokens.
struct FimNames {
    prefix: &'static str,
    suffix: &'static str,
    /// Where the model starts to write; after the prefix if there is none.
    middle: Option<&'static str>,
}

const fn names(prefix: &'static str, suffix: &'static str, middle: &'static str) -> FimNames {
    FimNames {
        prefix,
        suffix,
        middle: Some(middle),
    }
}

const FORMATS: [FimNames; 7] = [
    // Qwen-Coder, CodeGemma
    names("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder2, Granite
    names("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    names("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek-Coder
    names("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // CodeLlama
    names("▁<PRE>", "▁<SUF>", "▁<MID>"),
    // GLM
    names("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    // Codestral, whose prompts end with the prefix
    FimNames {
        prefix: "[PREFIX]",
        suffix: "[SUFFIX]",
        middle: None,
    },
];

/// Tokens before a repository's name and before each of its files.
const REPOSITORY: [&str; 3] = ["<|repo_name|>", "<reponame>", "<repo_name>"];
const FILE: [&str; 3] = ["<|file_sep|>", "<file_sep>", "<|file_separator|>"];
/// Further tokens with which models end what they fill in.
const ENDS: [&str; 5] = [
    "<|fim_pad|>",
    "<fim_pad>",
    "▁<EOT>",
    "<|endoftext|>",
    "<|cursor|>",
];

/// The ids that a file's metadata names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FimIds {
    pub prefix: Option<u32>,
    pub suffix: Option<u32>,
    pub middle: Option<u32>,
    pub repository: Option<u32>,
    pub file: Option<u32>,
}

/// The fill-in-the-middle tokens of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FimTokens {
    prefix: u32,
    suffix: u32,
    /// Without it the suffix comes first, and the model continues the prefix.
    middle: Option<u32>,
    repository: Option<u32>,
    file: Option<u32>,
    /// Tokens that end what is filled in, beside the model's end tokens.
    pub ends: Vec<u32>,
}

/// A text to fill in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FimPrompt<'a> {
    /// The text before the gap.
    pub prefix: &'a str,
    /// The text after the gap.
    pub suffix: &'a str,
    /// Other files, as `(name, text)`.
    pub files: &'a [(String, String)],
}

/// The project that files belong to, and the name of the file that is filled in.
const PROJECT: &str = "myproject";
const CURRENT_FILE: &str = "filename";
/// Separates files for models without a token for it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

impl FimTokens {
    pub(crate) fn find(ids: FimIds, id: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let named = || {
            FORMATS.iter().find_map(|format| {
                let middle = match format.middle {
                    Some(name) => Some(id(name)?),
                    None => None,
                };
                Some((id(format.prefix)?, id(format.suffix)?, middle))
            })
        };
        let (prefix, suffix, middle) = match (ids.prefix, ids.suffix, ids.middle) {
            (Some(prefix), Some(suffix), Some(middle)) => (prefix, suffix, Some(middle)),
            _ => named()?,
        };
        let first = |names: &[&str]| names.iter().find_map(|name| id(name));
        let repository = ids.repository.or_else(|| first(&REPOSITORY));
        let file = ids.file.or_else(|| first(&FILE));
        let mut ends: Vec<u32> = ENDS.iter().filter_map(|name| id(name)).collect();
        ends.extend([prefix, suffix].into_iter().chain(middle));
        ends.extend(repository.into_iter().chain(file));
        Some(Self {
            prefix,
            suffix,
            middle,
            repository,
            file,
            ends,
        })
    }
}

impl Tokenizer {
    /// The prompt of a text to fill in. Special tokens in texts are plain characters.
    pub fn encode_fim(&self, prompt: FimPrompt<'_>) -> Result<(Vec<u32>, FimTokens)> {
        let fim = self.fim().ok_or(TextError::NoFimTokens)?;
        let FimPrompt {
            prefix,
            suffix,
            files,
        } = prompt;
        let mut ids = self.prefix().to_vec();
        if !files.is_empty() {
            self.push_files(&mut ids, &fim, files)?;
        }
        let before = self.encode(prefix, Special::PLAIN)?;
        // The suffix starts where the middle ends, not with a word.
        let after = self.encode_inner(suffix, Special::PLAIN)?;
        let (before, after) = (
            std::iter::once(fim.prefix).chain(before),
            std::iter::once(fim.suffix).chain(after),
        );
        match fim.middle {
            Some(middle) => {
                ids.extend(before.chain(after));
                ids.push(middle);
            }
            None => ids.extend(after.chain(before)),
        }
        Ok((ids, fim))
    }

    fn push_files(
        &self,
        ids: &mut Vec<u32>,
        fim: &FimTokens,
        files: &[(String, String)],
    ) -> Result<()> {
        let line = |text: &str| self.encode_inner(&format!("{text}\n"), Special::PLAIN);
        if let Some(repository) = fim.repository {
            ids.push(repository);
            ids.extend(line(PROJECT)?);
        }
        for (name, text) in files {
            match fim.file {
                Some(file) => {
                    ids.push(file);
                    ids.extend(line(name)?);
                }
                None => ids.extend(self.encode_inner(SNIPPET, Special::PLAIN)?),
            }
            ids.extend(self.encode_inner(text, Special::PLAIN)?);
        }
        if let Some(file) = fim.file {
            ids.push(file);
            ids.extend(line(CURRENT_FILE)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(vocabulary: &[&str]) -> Option<FimTokens> {
        FimTokens::find(FimIds::default(), |name| {
            let at = vocabulary.iter().position(|token| *token == name)?;
            Some(at as u32)
        })
    }

    #[test]
    fn published_vocabularies_are_recognized() {
        let cases: [&[&str]; 6] = [
            &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
            &["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
            &["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
            &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
            &["▁<PRE>", "▁<SUF>", "▁<MID>"],
            &["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
        ];
        for vocabulary in cases {
            let fim = find(vocabulary).expect("tokens");
            assert_eq!((fim.prefix, fim.suffix, fim.middle), (0, 1, Some(2)));
        }
        let codestral = find(&["[PREFIX]", "[SUFFIX]"]).expect("tokens");
        assert_eq!(codestral.middle, None);
        assert_eq!(find(&["<|fim_prefix|>", "<|fim_suffix|>"]), None);
    }

    #[test]
    fn metadata_takes_precedence_over_names() {
        let ids = FimIds {
            prefix: Some(7),
            suffix: Some(8),
            middle: Some(9),
            ..FimIds::default()
        };
        let fim = FimTokens::find(ids, |_| Some(1)).expect("tokens");
        assert_eq!((fim.prefix, fim.suffix, fim.middle), (7, 8, Some(9)));
    }
}
