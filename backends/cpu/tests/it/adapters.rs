//! Adapters of files, against logits of peft, and of mlx-lm for what only that makes.

use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::{
    AdapterId, AdapterLimits, AppliedAdapter, Backend, Emit, ModelSource, Precision, Session,
    SessionOptions, StepBatch, StepOutput,
};
use loquat_testkit::goldens::{self, Arrays};
use loquat_weights::{AdapterWeights, Checkpoint};

/// The accepted difference from peft, which computes the same in another order.
const TOLERANCE: f32 = 1e-4;

fn open_with(source: ModelSource, adapters: &[AdapterWeights], precision: Precision) -> Opened {
    let options = SessionOptions {
        precision,
        adapters: AdapterLimits::holding(adapters),
        ..SessionOptions::default()
    };
    let mut session = CpuBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap();
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
            let source = goldens::source(&base).unwrap();
            let mut opened = open_with(source, &[adapter], Precision::Reference);
            let whole = AppliedAdapter::whole(opened.ids[0]);
            let found = opened.logits(&[whole], &tokens);
            let difference = difference(&found, &expected);
            if difference > TOLERANCE {
                faults.push(format!("{}: differs by {difference}", form.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(checked, 25 + 14);
}

/// Its lengths are of rows, peft's of columns.
#[test]
fn dora_of_embedding_agrees_with_mlx_lm() {
    let folder = goldens::fixtures().join("goldens-lora/mlx_only/llama__embed_dora");
    let base = goldens::adapter_base(&folder);
    let checkpoint = Checkpoint::open(&base).unwrap();
    let adapter = AdapterWeights::open(&folder, &checkpoint.adapter_base()).unwrap();
    let arrays = Arrays::open(&folder).unwrap();
    let source = goldens::source(&base).unwrap();
    let mut opened = open_with(source, &[adapter], Precision::Reference);
    let whole = AppliedAdapter::whole(opened.ids[0]);
    let found = opened.logits(&[whole], &arrays.tokens("prompt_b"));
    let difference = difference(&found, &arrays.floats("logits_b"));
    assert!(difference <= TOLERANCE, "differs by {difference}");
}
