//! Flags that select a model and its files.

use std::path::{Path, PathBuf};

use clap::Args;
use loquat::{AdapterFile, MmprojOption};
use loquat_store::{FileKind, path_reference, reference_path};

use super::values::adapter;

const HEADING: &str = "Model";

/// Every flag below except `--offline`, for commands that need no model.
pub const MODEL_FLAGS: [&str; 7] = [
    "gguf",
    "mlx",
    "safetensors",
    "gguf_file",
    "mlx_file",
    "mmproj",
    "no_mmproj",
];

/// The kind of files, if a model has several.
#[derive(Debug, Clone, Default, Args)]
#[group(multiple = false)]
pub struct KindArgs {
    /// Use the model's GGUF file.
    #[arg(long, help_heading = HEADING)]
    pub gguf: bool,
    /// Use its MLX-quantized safetensors.
    #[arg(long, help_heading = HEADING)]
    pub mlx: bool,
    /// Use its original safetensors.
    #[arg(long, help_heading = HEADING)]
    pub safetensors: bool,
}

/// Adapters of a model.
#[derive(Debug, Clone, Default, Args)]
pub struct AdapterArgs {
    /// Apply an adapter: a directory of peft or mlx-lm, a GGUF adapter, or owner/name[@REVISION] on
    /// the hub. @SCALE, a number, multiplies its strength, as in style@0.5. Repeat the flag to add
    /// several up.
    #[arg(long = "adapter", value_name = "PATH_OR_REF[@SCALE]", help_heading = HEADING)]
    #[arg(value_parser = adapter())]
    pub files: Vec<AdapterFile>,
}

/// Network access.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct NetworkArgs {
    /// Use only local files, no network. Also set by LOQUAT_OFFLINE=1 or HF_HUB_OFFLINE=1.
    #[arg(long, help_heading = HEADING)]
    pub offline: bool,
}

/// The files of a model to open.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub kinds: KindArgs,
    /// Open this GGUF file instead of a named model.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    #[arg(conflicts_with_all = ["gguf", "mlx", "safetensors", "mlx_file"])]
    pub gguf_file: Option<PathBuf>,
    /// Open this MLX directory, or its weights, instead of a named model.
    #[arg(long, value_name = "PATH", help_heading = HEADING)]
    #[arg(conflicts_with_all = ["gguf", "mlx", "safetensors"])]
    pub mlx_file: Option<PathBuf>,
    #[command(flatten)]
    pub mmproj: MmprojArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
}

/// The vision tower of a GGUF model.
#[derive(Debug, Clone, Default, Args)]
#[group(multiple = false)]
pub struct MmprojArgs {
    /// Use this vision tower for a GGUF model: an mmproj .gguf file, or owner/name:file on the hub
    /// [default: one next to the model or in its repository].
    #[arg(long, value_name = "PATH_OR_REF", help_heading = HEADING)]
    pub mmproj: Option<String>,
    /// Use no vision tower: the model reads text only.
    #[arg(long, help_heading = HEADING)]
    pub no_mmproj: bool,
}

impl MmprojArgs {
    pub fn option(&self) -> MmprojOption {
        match (&self.mmproj, self.no_mmproj) {
            (_, true) => MmprojOption::Off,
            (Some(reference), false) => MmprojOption::Reference(reference.clone()),
            (None, false) => MmprojOption::Auto,
        }
    }
}

/// The model that arguments and flags select.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelChoice {
    /// `None` is the catalog's default.
    pub reference: Option<String>,
    pub kind: Option<FileKind>,
    pub mmproj: MmprojOption,
}

impl KindArgs {
    pub fn kind(&self) -> Option<FileKind> {
        let flags = [
            (self.gguf, FileKind::Gguf),
            (self.mlx, FileKind::Mlx),
            (self.safetensors, FileKind::Safetensors),
        ];
        flags
            .iter()
            .find(|(is_set, _)| *is_set)
            .map(|(_, kind)| *kind)
    }
}

impl ModelArgs {
    /// The flag that names a file, if any.
    pub fn file(&self) -> Option<(&'static str, FileKind, &Path)> {
        let gguf = self.gguf_file.as_deref();
        let mlx = self.mlx_file.as_deref();
        gguf.map(|path| ("--gguf-file", FileKind::Gguf, path))
            .or_else(|| mlx.map(|path| ("--mlx-file", FileKind::Mlx, path)))
    }

    /// The model that `word` and these flags select.
    pub fn choice(&self, word: Option<&str>) -> ModelChoice {
        match self.file() {
            Some((_, kind, path)) => ModelChoice {
                reference: Some(as_path(path)),
                kind: Some(kind),
                mmproj: self.mmproj.option(),
            },
            None => ModelChoice {
                reference: word.map(str::to_owned),
                kind: self.kinds.kind(),
                mmproj: self.mmproj.option(),
            },
        }
    }

    /// These flags as arguments of another command.
    pub fn flags(&self) -> Vec<String> {
        let kind = self.kinds.kind().map(|kind| kind.flag().to_owned());
        let file = self.file().map(|(flag, _, path)| {
            let path = path.display().to_string();
            [flag.to_owned(), path]
        });
        let offline = self.network.offline.then(|| "--offline".to_owned());
        let mmproj = match self.mmproj.option() {
            MmprojOption::Auto => Vec::new(),
            MmprojOption::Off => vec!["--no-mmproj".to_owned()],
            MmprojOption::Reference(reference) => vec!["--mmproj".to_owned(), reference],
        };
        let flags = kind.into_iter().chain(file.into_iter().flatten());
        flags.chain(mmproj).chain(offline).collect()
    }
}

/// Written so that it is not parsed as a name.
fn as_path(path: &Path) -> String {
    let text = path_reference(path);
    let plain = reference_path(&text).is_relative() && !text.starts_with('.');
    if plain { format!("./{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_files_and_kinds() {
        let of_kind = ModelArgs {
            kinds: KindArgs {
                mlx: true,
                ..KindArgs::default()
            },
            ..ModelArgs::default()
        };
        let of_file = |path: &str| ModelArgs {
            gguf_file: Some(path.into()),
            ..ModelArgs::default()
        };
        for (args, word, reference, kind) in [
            (ModelArgs::default(), None, None, None),
            (ModelArgs::default(), Some("a"), Some("a"), None),
            (of_kind, Some("a"), Some("a"), Some(FileKind::Mlx)),
            (
                of_file("smollm2"),
                None,
                Some("./smollm2"),
                Some(FileKind::Gguf),
            ),
            (
                of_file("/m/a.gguf"),
                None,
                Some("/m/a.gguf"),
                Some(FileKind::Gguf),
            ),
        ] {
            let chosen = args.choice(word);
            assert_eq!(
                (chosen.reference.as_deref(), chosen.kind),
                (reference, kind)
            );
        }
    }
}
