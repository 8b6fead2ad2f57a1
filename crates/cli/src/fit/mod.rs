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
use loquat_store::{CatalogEntry, ModelForm, ModelQuery, ResolvedReference, Store};

pub use advice::{advised, refuse_hopeless};
pub use attempt::Attempt;
pub use machine::{Machine, Measure};
pub use outlook::{COMFORT, Outlook};
use subject::Subject;

use crate::args::FitArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, open_store_on};
use crate::terminal::print;
use report::Report;

/// What a conversation rarely exceeds.
const USUAL_CONTEXT: u64 = 8192;

pub fn run(args: &FitArgs) -> Result<(), CliError> {
    let store = open_store_on(args.source.network)?;
    let backend = backends::select(&args.backend)?;
    let chosen = args.source.chosen(args.model.as_deref());
    let asked = args.context.map(|tokens| tokens.get() as u64);
    let measure = if args.measure {
        Measure::Anew
    } else {
        Measure::WhenOld
    };
    let machine = Machine::look(backend, store.cache_dir(), measure)?;
    let outlooks = match &chosen.reference {
        Some(reference) => {
            let wanted = ModelQuery {
                reference,
                kind: chosen.kind,
            };
            of_one(&store, &machine, backend, (&wanted, args.context))?
        }
        None => of_catalog(&store, &machine, asked),
    };
    let report = Report {
        machine: &machine,
        asked,
        outlooks: &outlooks,
        all: args.all || chosen.reference.is_some(),
    };
    print(&if args.json {
        report.json()?
    } else {
        report.text()
    })
}

/// Every entry of the catalog in the form to take here, best first.
pub fn of_catalog(store: &Store, machine: &Machine, asked: Option<u64>) -> Vec<Outlook> {
    let entries = store.catalog().entries().iter();
    let mut outlooks: Vec<Outlook> = entries
        .filter_map(|entry| {
            let mut forms = of_entry(entry, machine, asked).into_iter();
            let usual = forms.next()?;
            if usual.fits.runs() {
                Some(usual)
            } else {
                Some(forms.find(|form| form.fits.runs()).unwrap_or(usual))
            }
        })
        .collect();
    outlooks.sort_by(Outlook::better);
    outlooks
}

/// Each kind of files that an entry comes in, the usual one first.
fn of_entry(entry: &CatalogEntry, machine: &Machine, asked: Option<u64>) -> Vec<Outlook> {
    let usual = entry.usual_form().map(|form| form.kind);
    let mut kinds: Vec<_> = entry.forms.iter().map(|form| form.kind).collect();
    kinds.sort_by_key(|kind| (Some(*kind) != usual, *kind));
    kinds.dedup();
    let forms = kinds.into_iter().filter_map(|kind| entry.form(kind));
    forms
        .map(|form| of_form(entry, form, machine, asked))
        .collect()
}

fn of_form(
    entry: &CatalogEntry,
    form: &ModelForm,
    machine: &Machine,
    asked: Option<u64>,
) -> Outlook {
    let context = asked.unwrap_or(USUAL_CONTEXT).min(u64::from(entry.context));
    let subject = Subject::of_entry(entry, form, context);
    Outlook::of(subject, machine, asked)
}

/// What is here is planned; what is only known is reckoned.
fn of_one(
    store: &Store,
    machine: &Machine,
    backend: &dyn Backend,
    (wanted, context): (&ModelQuery<'_>, Option<NonZeroUsize>),
) -> Result<Vec<Outlook>, CliError> {
    let Some(located) = store.locate_cached(wanted)? else {
        let asked = context.map(|tokens| tokens.get() as u64);
        return of_absent(store, machine, wanted, asked);
    };
    let model = Model::open(&located)?;
    let longest = model.source.spec.max_context;
    let context = match context {
        Some(asked) => asked.get(),
        None => longest.min(USUAL_CONTEXT as usize),
    };
    let subject = Subject::of_files(&model, backend, context)?;
    Ok(vec![Outlook::of(subject, machine, None)])
}

fn of_absent(
    store: &Store,
    machine: &Machine,
    wanted: &ModelQuery<'_>,
    asked: Option<u64>,
) -> Result<Vec<Outlook>, CliError> {
    match store.resolve(wanted)? {
        ResolvedReference::Catalog { entry, .. } if wanted.kind.is_none() => {
            Ok(of_entry(entry, machine, asked))
        }
        ResolvedReference::Catalog { entry, form } => {
            Ok(vec![of_form(entry, form, machine, asked)])
        }
        ResolvedReference::Local(_) | ResolvedReference::Hub(_) => Err(CliError::Usage {
            what: format!("the numbers of `{}` are not known, so it", wanted.reference),
            expected: format!("here first: loquat pull {}", wanted.reference),
        }),
    }
}
