//! The model that a command is about to open, and its limits.

use loquat_session::SessionOptions;
use loquat_store::{FileKind, ModelQuery, Store};

use crate::args::{BenchArgs, Command, ModelChoice};
use crate::prompt;

#[derive(Debug, Clone)]
pub struct OpenAttempt {
    pub reference: String,
    pub kind: Option<FileKind>,
    pub backend: String,
    pub options: SessionOptions,
}

impl OpenAttempt {
    /// The attempt of a command that opens exactly one model. `run` and `serve` create one for each
    /// model.
    pub fn for_command(command: &Command, store: &Store) -> Option<Self> {
        let (choice, session) = match command {
            Command::Generate(args) => {
                let (model, prompt) = (args.model.as_deref(), args.prompt.as_deref());
                // The command itself reports errors.
                let arguments =
                    prompt::model_and_prompt(store, &args.source, model, prompt).ok()?;
                (
                    args.source.choice(arguments.model.as_deref()),
                    &args.session,
                )
            }
            Command::Bench(args) if needs_no_file(args) => return None,
            Command::Bench(args) => (args.source.choice(args.model.as_deref()), &args.session),
            _ => return None,
        };
        let options = session.options(1);
        Some(Self::new(store, &choice, &session.backend, &options))
    }

    pub fn new(
        store: &Store,
        choice: &ModelChoice,
        backend: &str,
        options: &SessionOptions,
    ) -> Self {
        let reference = choice.reference.clone();
        Self {
            reference: reference.unwrap_or_else(|| store.default_model().to_string()),
            kind: choice.kind,
            backend: backend.to_owned(),
            options: options.clone(),
        }
    }

    pub fn wanted(&self) -> ModelQuery<'_> {
        ModelQuery {
            reference: &self.reference,
            kind: self.kind,
            ..ModelQuery::default()
        }
    }
}

fn needs_no_file(args: &BenchArgs) -> bool {
    args.machine || args.synthetic.is_some() || args.draw.is_some()
}
