//! Errors of commands, and their exit codes.

use std::path::PathBuf;

use loquat_bench::BenchError;
use loquat_chat::ChatError;
use loquat_convert::ConvertError;
use loquat_engine::EngineError;
use loquat_grammar::GrammarError;
use loquat_session::OpenError;
use loquat_store::StoreError;
use loquat_synthetic::SyntheticError;
use loquat_text::{Blame, TextError};
use loquat_weights::WeightsError;
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    #[error(transparent)]
    Library(#[from] loquat::Error),
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(
        "no model named `{word}`. To use it as a prompt, write `loquat run -- {word}`{}",
        .advice.as_ref().map(|advice| format!("; {advice}")).unwrap_or_default()
    )]
    UnknownModelWord {
        word: String,
        advice: Option<String>,
    },
    #[error("no prompt. Pass one as an argument or on stdin")]
    NoPrompt,
    #[error("{what} must be {expected}")]
    Usage { what: String, expected: String },
    #[error("{flag}: cannot read {}: {source}", path.display())]
    File {
        flag: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{flag}: {origin} is not valid JSON: {source}")]
    Json {
        flag: &'static str,
        origin: String,
        source: serde_json::Error,
    },
    #[error("{flag}: {what}")]
    Field { flag: &'static str, what: String },
    #[error("{option}: {}: {source}", path.display())]
    Template {
        option: &'static str,
        path: PathBuf,
        source: TextError,
    },
    #[error("{flag}: {source}")]
    Grammar {
        flag: &'static str,
        source: GrammarError,
    },
    #[error("cannot read the prompt from stdin: {0}")]
    Stdin(std::io::Error),
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} already exists. Use --force to overwrite it, or -o to write another file", path.display())]
    Exists { path: PathBuf },
    #[error("{} of the checks failed: {}", .0.len(), .0.join("; "))]
    Checks(Vec<String>),
    #[error("found {}. Each is listed with its fix", match .0 { 1 => "1 problem".to_owned(), n => format!("{n} problems") })]
    Problems(usize),
    #[error(
        "{} damaged: {}. Repair with `loquat pull`",
        match .0.len() { 1 => "1 model is".to_owned(), count => format!("{count} models are") },
        .0.join(", ")
    )]
    Damaged(Vec<String>),
    #[error(transparent)]
    Bench(BenchError),
    #[error("interrupted")]
    Interrupted,
    #[error("cannot read the terminal: {0}")]
    Terminal(String),
    #[error(transparent)]
    Config(#[from] loquat_server::config::ConfigErrors),
    #[error(transparent)]
    Telemetry(#[from] loquat_server::telemetry::TelemetryError),
    #[error(transparent)]
    Serve(#[from] loquat_server::ServeError),
    #[error("cannot start the server: {0}")]
    Runtime(std::io::Error),
    #[error("{model} was not downloaded: its weights need {needs}, and {bound} {has}. {advice}")]
    Oversized {
        model: String,
        needs: String,
        bound: &'static str,
        has: String,
        advice: String,
    },
    #[error("{source}. {advice}")]
    WithAdvice {
        source: Box<CliError>,
        advice: String,
    },
    #[error("model `{name}`: {source}")]
    ForModel { name: String, source: Box<CliError> },
}

/// Errors of the library's layers, so that exit codes do not depend on which layer was called.
macro_rules! library_errors {
    ($($layer:ty),+) => {$(
        impl From<$layer> for CliError {
            fn from(error: $layer) -> Self {
                Self::Library(error.into())
            }
        }
    )+};
}

library_errors!(
    StoreError,
    WeightsError,
    OpenError,
    TextError,
    ChatError,
    EngineError
);

/// Under the same names as other commands' errors.
impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage { what, expected } => Self::Usage { what, expected },
            BenchError::Library(error) => error.into(),
            BenchError::Engine(error) => error.into(),
            BenchError::Synthetic(error) => error.into(),
            BenchError::Serve(error) => error.into(),
            BenchError::Grammar(source) => Self::Grammar {
                flag: "--constrained",
                source,
            },
            error => Self::Bench(error),
        }
    }
}

