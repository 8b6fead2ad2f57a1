//! What somebody wants opened, and within which bounds.

use loquat_session::SessionOptions;
use loquat_store::{FileKind, Store, Wanted};

use crate::args::{Command, SessionArgs};
use crate::prompt;

#[derive(Debug, Clone)]
pub struct Attempt {
    pub reference: String,
    pub kind: Option<FileKind>,
    pub backend: String,
    pub options: SessionOptions,
}

impl Attempt {
    /// What a command is going to open, if it is one model that has to be found first.
    pub fn of(command: &Command, store: &Store) -> Option<Self> {
        let words = |model: &Option<String>, prompt: &Option<String>| {
            // What cannot be sorted is the command's to refuse.
            let words = prompt::sort(store, model.as_deref(), prompt.as_deref());
            words.ok().map(|words| words.model)
        };
        let (model, session) = match command {
            Command::Run(args) => (words(&args.model, &args.prompt)?, &args.session),
            Command::Generate(args) => (words(&args.model, &args.prompt)?, &args.session),
            Command::Bench(args) if needs_no_file(args) => return None,
            Command::Bench(args) => (args.model.clone(), &args.session),
            _ => return None,
        };
        Some(Self::with(store, model, session))
    }

    fn with(store: &Store, model: Option<String>, session: &SessionArgs) -> Self {
        Self {
            reference: model.unwrap_or_else(|| store.default_model().to_string()),
            kind: None,
            backend: session.backend.clone(),
            options: session.options(1),
        }
    }

    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            reference: &self.reference,
            kind: self.kind,
        }
    }
}

fn needs_no_file(args: &crate::args::BenchArgs) -> bool {
    args.machine || args.synthetic.is_some() || args.draw.is_some()
}
