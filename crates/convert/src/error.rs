use std::path::{Path, PathBuf};

use loquat_spec::SpecError;
use loquat_text::TextError;
use loquat_weights::{Dtype, WeightsError};

/// Why a model was not converted. Nothing is left of it then.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("`{name}` is not something {target} can be quantized to; there are {known}")]
    UnknownQuant {
        name: String,
        target: &'static str,
        known: String,
    },
    #[error(
        "--dtype is the type of what stays plain beside quantized matrices; with --quant {} \
         everything has that type, so leave --dtype {} out",
        quant.name().to_lowercase(),
        dtype.name().to_lowercase()
    )]
    TwoTypes { quant: Dtype, dtype: Dtype },
    #[error(
        "the model is quantized already ({found}), and quantizing it again adds a second error to \
         the first; convert the original, or say --requantize"
    )]
    Quantized { found: String },
    #[error("tensor `{tensor}` holds {found} in row {row}, which no quantized type can store")]
    NotFinite {
        tensor: String,
        row: usize,
        found: f32,
    },
    #[error(
        "tensor `{tensor}` holds {found} in row {row}, which is too large for {stored}; choose \
         another type"
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
    #[error("what was written of the model as {target} reads back differently: {why}")]
    Differs { target: &'static str, why: String },
    #[error("the tokenizer cannot be written as {target}: {why}")]
    Tokenizer { target: &'static str, why: String },
    #[error("{} is there already; say --force to replace it", path.display())]
    Exists { path: PathBuf },
    #[error(
        "{} holds no model, or more than a model, so it is not replaced; name another place",
        path.display()
    )]
    NotReplaceable { path: PathBuf },
    #[error("the result is a {wanted}, which {} is not; name a {wanted}", path.display())]
    WrongShape { path: PathBuf, wanted: &'static str },
    #[error("{} is what is converted; name another place for the result", path.display())]
    OntoItself { path: PathBuf },
    #[error(
        "{} needs {needed} bytes and its disk has {free} left; free some, or name a place on \
         another disk",
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
