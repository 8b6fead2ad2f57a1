use std::path::{Path, PathBuf};

use loquat_spec::SpecError;
use loquat_text::TextError;
use loquat_weights::{Dtype, WeightsError};

/// Why a model was not converted. No output is left.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("the lengths of the adapted {role} are not finite numbers")]
    AdapterLengths { role: loquat_spec::Role },
    #[error(
        "the scale of the adapter {adapter} is {found}, but must be a finite number other than 0"
    )]
    AdapterScale { adapter: String, found: f32 },
    #[error("two adapters replace {role}; merge one of them")]
    AdapterConflict { role: loquat_spec::Role },
    #[error(
        "the adapter {adapter} changes the embedding or the head, which are one table in this \
         model, in different ways: the result could not store both. Use it unmerged."
    )]
    TiedAdapter { adapter: String },
    #[error("`{name}` is not a type of {target}. Use one of: {known}.")]
    UnknownQuant {
        name: String,
        target: &'static str,
        known: String,
    },
    #[error(
        "--dtype is for tensors that are not quantized, but --quant {} stores all tensors in one \
         type. Omit --dtype {}.",
        quant.name().to_lowercase(),
        dtype.name().to_lowercase()
    )]
    TwoTypes { quant: Dtype, dtype: Dtype },
    #[error(
        "the model is already quantized ({found}), and quantizing it again adds a second error. \
         Convert the original, or pass --requantize."
    )]
    Quantized { found: String },
    #[error("tensor `{tensor}` holds {found} in row {row}, which no quantized type can store")]
    NotFinite {
        tensor: String,
        row: usize,
        found: f32,
    },
    #[error(
        "tensor `{tensor}` holds {found} in row {row}, which is too large for {stored}. Choose \
         another type."
    )]
    TooLarge {
        tensor: String,
        row: usize,
        found: f32,
        stored: String,
    },
    #[error("`{family}` cannot be written as {target}: {why}; {instead}")]
    Family {
        family: String,
        target: &'static str,
        why: String,
        instead: String,
    },
    #[error("the model's {target} metadata reads back differently: {why}")]
    Differs { target: &'static str, why: String },
    #[error("the tokenizer cannot be written as {target}: {why}")]
    Tokenizer { target: &'static str, why: String },
    #[error("{} already exists. Pass --force to replace it.", path.display())]
    Exists { path: PathBuf },
    #[error(
        "{} holds no model, or other files too, so it is not replaced. Name another path.",
        path.display()
    )]
    NotReplaceable { path: PathBuf },
    #[error("the result is a {expected}, but {} is not. Name a {expected}.", path.display())]
    WrongShape {
        path: PathBuf,
        expected: &'static str,
    },
    #[error("{} is the source. Name another path for the result.", path.display())]
    OntoItself { path: PathBuf },
    #[error(
        "{} needs {needed} bytes, but its disk has {free} left. Free space, or name a path on \
         another disk.",
        path.display()
    )]
    NoSpace {
        path: PathBuf,
        needed: u64,
        free: u64,
    },
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot remove {}: {source}", path.display())]
    Remove {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("interrupted")]
    Interrupted,
}

impl From<SpecError> for ConvertError {
    fn from(error: SpecError) -> Self {
        Self::Weights(error.into())
    }
}

impl ConvertError {
    pub(crate) fn writing(path: &Path) -> impl Fn(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write {
            path: path.clone(),
            source,
        }
    }

    pub(crate) fn reading(path: &Path) -> impl Fn(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read {
            path: path.clone(),
            source,
        }
    }
}
