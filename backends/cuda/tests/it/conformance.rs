//! The session contract for every block kind, and the reference logits of every golden checkpoint:
//! on the interpreter, and on a GPU if there is one.
//!
//! `LOQUAT_FAMILIES` and `LOQUAT_BACKENDS` limit the tests to names separated by commas, as in
//! `llama,mamba2` and `cuda`; `tests/sanitize.sh` uses them.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use loquat_cuda::{CudaBackend, Gpu, InterpretedBackend};
use loquat_session::conformance::{Golden, Subject, golden, run};
use loquat_session::{Backend, Media, ModelSource, Precision, Probe, SessionOptions};
use loquat_testkit::{adapters, goldens, vision};

/// The names in a variable; `None` if it is not set.
fn limited_to(variable: &str) -> Option<Vec<String>> {
    let list = std::env::var(variable).ok()?;
    Some(list.split(',').map(str::to_owned).collect())
}

/// The golden checkpoints to test.
fn folders() -> Vec<PathBuf> {
    let all = goldens::all().unwrap();
    let Some(names) = limited_to("LOQUAT_FAMILIES") else {
        return all;
    };
    let folders: Vec<PathBuf> = names.iter().map(|name| goldens::family(name)).collect();
    let unknown: Vec<_> = folders.iter().filter(|path| !all.contains(path)).collect();
    assert!(unknown.is_empty(), "not goldens: {unknown:?}");
    folders
}

/// The interpreter, and the GPU of this machine, whose kernels stay loaded.
pub fn backends() -> Vec<&'static dyn Backend> {
    static GPU: Mutex<Option<Gpu>> = Mutex::new(None);
    let mut backends: Vec<&dyn Backend> = vec![&InterpretedBackend::AUTO];
    match CudaBackend::AUTO.probe() {
        Probe::Available(_) => {
            GPU.lock()
                .unwrap()
                .get_or_insert_with(|| Gpu::open(0).unwrap());
            backends.push(&CudaBackend::AUTO);
        }
        Probe::Unavailable { why, .. } => eprintln!("not run on a GPU: {why}"),
    }
    if let Some(names) = limited_to("LOQUAT_BACKENDS") {
        backends.retain(|backend| names.iter().any(|name| name == backend.name()));
        assert!(!backends.is_empty(), "none of {names:?} can run here");
    }
    backends
}

/// What a session over this model gets wrong.
fn faults(
    backend: &dyn Backend,
    (what, source, media): (&str, &ModelSource, &[Media]),
    precision: Precision,
) -> Vec<String> {
    let open = |options: &SessionOptions| {
        let options = SessionOptions {
            precision,
            ..options.clone()
        };
        backend.open(source.clone(), &options, &mut |_| {})
    };
    let subject = Subject {
        open: &open,
        tolerance: 0.0,
        media,
        adapters: &adapters::pair(&source.spec),
    };
    let failed = run(&subject).into_iter().filter_map(|(check, outcome)| {
        let reason = outcome.err()?;
        let name = backend.name();
        Some(format!("{name}, {what} ({precision:?}): {check}: {reason}"))
    });
    failed.collect()
}

#[test]
fn every_family_conforms() {
    let mut found = Vec::new();
    for folder in folders() {
        let source = goldens::source(&folder).unwrap();
        let what = folder.display().to_string();
        for backend in backends() {
            for precision in [Precision::Fast, Precision::Reference] {
                let start = std::time::Instant::now();
                let faults = faults(backend, (&what, &source, &[]), precision);
                let (name, seconds) = (backend.name(), start.elapsed().as_secs_f32());
                eprintln!("{name}, {what} ({precision:?}): {seconds:.1} s, {faults:?}");
                found.extend(faults);
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn models_that_read_pictures_conform() {
    let mut found = Vec::new();
    for model in vision::models() {
        for backend in backends() {
            let plan = backend.plan(&model.source, &SessionOptions::default());
            assert!(plan.unwrap().capabilities.media.images, "{}", model.name);
            for precision in [Precision::Fast, Precision::Reference] {
                let model = (model.name, &model.source, &model.media[..]);
                found.extend(faults(backend, model, precision));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Sums of f32 in another order than the reference's.
const SUMMATION: f32 = 1e-4;

fn reference_faults(backend: &dyn Backend, folder: &Path) -> Vec<String> {
    let arrays = goldens::Arrays::open(folder).unwrap();
    let source = goldens::source(folder).unwrap();
    let faults = ["a", "b"].into_iter().filter_map(|prompt| {
        let tokens = arrays.tokens(&format!("prompt_{prompt}"));
        let logits = arrays.floats(&format!("logits_{prompt}"));
        // Some RoPE variants depend on the context; the reference uses its input length.
        let open = |options: &SessionOptions| {
            let options = SessionOptions {
                context: Some(tokens.len()),
                precision: Precision::Reference,
                ..options.clone()
            };
            backend.open(source.clone(), &options, &mut |_| {})
        };
        let subject = Subject {
            open: &open,
            tolerance: SUMMATION,
            media: &[],
            adapters: &[],
        };
        let reference = Golden {
            tokens: &tokens,
            logits: &logits,
            tolerance: SUMMATION,
        };
        let reason = golden(&subject, &reference).err()?;
        let name = backend.name();
        Some(format!(
            "{name}, {}, prompt {prompt}: {reason}",
            folder.display()
        ))
    });
    faults.collect()
}

#[test]
fn every_family_matches_its_reference() {
    let mut found = Vec::new();
    for folder in folders() {
        for backend in backends() {
            found.extend(reference_faults(backend, &folder));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
