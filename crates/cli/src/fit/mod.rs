//! `loquat fit`: which models this machine can run, at which context, and how fast; and what is
//! said to those who ask for one that it cannot.
//!
//! Models are reduced to numbers ([`Subject`]) from the catalog or from their files, the machine
//! likewise ([`Machine`]), and [`Outlook`] is arithmetic on both. docs/fit.md explains the rules.

mod advice;
mod attempt;
mod machine;
mod outlook;
mod report;
mod subject;

use std::num::NonZeroUsize;

use loquat_session::Backend;
use loquat_store::{Entry, Resolved, Store};

pub use advice::{advised, refuse_hopeless};
pub use attempt::Attempt;
pub use machine::{Machine, Measure};
pub use outlook::{COMFORT, Outlook};
use subject::{Subject, usual_form};

use crate::args::FitArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, open_store};
use crate::terminal::print;
use report::Report;

/// What a conversation rarely exceeds.
const USUAL_CONTEXT: u64 = 8192;

pub fn run(args: &FitArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let backend = backends::select(&args.backend)?;
    let asked = args.context.map(|tokens| tokens.get() as u64);
    let measure = match args.measure {
        true => Measure::Anew,
        false => Measure::Once,
    };
    let machine = Machine::look(backend, store.cache_dir(), measure)?;
    let outlooks = match &args.model {
        Some(reference) => of_one(&store, &machine, backend, (reference, args.context))?,
        None => of_catalog(&store, &machine, asked),
    };
    let report = Report {
        machine: &machine,
        asked,
        outlooks: &outlooks,
        all: args.all || args.model.is_some(),
    };
    print(&match args.json {
        true => report.json()?,
        false => report.text(),
    })
}

/// Every entry of the catalog in the form to take here, best first.
pub fn of_catalog(store: &Store, machine: &Machine, asked: Option<u64>) -> Vec<Outlook> {
    let entries = store.catalog().entries().iter();
    let mut outlooks: Vec<Outlook> = entries
        .filter_map(|entry| {
            let mut forms = of_entry(entry, machine, asked).into_iter();
            let usual = forms.next()?;
            match usual.fits.runs() {
                true => Some(usual),
                false => Some(forms.find(|form| form.fits.runs()).unwrap_or(usual)),
            }
        })
        .collect();
    outlooks.sort_by(Outlook::better);
    outlooks
}

/// Each kind of files that an entry comes in, the usual one first.
fn of_entry(entry: &Entry, machine: &Machine, asked: Option<u64>) -> Vec<Outlook> {
    let context = asked
        .unwrap_or(USUAL_CONTEXT)
        .min(u64::from(entry.context))
        .max(1);
    let usual = usual_form(entry).map(|form| form.kind);
    let mut kinds: Vec<_> = entry.forms.iter().map(|form| form.kind).collect();
    kinds.sort_by_key(|kind| Some(*kind) != usual);
    kinds.dedup();
    let forms = kinds.into_iter().filter_map(|kind| entry.form(kind));
    let subjects = forms.map(|form| Subject::of_entry(entry, form, context));
    subjects
        .map(|subject| Outlook::of(subject, machine, asked))
        .collect()
}

/// What is here is planned; what is only known is reckoned.
fn of_one(
    store: &Store,
    machine: &Machine,
    backend: &dyn Backend,
    (reference, context): (&str, Option<NonZeroUsize>),
) -> Result<Vec<Outlook>, CliError> {
    let path = match store.resolve(&reference.into())? {
        Resolved::Local(model) => model.path,
        Resolved::Catalog { entry, .. } => {
            let asked = context.map(|tokens| tokens.get() as u64);
            return Ok(of_entry(entry, machine, asked));
        }
        Resolved::Hub(hub) => {
            return Err(CliError::Usage {
                what: format!("`{hub}` is not of the catalog, so its numbers are unknown; it"),
                expected: format!("here first: loquat pull {hub}"),
            });
        }
    };
    let model = Model::open(&path)?;
    let longest = model.source.spec.max_context;
    let context = match context {
        Some(asked) => asked.get(),
        None => longest.min(USUAL_CONTEXT as usize),
    };
    let subject = Subject::of_files(&model, backend, context)?;
    Ok(vec![Outlook::of(subject, machine, None)])
}
