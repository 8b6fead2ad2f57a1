//! Adapters of files, against logits of peft; and steps that mix them.

use std::path::{Path, PathBuf};

use loquat_mlx::MlxBackend;
use loquat_session::{
    AdapterId, AdapterLimits, AppliedAdapter, Backend, Emit, ModelSource, Precision, SequenceId,
    Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_testkit::adapters;
use loquat_testkit::goldens::{self, Arrays};
use loquat_weights::{AdapterWeights, Checkpoint};

/// The accepted difference from peft, whose sums of float32 have another order.
const TOLERANCE: f32 = 1e-3;

struct Opened {
    session: Box<dyn Session>,
    ids: Vec<AdapterId>,
}

impl Opened {
    fn new(source: ModelSource, adapters: &[AdapterWeights]) -> Self {
        let options = SessionOptions {
            precision: Precision::Reference,
            adapters: AdapterLimits::holding(adapters),
            ..SessionOptions::default()
        };
        let mut session = MlxBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap();
        let ids = adapters.iter().map(|adapter| {
            let loaded = session.load_adapter(adapter);
            loaded.unwrap_or_else(|error| panic!("{}: {error}", adapter.info().name))
        });
        let ids = ids.collect();
        Self { session, ids }
    }

    fn create(&mut self, adapters: &[(usize, f32)]) -> SequenceId {
        let applied = adapters.iter().map(|(index, scale)| AppliedAdapter {
            id: self.ids[*index],
            scale: *scale,
        });
        let applied: Vec<AppliedAdapter> = applied.collect();
        self.session.create_adapted(&applied).unwrap()
    }

    fn logits(&mut self, adapters: &[(usize, f32)], tokens: &[u32]) -> Vec<f32> {
        let sequence = self.create(adapters);
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let positions = tokens.len();
        batch.push(sequence, tokens, Emit::Logits { positions });
        self.session.step(&batch, &mut output).unwrap();
        assert_eq!(output.rows()[0].error, None);
        self.session.release(sequence).unwrap();
        output.all_logits_mut().to_vec()
    }

    /// Each sequence's next token, several times.
    fn decode(&mut self, mut rows: Vec<(SequenceId, Vec<u32>)>, steps: usize) -> Vec<Vec<u32>> {
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let mut answers = vec![Vec::new(); rows.len()];
        for _ in 0..steps {
            batch.clear();
            for (sequence, tokens) in &rows {
                batch.push(*sequence, tokens, Emit::Greedy { positions: 1 });
            }
            self.session.step(&batch, &mut output).unwrap();
            for (row, ((_, tokens), answer)) in rows.iter_mut().zip(&mut answers).enumerate() {
                *tokens = output.tokens(row).to_vec();
                answer.extend_from_slice(tokens);
            }
        }
        for (sequence, _) in rows {
            self.session.release(sequence).unwrap();
        }
        answers
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

/// The adapter in both forms, where it has them.
fn forms(folder: &Path) -> Vec<PathBuf> {
    let forms = [folder.to_owned(), folder.join("mlx")];
    forms.into_iter().filter(|form| form.is_dir()).collect()
}

#[test]
fn goldens_agree_with_peft() {
    let mut faults = Vec::new();
    let mut checked = 0;
    for folder in goldens::adapters().unwrap() {
        let base = goldens::adapter_base(&folder);
        let checkpoint = Checkpoint::open(&base).unwrap();
        let arrays = Arrays::open(&folder).unwrap();
        for form in forms(&folder) {
            checked += 1;
            let adapter = AdapterWeights::open(&form, &checkpoint.adapter_base()).unwrap();
            let mut opened = Opened::new(goldens::source(&base).unwrap(), &[adapter]);
            let tokens = arrays.tokens("prompt_b");
            let expected = arrays.floats("logits_b");
            let found = opened.logits(&[(0, 1.0)], &tokens);
            let difference = difference(&found, &expected);
            if difference > TOLERANCE {
                faults.push(format!("{}: differs by {difference}", form.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(checked, 25 + 14);
}

/// Sequences with other adapters, or none, decode in one array and are computed ahead; each
/// continues as it does alone.
#[test]
fn mixed_sequences_decode_as_alone() {
    const STEPS: usize = 6;
    let mixes: [&[(usize, f32)]; 8] = [
        &[(0, 1.0)],
        &[],
        &[(1, 1.0)],
        &[(0, 1.0)],
        &[(0, 0.5), (1, 1.0)],
        &[],
        &[(1, 1.0)],
        &[(0, -1.0)],
    ];
    for family in [
        "llama",
        "qwen3_moe",
        "deepseek_v3",
        "qwen3_next",
        "gemma3_text",
    ] {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let vocab = source.spec.vocab_size as u32;
        let prompt = |row: usize| -> Vec<u32> {
            let tokens = 4 + row as u32 % 3;
            (0..tokens).map(|i| (i * 13 + row as u32) % vocab).collect()
        };
        let mut opened = Opened::new(source.clone(), &adapters::pair(&source.spec));
        let mut alone = Vec::new();
        for (row, mix) in mixes.iter().enumerate() {
            let sequence = opened.create(mix);
            alone.extend(opened.decode(vec![(sequence, prompt(row))], STEPS));
        }
        let rows = mixes.iter().enumerate();
        let rows = rows.map(|(row, mix)| (opened.create(mix), prompt(row)));
        let rows = rows.collect();
        assert_eq!(opened.decode(rows, STEPS), alone, "{family}");
    }
}
