//! The session contract for every block kind, and the reference logits of every golden checkpoint.

use loquat_cuda::InterpretedBackend;
use std::path::Path;

use loquat_session::conformance::{Golden, Subject, golden, run};
use loquat_session::{Backend, ModelSource, Precision, SessionOptions};
use loquat_testkit::goldens;

/// What a session over this model gets wrong.
fn faults(what: &str, source: &ModelSource, precision: Precision) -> Vec<String> {
    let open = |options: &SessionOptions| {
        let options = SessionOptions {
            precision,
            ..options.clone()
        };
        InterpretedBackend.open(source.clone(), &options, &mut |_| {})
    };
    let subject = Subject {
        open: &open,
        tolerance: 0.0,
        media: &[],
        adapters: &[],
    };
    let failed = run(&subject)
        .into_iter()
        .filter_map(|(check, outcome)| Some(format!("{what} ({precision:?}): {check}: {}", outcome.err()?)));
    failed.collect()
}

#[test]
fn every_family_conforms() {
    let mut found = Vec::new();
    for folder in goldens::all().unwrap() {
        let source = goldens::source(&folder).unwrap();
        let what = folder.display().to_string();
        for precision in [Precision::Fast, Precision::Reference] {
            found.extend(faults(&what, &source, precision));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Sums of f32 in another order than the reference's.
const SUMMATION: f32 = 1e-4;

fn reference_faults(folder: &Path) -> Vec<String> {
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
            InterpretedBackend.open(source.clone(), &options, &mut |_| {})
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
        Some(format!("{}, prompt {prompt}: {reason}", folder.display()))
    });
    faults.collect()
}

#[test]
fn every_family_matches_its_reference() {
    let folders = goldens::all().unwrap();
    let found: Vec<String> = folders.iter().flat_map(|folder| reference_faults(folder)).collect();
    assert!(found.is_empty(), "{found:#?}");
}
