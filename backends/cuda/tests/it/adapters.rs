//! Adapters of files, against logits of peft: on the interpreter, and on a GPU if there is one.

use std::path::Path;

use loquat_cuda::InterpretedBackend;
use loquat_session::{
    AdapterId, AdapterLimits, AppliedAdapter, Backend, Emit, ModelSource, Precision, Session,
    SessionOptions, StepBatch, StepOutput,
};
use loquat_spec::Role;
use loquat_testkit::goldens::{self, Arrays};
use loquat_weights::{AdapterParts, AdapterWeights, Checkpoint, Weights};

use crate::conformance::backends;
use crate::fast_path::source;

/// The accepted difference from peft, which computes the same in another order.
const TOLERANCE: f32 = 1e-4;

fn open_with(backend: &dyn Backend, source: ModelSource, adapters: &[AdapterWeights]) -> Opened {
    let options = SessionOptions {
        precision: Precision::Reference,
        adapters: AdapterLimits::holding(adapters),
        ..SessionOptions::default()
    };
    let mut session = backend.open(source, &options, &mut |_| {}).unwrap();
    let ids = adapters.iter().map(|adapter| {
        let loaded = session.load_adapter(adapter);
        loaded.unwrap_or_else(|error| panic!("{}: {error}", adapter.info().name))
    });
    let ids = ids.collect();
    Opened { session, ids }
}

struct Opened {
    session: Box<dyn Session>,
    ids: Vec<AdapterId>,
}

impl Opened {
    fn logits(&mut self, adapters: &[AppliedAdapter], tokens: &[u32]) -> Vec<f32> {
        let sequence = self.session.create_adapted(adapters).unwrap();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let positions = tokens.len();
        batch.push(sequence, tokens, Emit::Logits { positions });
        self.session.step(&batch, &mut output).unwrap();
        assert_eq!(output.rows()[0].error, None);
        self.session.release(sequence).unwrap();
        let positions = 0..positions;
        positions
            .flat_map(|position| output.logits(0, position).iter().copied())
            .collect()
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

/// The adapter in both forms, where it has them.
fn forms(folder: &Path) -> Vec<std::path::PathBuf> {
    let mlx = folder.join("mlx");
    [folder.to_owned(), mlx]
        .into_iter()
        .filter(|form| form.is_dir())
        .collect()
}

#[test]
fn goldens_agree_with_peft() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for folder in goldens::adapters().unwrap() {
        let base = goldens::adapter_base(&folder);
        let checkpoint = Checkpoint::open(&base).unwrap();
        let arrays = Arrays::open(&folder).unwrap();
        let (tokens, expected) = (arrays.tokens("prompt_b"), arrays.floats("logits_b"));
        for form in forms(&folder) {
            checked += 1;
            let adapter = match AdapterWeights::open(&form, &checkpoint.adapter_base()) {
                Ok(adapter) => adapter,
                Err(error) => {
                    faults.push(error.to_string());
                    continue;
                }
            };
            for backend in backends() {
                let source = goldens::source(&base).unwrap();
                let mut opened = open_with(backend, source, std::slice::from_ref(&adapter));
                let whole = AppliedAdapter::whole(opened.ids[0]);
                let found = opened.logits(&[whole], &tokens);
                let difference = difference(&found, &expected);
                if difference > TOLERANCE {
                    let (name, form) = (backend.name(), form.display());
                    faults.push(format!("{name}, {form}: differs by {difference}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(checked, 25 + 14);
}

/// Every weight that an adapter can replace, by itself.
fn replaces_all(source: &ModelSource) -> AdapterWeights {
    let mut replaced = Weights::default();
    for (role, _) in source.spec.roles() {
        if let Some(stack) = source.weights.stack(role)
            && !matches!(role, Role::Positions | Role::PerLayerEmbedding)
        {
            replaced.insert_stack(role, stack.to_vec());
        }
        if let Some(values) = source
            .weights
            .vector(role)
            .filter(|_| role.is_token_vector())
        {
            replaced.insert_vector(role, values.to_vec());
        }
    }
    let parts = AdapterParts {
        replaced,
        ..AdapterParts::default()
    };
    AdapterWeights::new(&source.spec, parts).unwrap()
}

#[test]
fn equal_replacements_change_nothing() {
    for folder in goldens::all().unwrap() {
        for backend in backends() {
            let source = goldens::source(&folder).unwrap();
            let adapter = replaces_all(&source);
            let mut opened = open_with(backend, source, &[adapter]);
            let whole = AppliedAdapter::whole(opened.ids[0]);
            let tokens: Vec<u32> = (1..20).collect();
            let expected = opened.logits(&[], &tokens);
            assert!(
                opened.logits(&[whole], &tokens) == expected,
                "{}, {}",
                backend.name(),
                folder.display()
            );
        }
    }
}

#[test]
fn sessions_with_adapters_skip_the_fast_path() {
    let source = source("llama-tiny:bf16");
    let adapters = loquat_testkit::adapters::pair(&source.spec);
    let tokens: Vec<u32> = (1..20).collect();
    let logits = [InterpretedBackend::AUTO, InterpretedBackend::GENERAL].map(|backend| {
        let options = SessionOptions {
            adapters: AdapterLimits::holding(&adapters),
            ..SessionOptions::default()
        };
        let mut session = backend.open(source.clone(), &options, &mut |_| {}).unwrap();
        let ids = adapters.iter().map(|adapter| session.load_adapter(adapter));
        let ids = ids.collect::<Result<_, _>>().unwrap();
        let mut opened = Opened { session, ids };
        let whole = AppliedAdapter::whole(opened.ids[0]);
        [&[][..], &[whole]].map(|applied| opened.logits(applied, &tokens))
    });
    assert!(logits[0] == logits[1]);
    let [base, adapted] = &logits[0];
    assert!(base != adapted);
}
