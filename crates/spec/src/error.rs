use thiserror::Error;

/// Why a config does not describe a supported model. Every variant names the field.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SpecError {
    #[error("{source_name} is not valid JSON: {reason}")]
    NotJson { source_name: String, reason: String },
    #[error(
        "model family `{found}` (from `{field}`) is not supported; supported: {}",
        supported.join(", ")
    )]
    UnknownFamily {
        field: &'static str,
        found: String,
        supported: Vec<&'static str>,
    },
    #[error(
        "projector type `{found}` (from `{field}`) is not supported; supported: {}",
        supported.join(", ")
    )]
    UnknownProjector {
        field: &'static str,
        found: String,
        supported: Vec<&'static str>,
    },
    #[error(
        "its projector `{tensor}` writes vectors of {found} values, but the text model reads {expected}: it belongs to another model"
    )]
    ProjectorWidth {
        tensor: String,
        found: usize,
        expected: usize,
    },
    #[error("`{field}` is missing from the model's config")]
    Missing { field: String },
    #[error("`{field}` is {found}, but must be {expected}")]
    Invalid {
        field: String,
        found: String,
        expected: String,
    },
    #[error("`{field}` is {found}, which is not supported yet; supported: {supported}")]
    Unsupported {
        field: String,
        found: String,
        supported: &'static str,
    },
}

impl SpecError {
    pub(crate) fn invalid(
        field: impl Into<String>,
        found: impl std::fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            field: field.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}
