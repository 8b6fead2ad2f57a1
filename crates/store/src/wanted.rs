//! What a caller asks the store for, and what it gets.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A model, in a user's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// As [`Reference::parse`](crate::Reference::parse) reads it.
    pub reference: &'a str,
    /// The kind of files to take where there are several; nobody's choice is `None`.
    pub kind: Option<FileKind>,
}

impl<'a> From<&'a str> for Wanted<'a> {
    fn from(reference: &'a str) -> Self {
        Self {
            reference,
            kind: None,
        }
    }
}

/// How a model's weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// One file with everything in it.
    Gguf,
    /// Safetensors that MLX quantized: a directory whose `config.json` says how.
    Mlx,
    /// Safetensors as they were trained: a directory.
    Safetensors,
}

impl FileKind {
    pub const ALL: [Self; 3] = [Self::Gguf, Self::Mlx, Self::Safetensors];

    pub fn name(self) -> &'static str {
        match self {
            Self::Gguf => "gguf",
            Self::Mlx => "mlx",
            Self::Safetensors => "safetensors",
        }
    }

    /// The flag of the command line that asks for it.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Gguf => "--gguf",
            Self::Mlx => "--mlx",
            Self::Safetensors => "--safetensors",
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A model whose files are on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The directory or file that `weights` opens.
    pub path: PathBuf,
    /// The reference by which it can be had again: a path, `name:tag` or `owner/name:file`.
    pub name: String,
}