impl CliError {
    /// 1 failure, 2 wrong usage, 3 the model cannot be found or loaded, 4 the request was refused,
    /// 130 interrupted, 141 output pipe closed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Library(error) => library_exit_code(error),
            Self::UnknownModelWord { .. }
            | Self::NoPrompt
            | Self::Usage { .. }
            | Self::Exists { .. }
            | Self::File { .. }
            | Self::Json { .. }
            | Self::Field { .. }
            | Self::Template { .. }
            | Self::Config(_)
            | Self::Serve(loquat_server::ServeError::Tls(_)) => 2,
            Self::ForModel { source, .. } | Self::WithAdvice { source, .. } => source.exit_code(),
            Self::Bench(BenchError::DoesNotFit { .. } | BenchError::FigureField(_)) => 2,
            Self::Synthetic(error) => match error {
                SyntheticError::UnknownShape { .. }
                | SyntheticError::UnknownFormat { .. }
                | SyntheticError::Container { .. }
                | SyntheticError::Exists { .. } => 2,
                SyntheticError::Weights(_) => 3,
                SyntheticError::Write { .. } => 1,
            },
            Self::Convert(error) => match error {
                ConvertError::UnknownQuant { .. }
                | ConvertError::AdapterScale { .. }
                | ConvertError::AdapterConflict { .. }
                | ConvertError::TwoTypes { .. }
                | ConvertError::Quantized { .. }
                | ConvertError::Exists { .. }
                | ConvertError::NotReplaceable { .. }
                | ConvertError::WrongShape { .. }
                | ConvertError::OntoItself { .. } => 2,
                ConvertError::NoSpace { .. }
                | ConvertError::Write { .. }
                | ConvertError::Remove { .. } => 1,
                ConvertError::Interrupted => 130,
                ConvertError::Weights(_)
                | ConvertError::AdapterLengths { .. }
                | ConvertError::TiedAdapter { .. }
                | ConvertError::Text(_)
                | ConvertError::NotFinite { .. }
                | ConvertError::TooLarge { .. }
                | ConvertError::Family { .. }
                | ConvertError::Differs { .. }
                | ConvertError::Tokenizer { .. }
                | ConvertError::Read { .. } => 3,
            },
            Self::Grammar { source, .. } if source.is_request_fault() => 4,
            Self::Oversized { .. } | Self::Grammar { .. } => 3,
            Self::Stdin(_)
            | Self::Terminal(_)
            | Self::Write { .. }
            | Self::Problems(_)
            | Self::Checks(_)
            | Self::Damaged(_)
            | Self::Bench(_)
            | Self::Telemetry(_)
            | Self::Serve(_)
            | Self::Runtime(_) => 1,
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => 141,
            Self::Output(_) => 1,
            Self::Interrupted => 130,
        }
    }

    /// Names the model that the error is about.
    pub fn for_model(self, name: &str) -> Self {
        Self::ForModel {
            name: name.to_owned(),
            source: Box::new(self),
        }
    }

    /// After Ctrl-C or a closed pipe there is nothing to report.
    pub fn is_silent(&self) -> bool {
        matches!(self.exit_code(), 130 | 141)
    }
}

fn library_exit_code(error: &loquat::Error) -> u8 {
    use loquat::Error;
    match error {
        Error::UnknownBackend(_) | Error::Open(OpenError::Option { .. }) => 2,
        Error::Store(_)
        | Error::Weights(_)
        | Error::Open(_)
        | Error::UnavailableBackend { .. }
        | Error::NoBackend { .. }
        | Error::Defaults(_) => 3,
        Error::Text(error) => exit_code_by(error.blame(), 3),
        Error::Chat(error) => exit_code_by(error.blame(), 3),
        Error::Engine(error) => exit_code_by(error.blame(), 1),
        _ => 1,
    }
}

fn exit_code_by(blame: Blame, system: u8) -> u8 {
    match blame {
        Blame::Request => 4,
        Blame::System => system,
    }
}
