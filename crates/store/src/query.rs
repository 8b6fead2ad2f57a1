//! Queries for models, and their results.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A reference typed by a user, with an optional file kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelQuery<'a> {
    /// A reference as [`ModelReference::parse`](crate::ModelReference::parse) reads it.
    pub reference: &'a str,
    /// Selects one of several file kinds.
    pub kind: Option<FileKind>,
    /// The vision tower of a GGUF model.
    pub mmproj: MmprojQuery<'a>,
}

/// Which vision tower a GGUF model gets. Models of other kinds contain their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MmprojQuery<'a> {
    /// A file next to the model or in its repository, if there is one.
    #[default]
    Auto,
    /// None: the model reads text only.
    Off,
    /// A file, or `owner/name:file` or `owner/name` on the hub.
    Reference(&'a str),
}

impl<'a> From<&'a str> for ModelQuery<'a> {
    fn from(reference: &'a str) -> Self {
        Self {
            reference,
            ..Self::default()
        }
    }
}

/// The file format of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A single GGUF file.
    Gguf,
    /// A directory of safetensors quantized by MLX.
    Mlx,
    /// A directory of plain safetensors.
    Safetensors,
}

impl FileKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Gguf, Self::Mlx, Self::Safetensors];

    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gguf => "gguf",
            Self::Mlx => "mlx",
            Self::Safetensors => "safetensors",
        }
    }

    /// The command-line flag that selects it.
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
pub struct ResolvedModel {
    /// The directory or file that `weights` opens.
    pub path: PathBuf,
    /// The reference that selects it again: a path, `name:tag` or `owner/name:file`.
    pub name: String,
    /// Its vision tower, if it is a GGUF file.
    pub mmproj: LocatedMmproj,
}

/// Where a located model's vision tower is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LocatedMmproj {
    /// Next to the model, if anywhere.
    #[default]
    Beside,
    /// It gets none.
    Off,
    /// In this file.
    At(PathBuf),
}
