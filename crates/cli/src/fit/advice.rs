//! What to do instead, for those whose model does not fit.

use loquat_session::{Backend, MemoryBound, OpenError};
use loquat_store::{CatalogEntry, FileKind, ModelForm, ResolvedReference, Store};

use super::machine::{Machine, Measure};
use super::outlook::Outlook;
use super::subject::Subject;
use super::{Attempt, of_catalog, of_entry};
use crate::backends;
use crate::error::CliError;
use crate::load::Model;
use crate::terminal::bytes;

/// Models that are named at most.
const NAMED: usize = 3;
/// A context that is worth proposing.
const LEAST_CONTEXT: u64 = 512;
/// Of a catalog's word for a size: what was reckoned from bits may be wrong by a tenth.
const SURE_OF_EXACT: u64 = 98;
const SURE_OF_RECKONED: u64 = 85;

/// Refuses a model of the catalog whose weights alone are more than there is memory: downloading
/// it would be in vain. What is doubtful is left to the backend, which knows the files.
pub fn refuse_hopeless(store: &Store, attempt: &Attempt) -> Result<(), CliError> {
    let wanted = attempt.wanted();
    let Ok(ResolvedReference::Catalog { entry, form }) = store.resolve(&wanted) else {
        return Ok(());
    };
    if store
        .locate_cached(&wanted)
        .is_ok_and(|here| here.is_some())
    {
        return Ok(());
    }
    let backend = backends::select(&attempt.backend)?;
    let machine = look(store, backend, attempt)?;
    let size = entry.size(form);
    let sure = if size.exact {
        SURE_OF_EXACT
    } else {
        SURE_OF_RECKONED
    };
    let Some(memory) = machine.memory_bytes else {
        return Ok(());
    };
    if size.bytes / 100 * sure <= memory || stays_in_file(&machine, form, attempt) {
        return Ok(());
    }
    let advisor = Advisor {
        store,
        machine: &machine,
    };
    Err(CliError::Hopeless {
        model: entry.to_string(),
        needs: bytes(size.bytes),
        bound: match attempt.options.memory {
            Some(_) => "option `memory` allows",
            None => "this machine has",
        },
        has: bytes(memory),
        advice: advisor.instead_of(Some(entry)).join("; "),
    })
}

/// Plain weights are read where they lie, which the system can drop and read again: slow, and
/// possible.
fn stays_in_file(machine: &Machine, form: &ModelForm, attempt: &Attempt) -> bool {
    form.kind == FileKind::Safetensors && !machine.is_gpu && attempt.options.memory.is_none()
}

/// The same error; where it is about memory, with what would help.
pub fn advised(store: &Store, attempt: &Attempt, error: CliError) -> CliError {
    let CliError::Open(OpenError::OutOfMemory { wanted, bound, .. }) = &error else {
        return error;
    };
    match advice(store, attempt, (*wanted, *bound)) {
        Ok(advice) if !advice.is_empty() => CliError::Advised {
            advice: advice.join("; "),
            source: Box::new(error),
        },
        // What was wrong first is what is told.
        _ => error,
    }
}

fn advice(
    store: &Store,
    attempt: &Attempt,
    (wanted, bound): (u64, MemoryBound),
) -> Result<Vec<String>, CliError> {
    let backend = backends::select(&attempt.backend)?;
    let machine = look(store, backend, attempt)?;
    let advisor = Advisor {
        store,
        machine: &machine,
    };
    let mut advice = Vec::new();
    if bound == MemoryBound::Budget {
        let all = look(store, backend, &without_budget(attempt))?.memory_bytes;
        if all.is_some_and(|all| wanted <= all) {
            advice.push(format!("--memory {}MiB would do", wanted.div_ceil(1 << 20)));
        }
    }
    let here = store.locate_cached(&attempt.wanted())?;
    let model = here.map(|located| Model::open(&located)).transpose()?;
    if let Some(context) = model
        .as_ref()
        .and_then(|model| shorter(model, backend, attempt, &machine))
    {
        advice.push(format!("--context {context} fits"));
    }
    let entry = advisor.same_model(attempt, model.as_ref())?;
    advice.extend(advisor.instead_of(entry));
    Ok(advice)
}

fn without_budget(attempt: &Attempt) -> Attempt {
    let mut attempt = attempt.clone();
    attempt.options.memory = None;
    attempt
}

/// A refusal waits for no measurement.
fn look(store: &Store, backend: &dyn Backend, attempt: &Attempt) -> Result<Machine, CliError> {
    let machine = Machine::look(backend, store.cache_dir(), Measure::Never)?;
    Ok(machine.within(attempt.options.memory))
}

/// The longest context with which the model would open.
fn shorter(
    model: &Model,
    backend: &dyn Backend,
    attempt: &Attempt,
    machine: &Machine,
) -> Option<u64> {
    let least = LEAST_CONTEXT.min(model.source.spec.max_context as u64);
    let subject = Subject::of_files(model, backend, least as usize).ok()?;
    let context = subject.context_within(machine.memory_bytes?) / least * least;
    let mut options = attempt.options.clone();
    options.context = Some(usize::try_from(context).ok()?);
    let is_shorter =
        context >= least && (attempt.options.context).is_none_or(|asked| context < asked as u64);
    (is_shorter && backend.plan(&model.source, &options).is_ok()).then_some(context)
}

struct Advisor<'a> {
    store: &'a Store,
    machine: &'a Machine,
}

impl<'a> Advisor<'a> {
    /// Other files of the same model, then other models.
    fn instead_of(&self, entry: Option<&CatalogEntry>) -> Vec<String> {
        let mut advice = Vec::new();
        if let Some(entry) = entry {
            let forms = of_entry(entry, self.machine, None).into_iter();
            let smaller = forms.filter(|form| form.fits.runs());
            advice.extend(smaller.take(1).map(|form| {
                let Outlook { subject, .. } = form;
                format!("as {} it fits: {}", subject.files, subject.spelled())
            }));
        }
        let all = of_catalog(self.store, self.machine, None);
        let named = entry.map(CatalogEntry::to_string);
        let others = all
            .iter()
            .filter(|outlook| outlook.fits.runs() && named.as_ref() != Some(&outlook.subject.name));
        let names: Vec<String> = others.map(|at| at.subject.spelled()).take(NAMED).collect();
        advice.push(if names.is_empty() {
            "nothing of the catalog fits".to_owned()
        } else {
            format!("what fits: {} (loquat fit tells more)", names.join(", "))
        });
        advice
    }

    /// The catalog's entry of a model: by its name, or the one with as many parameters.
    fn same_model(
        &self,
        attempt: &Attempt,
        model: Option<&Model>,
    ) -> Result<Option<&'a CatalogEntry>, CliError> {
        if let ResolvedReference::Catalog { entry, .. } = self.store.resolve(&attempt.wanted())? {
            return Ok(Some(entry));
        }
        let Some(model) = model else {
            return Ok(None);
        };
        let (family, parameters) = (model.source.spec.family, model.parameters() as f64);
        let is_same = |entry: &&CatalogEntry| {
            let known = entry.parameters as f64;
            entry.family == family && (parameters / known - 1.0).abs() < 0.02
        };
        Ok(self.store.catalog().entries().iter().find(is_same))
    }
}
