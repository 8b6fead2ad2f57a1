//! Advice for models that do not fit.

use loquat::{Error, ModelFiles};
use loquat_session::{Backend, MemoryBound, OpenError};
use loquat_store::{CatalogEntry, FileKind, ModelForm, ResolvedReference, Store};

use super::estimate::FitEstimate;
use super::machine::{Machine, MeasurePolicy};
use super::model_numbers::ModelNumbers;
use super::{OpenAttempt, for_catalog, for_entry};
use crate::backends;
use crate::error::CliError;
use crate::terminal::bytes;

/// Suggested models.
const MAX_SUGGESTIONS: usize = 3;
/// The shortest context to suggest.
const MIN_CONTEXT: u64 = 512;
/// Per cent of a size in the catalog that is certain: an estimate from bits may be off by a tenth.
const CERTAIN_OF_EXACT: u64 = 98;
const CERTAIN_OF_ESTIMATE: u64 = 85;

/// Refuses a catalog model whose weights alone exceed the memory, before it is downloaded. The
/// backend decides doubtful cases from the files.
pub fn refuse_oversized(store: &Store, attempt: &OpenAttempt) -> Result<(), CliError> {
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
    let machine = detect_machine(store, backend, attempt)?;
    let size = entry.size(form);
    let certain = if size.exact {
        CERTAIN_OF_EXACT
    } else {
        CERTAIN_OF_ESTIMATE
    };
    let Some(memory) = machine.memory_bytes else {
        return Ok(());
    };
    if size.bytes / 100 * certain <= memory || stays_in_file(&machine, form, attempt) {
        return Ok(());
    }
    let advisor = Advisor {
        store,
        machine: &machine,
    };
    Err(CliError::Oversized {
        model: entry.to_string(),
        needs: bytes(size.bytes),
        bound: match attempt.options.memory {
            Some(_) => "option `memory` allows",
            None => "this machine has",
        },
        has: bytes(memory),
        advice: advisor.alternatives(Some(entry)).join(". "),
    })
}

/// Unquantized weights are read from the mapped file, which the system can page: slow, but
/// possible.
fn stays_in_file(machine: &Machine, form: &ModelForm, attempt: &OpenAttempt) -> bool {
    form.kind == FileKind::Safetensors && !machine.is_gpu && attempt.options.memory.is_none()
}

/// Adds advice to an out-of-memory error.
pub fn with_advice(store: &Store, attempt: &OpenAttempt, error: CliError) -> CliError {
    let CliError::Library(Error::Open(OpenError::OutOfMemory { wanted, bound, .. })) = &error
    else {
        return error;
    };
    match advice(store, attempt, (*wanted, *bound)) {
        Ok(advice) if !advice.is_empty() => CliError::WithAdvice {
            advice: advice.join(". "),
            source: Box::new(error),
        },
        // The original error is more important than an error here.
        _ => error,
    }
}

fn advice(
    store: &Store,
    attempt: &OpenAttempt,
    (wanted, bound): (u64, MemoryBound),
) -> Result<Vec<String>, CliError> {
    let backend = backends::select(&attempt.backend)?;
    let machine = detect_machine(store, backend, attempt)?;
    let advisor = Advisor {
        store,
        machine: &machine,
    };
    let mut advice = Vec::new();
    if bound == MemoryBound::Budget {
        let all = detect_machine(store, backend, &without_budget(attempt))?.memory_bytes;
        if all.is_some_and(|all| wanted <= all) {
            advice.push(format!("Use --memory {}MiB", wanted.div_ceil(1 << 20)));
        }
    }
    let here = store.locate_cached(&attempt.wanted())?;
    let model = here.map(|located| ModelFiles::open(&located)).transpose()?;
    if let Some(context) = model
        .as_ref()
        .and_then(|model| shorter_context(model, backend, attempt, &machine))
    {
        advice.push(format!("Use --context {context}"));
    }
    let entry = advisor.same_model(attempt, model.as_ref())?;
    advice.extend(advisor.alternatives(entry));
    Ok(advice)
}

fn without_budget(attempt: &OpenAttempt) -> OpenAttempt {
    let mut attempt = attempt.clone();
    attempt.options.memory = None;
    attempt
}

/// Without a measurement, so that errors come at once.
fn detect_machine(
    store: &Store,
    backend: &dyn Backend,
    attempt: &OpenAttempt,
) -> Result<Machine, CliError> {
    let machine = Machine::detect(backend, store.cache_dir(), MeasurePolicy::Never)?;
    Ok(machine.limited_to(attempt.options.memory))
}

/// The longest context that fits.
fn shorter_context(
    model: &ModelFiles,
    backend: &dyn Backend,
    attempt: &OpenAttempt,
    machine: &Machine,
) -> Option<u64> {
    let least = MIN_CONTEXT.min(model.source.spec.max_context as u64);
    let subject = ModelNumbers::from_files(model, backend, least as usize).ok()?;
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
    /// Suggests other files of the same model, then other models.
    fn alternatives(&self, entry: Option<&CatalogEntry>) -> Vec<String> {
        let mut advice = Vec::new();
        if let Some(entry) = entry {
            let forms = for_entry(entry, self.machine, None).into_iter();
            let smaller = forms.filter(|form| form.fits.runs());
            advice.extend(smaller.take(1).map(|form| {
                let FitEstimate { subject, .. } = form;
                format!("It fits as {}: {}", subject.files, subject.reference())
            }));
        }
        let all = for_catalog(self.store, self.machine, None);
        let named = entry.map(CatalogEntry::to_string);
        let others = all.iter().filter(|estimate| {
            estimate.fits.runs() && named.as_ref() != Some(&estimate.subject.name)
        });
        let names: Vec<String> = others
            .map(|at| at.subject.reference())
            .take(MAX_SUGGESTIONS)
            .collect();
        advice.push(if names.is_empty() {
            "No model of the catalog fits".to_owned()
        } else {
            format!("These fit: {} (see `loquat fit`)", names.join(", "))
        });
        advice
    }

    /// The catalog entry of a model, by name or by parameter count.
    fn same_model(
        &self,
        attempt: &OpenAttempt,
        model: Option<&ModelFiles>,
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
