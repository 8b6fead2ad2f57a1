//! Adapter files: which format they have, and the model they are for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquat_spec::{Config, ModelSpec, Naming, SpecError};

use super::bind::{AdapterBinder, Change};
use super::{AdapterInfo, AdapterWeights, gguf, mlx, peft};
use crate::gguf::Gguf;
use crate::{
    Blob, Checkpoint, Format, MAX_CONFIG_BYTES, RawTensor, WeightsError, read_side_file,
    safetensors,
};

/// The model that an adapter is for.
#[derive(Clone, Debug)]
pub struct AdapterBase {
    pub spec: Arc<ModelSpec>,
    /// Of the model's files, which may order rows in another way than the adapter's.
    pub format: Format,
}

impl Checkpoint {
    /// What adapters need to know of the model.
    pub fn adapter_base(&self) -> AdapterBase {
        AdapterBase {
            spec: Arc::new(self.spec.clone()),
            format: self.format,
        }
    }
}

/// What is wrong with an adapter's files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdapterFault {
    #[error("{0}")]
    NotAnAdapter(String),
    #[error("`{field}` is {found}, but must be {expected}")]
    Field {
        field: String,
        found: String,
        expected: String,
    },
    #[error(
        "it is for a model of the class {adapter}, and this model is {model}; to use it anyway, set \
         `auto_mapping` to null in adapter_config.json"
    )]
    OtherBase { adapter: String, model: String },
    #[error("{0}")]
    Mismatch(super::AdapterMismatch),
}

impl AdapterFault {
    pub(super) fn field(
        field: impl Into<String>,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Field {
            field: field.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

/// An adapter's files as a list of changes by tensor name.
pub(super) struct AdapterFile {
    pub info: AdapterInfo,
    /// The names that its tensors may have, likeliest first.
    pub namings: Vec<Naming>,
    /// Rows are ordered as in GGUF files.
    pub is_gguf: bool,
    pub changes: Vec<Change>,
    /// What is wrong with single tensors.
    pub faults: Vec<String>,
}

const CONFIG: &str = "adapter_config.json";
const PEFT: &str = "adapter_model.safetensors";
const PEFT_PICKLE: &str = "adapter_model.bin";
const MLX: &str = "adapters.safetensors";

/// Where an adapter's files are.
enum Located {
    Peft(PathBuf),
    Mlx(PathBuf),
    Gguf(PathBuf),
}

impl AdapterWeights {
    /// Reads an adapter: a folder or its `.safetensors` file, as peft or mlx-lm write them, or a
    /// GGUF file of llama.cpp. It must fit `base`; all that does not is reported together.
    pub fn open(path: &Path, base: &AdapterBase) -> Result<Self, WeightsError> {
        let in_file = |fault| WeightsError::Adapter {
            path: path.to_owned(),
            fault,
        };
        let read = match locate(path).map_err(in_file)? {
            Located::Peft(file) => {
                let (config, tensors) = read_folder(&file)?;
                peft::read(&config, tensors, base)
            }
            Located::Mlx(file) => {
                let (config, tensors) = read_folder(&file)?;
                mlx::read(&config, tensors, base)
            }
            Located::Gguf(file) => gguf::read(Gguf::open(&file)?, base),
        };
        let mut file = read.map_err(in_file)?;
        file.info.name = display_name(path);
        AdapterBinder::bind(file, base)
            .map_err(|mismatch| in_file(AdapterFault::Mismatch(mismatch)))
    }
}

/// Whether the path looks like an adapter and not a model; reads names and a GGUF header.
pub fn is_adapter(path: &Path) -> bool {
    match locate(path) {
        Ok(Located::Gguf(file)) => Gguf::open(&file)
            .is_ok_and(|gguf| gguf.metadata().str("general.type") == Some("adapter")),
        Ok(Located::Peft(_) | Located::Mlx(_)) => true,
        Err(_) => false,
    }
}

fn display_name(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_stem().filter(|_| path.is_file());
    let name = name.or(path.file_name()).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn locate(path: &Path) -> Result<Located, AdapterFault> {
    let not = |why: String| Err(AdapterFault::NotAnAdapter(why));
    if !path.exists() {
        return not("no such file or directory".to_owned());
    }
    if path.is_dir() {
        let [config, peft, pickle, mlx] =
            [CONFIG, PEFT, PEFT_PICKLE, MLX].map(|name| path.join(name));
        return match (mlx.is_file(), peft.is_file()) {
            (true, true) => not(format!("the folder has both {PEFT} and {MLX}; name one")),
            (true, false) if config.is_file() => Ok(Located::Mlx(mlx)),
            (false, true) if config.is_file() => Ok(Located::Peft(peft)),
            (false, false) if pickle.is_file() => not(format!(
                "{PEFT_PICKLE} is a pickle, which can run code; save the adapter as {PEFT}"
            )),
            (false, false) => one_gguf(path),
            _ => not(format!("the folder has no {CONFIG}")),
        };
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name == MLX {
        Ok(Located::Mlx(path.to_owned()))
    } else if name.ends_with(".safetensors") {
        Ok(Located::Peft(path.to_owned()))
    } else if Gguf::is_at(path) {
        Ok(Located::Gguf(path.to_owned()))
    } else {
        not("expected a folder, a .safetensors file or a .gguf file".to_owned())
    }
}

fn one_gguf(folder: &Path) -> Result<Located, AdapterFault> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut ggufs = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    match (ggufs.next(), ggufs.next()) {
        (Some(file), None) => Ok(Located::Gguf(file)),
        _ => Err(AdapterFault::NotAnAdapter(format!(
            "the folder has neither {PEFT}, {MLX} nor one .gguf file"
        ))),
    }
}

/// The weights and the config next to them.
fn read_folder(weights: &Path) -> Result<(Config, Vec<RawTensor>), WeightsError> {
    let path = weights.with_file_name(CONFIG);
    let io = |source| WeightsError::Io {
        path: path.clone(),
        source,
    };
    let bytes = read_side_file(&path, MAX_CONFIG_BYTES).map_err(io)?;
    let text = String::from_utf8(bytes).map_err(|error| io(std::io::Error::other(error)))?;
    let config = Config::parse(&text, CONFIG).map_err(|source| WeightsError::Spec {
        path: path.clone(),
        source,
    })?;
    let tensors = safetensors::parse(Blob::map(weights)?, weights)?;
    Ok((config, tensors))
}

impl From<SpecError> for AdapterFault {
    fn from(error: SpecError) -> Self {
        Self::NotAnAdapter(error.to_string())
    }
}
