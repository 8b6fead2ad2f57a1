//! `loquat fit`: which models this machine can run, with which context, and how fast; and advice
//! for models that do not fit.
//!
//! [`ModelNumbers`] come from the catalog or from files, [`Machine`] from the device, and
//! [`FitEstimate`] is computed from both. docs/fit.md explains the rules.

mod advice;
mod estimate;
mod machine;
mod model_numbers;
mod open_attempt;
mod report;

use std::num::NonZeroUsize;

use loquat::ModelFiles;
use loquat_session::Backend;
use loquat_store::{CatalogEntry, ModelForm, ModelQuery, ResolvedReference, Store};

pub use advice::{refuse_oversized, with_advice};
pub use estimate::{COMFORTABLE_PERCENT, FitEstimate};
pub use machine::{Machine, MeasurePolicy};
use model_numbers::ModelNumbers;
pub use open_attempt::OpenAttempt;

use crate::args::FitArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::open_store_on;
use crate::terminal::{print, print_json};
use report::FitReport;

/// Most conversations are shorter.
const DEFAULT_CONTEXT: u64 = 8192;

pub fn run(args: &FitArgs) -> Result<(), CliError> {
    let store = open_store_on(args.source.network)?;
    let backend = backends::select(&args.backend)?;
    let choice = args.source.choice(args.model.as_deref());
    let asked = args.context.map(|tokens| tokens.get() as u64);
    let measure = if args.measure {
        MeasurePolicy::Always
    } else {
        MeasurePolicy::IfStale
    };
    let machine = Machine::detect(backend, store.cache_dir(), measure)?;
    let estimates = match &choice.reference {
        Some(reference) => {
            let wanted = ModelQuery {
                reference,
                kind: choice.kind,
                ..ModelQuery::default()
            };
            for_model(&store, &machine, backend, (&wanted, args.context))?
        }
        None => for_catalog(&store, &machine, asked),
    };
    let report = FitReport {
        machine: &machine,
        asked,
        estimates: &estimates,
        all: args.all || choice.reference.is_some(),
    };
    if args.json {
        print_json(&report.json())
    } else {
        print(&report.text())
    }
}

/// Every catalog entry in the form that suits this machine, best first.
pub fn for_catalog(store: &Store, machine: &Machine, asked: Option<u64>) -> Vec<FitEstimate> {
    let entries = store.catalog().entries().iter();
    let mut estimates: Vec<FitEstimate> = entries
        .filter_map(|entry| {
            let mut forms = for_entry(entry, machine, asked).into_iter();
            let usual = forms.next()?;
            if usual.fits.runs() {
                Some(usual)
            } else {
                Some(forms.find(|form| form.fits.runs()).unwrap_or(usual))
            }
        })
        .collect();
    estimates.sort_by(FitEstimate::compare);
    estimates
}

/// Each kind of files of an entry, the default kind first.
fn for_entry(entry: &CatalogEntry, machine: &Machine, asked: Option<u64>) -> Vec<FitEstimate> {
    let usual = entry.usual_form().map(|form| form.kind);
    let mut kinds: Vec<_> = entry.forms.iter().map(|form| form.kind).collect();
    kinds.sort_by_key(|kind| (Some(*kind) != usual, *kind));
    kinds.dedup();
    let forms = kinds.into_iter().filter_map(|kind| entry.form(kind));
    forms
        .map(|form| for_form(entry, form, machine, asked))
        .collect()
}

fn for_form(
    entry: &CatalogEntry,
    form: &ModelForm,
    machine: &Machine,
    asked: Option<u64>,
) -> FitEstimate {
    let context = asked
        .unwrap_or(DEFAULT_CONTEXT)
        .min(u64::from(entry.context));
    let subject = ModelNumbers::from_entry(entry, form, context);
    FitEstimate::new(subject, machine, asked)
}

/// Plans local files exactly; estimates from the catalog otherwise.
fn for_model(
    store: &Store,
    machine: &Machine,
    backend: &dyn Backend,
    (wanted, context): (&ModelQuery<'_>, Option<NonZeroUsize>),
) -> Result<Vec<FitEstimate>, CliError> {
    let Some(located) = store.locate_cached(wanted)? else {
        let asked = context.map(|tokens| tokens.get() as u64);
        return for_catalog_model(store, machine, wanted, asked);
    };
    let model = ModelFiles::open(&located)?;
    let longest = model.source.spec.max_context;
    let context = match context {
        Some(asked) => asked.get(),
        None => longest.min(DEFAULT_CONTEXT as usize),
    };
    let subject = ModelNumbers::from_files(&model, backend, context)?;
    Ok(vec![FitEstimate::new(subject, machine, None)])
}

fn for_catalog_model(
    store: &Store,
    machine: &Machine,
    wanted: &ModelQuery<'_>,
    asked: Option<u64>,
) -> Result<Vec<FitEstimate>, CliError> {
    match store.resolve(wanted)? {
        ResolvedReference::Catalog { entry, .. } if wanted.kind.is_none() => {
            Ok(for_entry(entry, machine, asked))
        }
        ResolvedReference::Catalog { entry, form } => {
            Ok(vec![for_form(entry, form, machine, asked)])
        }
        ResolvedReference::Local(_) | ResolvedReference::Hub(_) => Err(CliError::Usage {
            what: format!("`{}` is not in the catalog; it", wanted.reference),
            expected: format!("downloaded first: loquat pull {}", wanted.reference),
        }),
    }
}
