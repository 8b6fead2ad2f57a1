//! What somebody wants opened, and within which bounds.

use loquat_session::SessionOptions;
use loquat_store::{FileKind, ModelQuery, Store};

use crate::args::{BenchArgs, Chosen, Command};
use crate::prompt;

#[derive(Debug, Clone)]
pub struct Attempt {
    pub reference: String,
    pub kind: Option<FileKind>,
    pub backend: String,
    pub options: SessionOptions,
}

impl Attempt {
    /// What a command is going to open, if it is one model that has to be found first. `run` and
    /// `serve`, which open several, make an attempt of each.
    pub fn of(command: &Command, store: &Store) -> Option<Self> {
        let (chosen, session) = match command {
            Command::Generate(args) => {
                let (model, prompt) = (args.model.as_deref(), args.prompt.as_deref());
                // What cannot be sorted is the command's to refuse.
                let words = prompt::sort(store, &args.source, model, prompt).ok()?;
                (args.source.chosen(words.model.as_deref()), &args.session)
            }
            Command::Bench(args) if needs_no_file(args) => return None,
            Command::Bench(args) => (args.source.chosen(args.model.as_deref()), &args.session),
            _ => return None,
        };
        let options = session.options(1);
        Some(Self::new(store, &chosen, &session.backend, &options))
    }

    pub fn new(store: &Store, chosen: &Chosen, backend: &str, options: &SessionOptions) -> Self {
        let reference = chosen.reference.clone();
        Self {
            reference: reference.unwrap_or_else(|| store.default_model().to_string()),
            kind: chosen.kind,
            backend: backend.to_owned(),
            options: options.clone(),
        }
    }

    pub fn wanted(&self) -> ModelQuery<'_> {
        ModelQuery {
            reference: &self.reference,
            kind: self.kind,
        }
    }
}

fn needs_no_file(args: &BenchArgs) -> bool {
    args.machine || args.synthetic.is_some() || args.draw.is_some()
}
