//! Which model, of which files, from where.

use std::path::{Path, PathBuf};

use clap::Args;
use loquat_store::FileKind;

const HEADING: &str = "Model";

/// Every flag below but `--offline`, for those that do without a model.
pub const MODEL_FLAGS: [&str; 5] = ["gguf", "mlx", "safetensors", "gguf_file", "mlx_file"];

/// The kind of files, where a model has several.
#[derive(Debug, Clone, Default, Args)]
#[group(multiple = false)]
pub struct KindArgs {
    /// Take the model's GGUF file, where it has other kinds of files too.
    #[arg(long, help_heading = HEADING)]
    pub gguf: bool,
    /// Take its safetensors that MLX quantized.
    #[arg(long, help_heading = HEADING)]
    pub mlx: bool,
    /// Take its safetensors as they were trained.
    #[arg(long, help_heading = HEADING)]
    pub safetensors: bool,
}

/// Whether there is a network.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct NetworkArgs {
    /// Use no network: only what is on this machine. Also by LOQUAT_OFFLINE=1 or HF_HUB_OFFLINE=1.
    #[arg(long, help_heading = HEADING)]
    pub offline: bool,
}

/// Which files of a model to open.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub kinds: KindArgs,
    /// Open this GGUF file; no other model is named then.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    #[arg(conflicts_with_all = ["gguf", "mlx", "safetensors", "mlx_file"])]
    pub gguf_file: Option<PathBuf>,
    /// Open this directory of MLX's, or its weights; no other model is named then.
    #[arg(long, value_name = "PATH", help_heading = HEADING)]
    #[arg(conflicts_with_all = ["gguf", "mlx", "safetensors"])]
    pub mlx_file: Option<PathBuf>,
    #[command(flatten)]
    pub network: NetworkArgs,
}

/// A model as words and flags together name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The catalog's default where there is none.
    pub reference: Option<String>,
    pub kind: Option<FileKind>,
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
            .find(|(given, _)| *given)
            .map(|(_, kind)| *kind)
    }
}

impl ModelArgs {
    /// The flag that names a file, if one does.
    pub fn file(&self) -> Option<(&'static str, FileKind, &Path)> {
        let gguf = self.gguf_file.as_deref();
        let mlx = self.mlx_file.as_deref();
        gguf.map(|path| ("--gguf-file", FileKind::Gguf, path))
            .or_else(|| mlx.map(|path| ("--mlx-file", FileKind::Mlx, path)))
    }

    /// The model that `word` and these flags name.
    pub fn chosen(&self, word: Option<&str>) -> Chosen {
        match self.file() {
            Some((_, kind, path)) => Chosen {
                reference: Some(as_path(path)),
                kind: Some(kind),
            },
            None => Chosen {
                reference: word.map(str::to_owned),
                kind: self.kinds.kind(),
            },
        }
    }

    /// The same as flags of another command.
    pub fn flags(&self) -> Vec<String> {
        let kind = self.kinds.kind().map(|kind| kind.flag().to_owned());
        let file = self.file().map(|(flag, _, path)| {
            let path = path.display().to_string();
            [flag.to_owned(), path]
        });
        let offline = self.network.offline.then(|| "--offline".to_owned());
        let flags = kind.into_iter().chain(file.into_iter().flatten());
        flags.chain(offline).collect()
    }
}

/// So that it is never taken for a name.
fn as_path(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = path.is_relative() && !text.starts_with('.');
    if plain {
        Path::new(".").join(path).display().to_string()
    } else {
        text
    }
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
            let chosen = args.chosen(word);
            assert_eq!(
                (chosen.reference.as_deref(), chosen.kind),
                (reference, kind)
            );
        }
    }
}
