use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use loquat_convert::{Conversion, ConvertError, Quant, Report, Target, convert};
use loquat_weights::{Checkpoint, RawTensor};
use tempfile::TempDir;

/// A result and the folder that goes with it.
pub struct Converted {
    pub path: PathBuf,
    pub report: Report,
    _folder: TempDir,
}

/// Converts, quantized sources included.
pub fn to(target: Target, quant: &str, source: &Path) -> Result<Converted, ConvertError> {
    let quant = match quant {
        "" => Quant::default_of(target),
        name => match name.split_once("-g") {
            Some((name, group)) => Quant::parse(target, name, group.parse().ok())?,
            None => Quant::parse(target, name, None)?,
        },
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = match target {
        Target::Gguf => folder.path().join("model.gguf"),
        Target::Mlx | Target::Safetensors => folder.path().join("model"),
    };
    let report = convert(
        &Conversion {
            source,
            adapters: &[],
            out: &path,
            target,
            quant,
            dtype: None,
            name: None,
            requantize: true,
            force: false,
            records: None,
        },
        &mut |_| true,
    )?;
    Ok(Converted {
        path,
        report,
        _folder: folder,
    })
}

/// A model's tensors by name.
pub fn tensors(path: &Path) -> BTreeMap<String, RawTensor> {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    checkpoint
        .bind()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tensors = checkpoint.tensors().iter();
    tensors
        .map(|tensor| (tensor.name.clone(), tensor.clone()))
        .collect()
}
