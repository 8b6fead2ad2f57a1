//! Checks the session contract and reference logits for every block kind.

use std::path::{Path, PathBuf};

use loquat_mlx::MlxBackend;
use loquat_session::conformance::{Golden, Subject, golden, run};
use loquat_session::{Backend, Media, ModelSource, OpenError, Precision, Session, SessionOptions};
use loquat_testkit::{adapters, goldens, vision};

/// Sums of float32 in another order: MLX's kernels take other shapes for one token than for many,
/// so a session does not promise equal bits.
const SUMMATION: f32 = 1e-4;
/// Quantized checkpoints are compared with MLX's results, whose summation order differs by device.
const QUANTIZED: f32 = 1e-3;

fn open(
    backend: &MlxBackend,
    source: &ModelSource,
    precision: Precision,
    options: &SessionOptions,
) -> Result<Box<dyn Session>, OpenError> {
    let options = SessionOptions {
        precision,
        ..options.clone()
    };
    backend.open(source.clone(), &options, &mut |_| {})
}

/// Runs `check` on every folder and reports all failures of the run.
fn each(folders: Vec<PathBuf>, check: impl Fn(&Path) -> Vec<String>) {
    assert!(!folders.is_empty());
    let failures: Vec<String> = folders
        .iter()
        .flat_map(|folder| {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let failures = check(folder).into_iter();
            failures.map(move |failure| format!("{name}, {failure}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn contract(folder: &Path, precision: Precision, tolerance: f32) -> Vec<String> {
    let source = goldens::source(folder).unwrap();
    source_contract(&MlxBackend::AUTO, &source, &[], precision, tolerance)
}

fn source_contract(
    backend: &MlxBackend,
    source: &ModelSource,
    media: &[Media],
    precision: Precision,
    tolerance: f32,
) -> Vec<String> {
    let open = |options: &SessionOptions| open(backend, source, precision, options);
    let subject = Subject {
        open: &open,
        tolerance,
        media,
        adapters: &adapters::pair(&source.spec),
    };
    let outcomes = run(&subject).into_iter();
    let failures = outcomes.filter_map(|(check, outcome)| {
        let reason = outcome.err()?;
        Some(format!("{check}: {reason}"))
    });
    failures.collect()
}

/// The differences of prompts `a` and `b` from their references that exceed the tolerance.
fn references(folder: &Path, precision: Precision, suffix: &str, tolerance: f32) -> Vec<String> {
    let arrays = goldens::Arrays::open(folder).unwrap();
    let source = goldens::source(folder).unwrap();
    let prompts = ["a", "b"].into_iter();
    let failures = prompts.filter_map(|prompt| {
        let tokens = arrays.tokens(&format!("prompt_{prompt}"));
        let logits = arrays.floats(&format!("logits_{prompt}{suffix}"));
        // Some RoPE variants depend on the context; the reference uses its input length.
        let open = |options: &SessionOptions| {
            let options = SessionOptions {
                context: Some(tokens.len()),
                ..options.clone()
            };
            open(&MlxBackend::AUTO, &source, precision, &options)
        };
        let subject = Subject {
            open: &open,
            tolerance,
            media: &[],
            adapters: &[],
        };
        let reference = Golden {
            tokens: &tokens,
            logits: &logits,
            tolerance,
        };
        let reason = golden(&subject, &reference).err()?;
        Some(format!("prompt {prompt}: {reason}"))
    });
    failures.collect()
}

#[test]
fn every_family_matches_its_reference() {
    each(goldens::all().unwrap(), |folder| {
        references(folder, Precision::Reference, "", SUMMATION)
    });
}

#[test]
fn quantized_checkpoints_match_their_reference() {
    each(goldens::mlx().unwrap(), |folder| {
        references(folder, Precision::Reference, "_f32", QUANTIZED)
    });
}

#[test]
fn every_family_keeps_the_contract() {
    each(goldens::all().unwrap(), |folder| {
        contract(folder, Precision::Reference, SUMMATION)
    });
}

#[test]
fn models_that_read_pictures_keep_the_contract() {
    let models = vision::models().into_iter();
    let failures: Vec<String> = models
        .flat_map(|model| {
            let (source, media) = (&model.source, &model.media);
            let auto = MlxBackend::AUTO;
            let failures = source_contract(&auto, source, media, Precision::Reference, SUMMATION);
            let named = failures.into_iter();
            named.map(move |failure| format!("{}, {failure}", model.name))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Prompts of the contract are several times longer than the windows of goldens, but shorter than
/// the pages that are usual on MLX.
#[test]
fn windows_that_free_pages_keep_the_contract() {
    let small_pages = MlxBackend::with_page(32);
    let mut with_windows = 0;
    let texts = goldens::all().unwrap().into_iter().map(|folder| {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        (name, goldens::source(&folder).unwrap(), Vec::new())
    });
    let vision = vision::models().into_iter();
    let vision = vision.map(|model| (model.name.to_string(), model.source, model.media));
    let mut failures = Vec::new();
    for (name, source, media) in texts.chain(vision) {
        let options = SessionOptions::default();
        let plan = small_pages.plan(&source, &options).unwrap();
        if !plan.memory.kv_groups.free_within(source.spec.max_context) {
            continue;
        }
        with_windows += 1;
        let found = source_contract(
            &small_pages,
            &source,
            &media,
            Precision::Reference,
            SUMMATION,
        );
        failures.extend(
            found
                .into_iter()
                .map(|failure| format!("{name}, {failure}")),
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(with_windows >= 10, "only {with_windows} have windows");
}

/// One family for each kind of block, in the default types: on a GPU the checkpoint's bf16, whose
/// adjacent numbers differ by 1/128 of their value. Logits reach about 4 here, after about ten
/// roundings. MLX's CPU always uses float32.
#[test]
fn rounded_activations_keep_the_contract() {
    const ROUNDED: f32 = 0.25;
    let families = [
        "llama",
        "gemma3_text",
        "gpt_oss",
        "deepseek_v3",
        "qwen3_moe",
        "lfm2",
        "qwen3_next",
        "mamba2",
        "falcon_h1",
    ];
    each(families.map(goldens::family).into(), |folder| {
        let mut failures = contract(folder, Precision::Fast, ROUNDED);
        failures.extend(references(folder, Precision::Fast, "", ROUNDED));
        failures
    });
}

#[test]
fn quantized_checkpoints_keep_the_contract() {
    let modes = [
        "affine4_g32",
        "affine8_g64",
        "mixed",
        "mxfp4",
        "mxfp8",
        "nvfp4",
    ];
    let is_selected = |folder: &PathBuf| {
        let name = folder.file_name().unwrap().to_string_lossy();
        modes.iter().any(|mode| name == format!("llama__{mode}")) || name.starts_with("qwen3_moe__")
    };
    let folders = goldens::mlx()
        .unwrap()
        .into_iter()
        .filter(is_selected)
        .collect();
    each(folders, |folder| {
        contract(folder, Precision::Reference, SUMMATION)
    });
}

#[test]
fn plan_equals_the_opened_session() {
    let (plain, quantized) = (goldens::all().unwrap(), goldens::mlx().unwrap());
    for folder in plain.into_iter().chain(quantized) {
        for precision in [Precision::Fast, Precision::Reference] {
            let source = goldens::source(&folder).unwrap();
            let options = SessionOptions {
                precision,
                kv_tokens: Some(1000),
                ..SessionOptions::default()
            };
            let plan = MlxBackend::AUTO.plan(&source, &options).unwrap();
            let mut shares = Vec::new();
            let session = MlxBackend::AUTO
                .open(source, &options, &mut |share| shares.push(share))
                .unwrap();
            assert_eq!(plan.memory, session.memory(), "{}", folder.display());
            assert_eq!(&plan.capabilities, session.capabilities());
            assert!(
                shares.is_sorted() && shares.last() == Some(&1.0),
                "{shares:?}"
            );
        }
    }
}
