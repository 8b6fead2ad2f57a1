//! The fast path against the general operations: interpreted with a tiny model, and with larger ones
//! on a GPU if there is one.

use loquat_cuda::{CudaBackend, InterpretedBackend};
use loquat_session::{
    Backend, Emit, ModelSource, Probe, SequenceId, Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_synthetic::{Container, Recipe};

pub fn source(recipe: &str) -> ModelSource {
    let recipe: Recipe = recipe.parse().unwrap();
    let model = recipe.make(Container::Safetensors, 7).unwrap();
    let checkpoint = model.checkpoint().unwrap();
    ModelSource {
        weights: checkpoint.bind().unwrap().into(),
        spec: checkpoint.spec.into(),
        paths: Vec::new(),
    }
}

struct Probed {
    session: Box<dyn Session>,
    output: StepOutput,
}

impl Probed {
    fn open(backend: &dyn Backend, source: &ModelSource) -> Self {
        let options = SessionOptions {
            context: Some(1024),
            kv_tokens: Some(16 * 1024),
            max_sequences: 16,
            ..SessionOptions::default()
        };
        let session = backend.open(source.clone(), &options, &mut |_| {}).unwrap();
        Self {
            session,
            output: StepOutput::default(),
        }
    }

    fn step(&mut self, rows: &[(SequenceId, &[u32], Emit)]) {
        let mut batch = StepBatch::default();
        for (sequence, tokens, emit) in rows {
            batch.push(*sequence, tokens, *emit);
        }
        self.session.step(&batch, &mut self.output).unwrap();
        for row in self.output.rows() {
            assert!(row.error.is_none(), "{:?}", row.error);
        }
    }

    fn logits(&mut self, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
        self.step(&[(sequence, tokens, Emit::Logits { positions: 1 })]);
        self.output.logits(0, 0).to_vec()
    }
}

const GREEDY: Emit = Emit::Greedy { positions: 1 };

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    let next = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 16;
    (0..count as u32).map(|i| next(i) % 500 + 1).collect()
}

/// bf16 activations against f32 ones, as a share of the largest logit.
const ROUNDING: f32 = 0.05;

/// A backend with the fast path, the same without it, and models for it.
type Case = ([&'static dyn Backend; 2], &'static [&'static str]);

fn cases() -> Vec<Case> {
    let interpreted: [&dyn Backend; 2] = [&InterpretedBackend::AUTO, &InterpretedBackend::GENERAL];
    let mut cases: Vec<Case> = vec![(interpreted, &["llama-tiny:bf16"])];
    match CudaBackend::AUTO.probe() {
        Probe::Unavailable { why, .. } => eprintln!("not run on a GPU: {why}"),
        Probe::Available(_) => cases.push((
            [&CudaBackend::AUTO, &CudaBackend::GENERAL],
            &["llama-tiny:bf16", "smollm2-135m:bf16", "qwen3-0.6b:bf16"],
        )),
    }
    cases
}

#[test]
fn fast_logits_are_near_general_ones() {
    for (backends, recipes) in cases() {
        for recipe in recipes {
            compare_logits(backends, recipe);
        }
    }
}

fn compare_logits(backends: [&dyn Backend; 2], recipe: &str) {
    let source = source(recipe);
    let [mut fast, mut general] = backends.map(|backend| Probed::open(backend, &source));
    let [a, b] = [&mut fast, &mut general].map(|probed| probed.session.create().unwrap());
    let prompt = tokens(100, 1);
    let mut pairs = vec![(fast.logits(a, &prompt), general.logits(b, &prompt))];
    for token in tokens(40, 2) {
        pairs.push((fast.logits(a, &[token]), general.logits(b, &[token])));
    }
    let mut moved_at_all = false;
    for (index, (found, expected)) in pairs.iter().enumerate() {
        let largest = expected
            .iter()
            .fold(0.0f32, |max, logit| max.max(logit.abs()));
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let moved = differences.fold(0.0f32, f32::max);
        assert!(
            moved <= ROUNDING * largest,
            "{recipe}, {index}: {moved} of {largest}"
        );
        assert!(found.iter().all(|logit| logit.is_finite()));
        moved_at_all |= moved > 0.0;
    }
    // Otherwise both took the same path.
    assert!(moved_at_all, "{recipe}");
}

/// Alone or beside others, decoded by recorded steps or by plain ones: the same bits.
#[test]
fn rows_do_not_depend_on_their_neighbours() {
    for ([backend, _], recipes) in cases() {
        let steps = if backend.name() == "cuda" { 200 } else { 20 };
        compare_rows(backend, recipes[recipes.len().min(2) - 1], steps);
    }
}

fn compare_rows(backend: &dyn Backend, recipe: &str, steps: usize) {
    let source = source(recipe);
    let mut probed = Probed::open(backend, &source);
    let prompts: Vec<Vec<u32>> = (0..11).map(|i| tokens(20 + 13 * i, i as u32)).collect();
    // Alone, through recorded steps.
    let mut expected = Vec::new();
    for prompt in &prompts {
        let sequence = probed.session.create().unwrap();
        let mut found = Vec::new();
        probed.step(&[(sequence, prompt, GREEDY)]);
        for _ in 0..steps {
            let token = probed.output.tokens(0)[0];
            found.push(token);
            probed.step(&[(sequence, &[token], GREEDY)]);
        }
        let token = probed.output.tokens(0)[0];
        expected.push((found, probed.logits(sequence, &[token])));
        probed.session.release(sequence).unwrap();
    }
    for together in [2, 3, 5, 8, 11] {
        let sequences: Vec<_> = (0..together)
            .map(|_| probed.session.create().unwrap())
            .collect();
        let mut next = Vec::new();
        for (sequence, prompt) in sequences.iter().zip(&prompts) {
            probed.step(&[(*sequence, prompt, GREEDY)]);
            next.push(probed.output.tokens(0)[0]);
        }
        let mut found = vec![Vec::new(); together];
        for step in 0..steps {
            for (found, token) in found.iter_mut().zip(&next) {
                found.push(*token);
            }
            let inputs: Vec<[u32; 1]> = next.iter().map(|token| [*token]).collect();
            // A prompt beside them, now and then.
            let guest = (step % 50 == 20).then(|| probed.session.create().unwrap());
            let rows = sequences.iter().zip(&inputs);
            let mut rows: Vec<_> = rows.map(|(id, token)| (*id, &token[..], GREEDY)).collect();
            if let Some(guest) = guest {
                rows.insert(1, (guest, &prompts[10], GREEDY));
            }
            probed.step(&rows);
            let rows = (0..rows.len()).filter(|row| guest.is_none() || *row != 1);
            next = rows.map(|row| probed.output.tokens(row)[0]).collect();
            if let Some(guest) = guest {
                probed.session.release(guest).unwrap();
            }
        }
        for (index, sequence) in sequences.into_iter().enumerate() {
            assert_eq!(found[index], expected[index].0, "row {index} of {together}");
            let logits = probed.logits(sequence, &[next[index]]);
            assert_eq!(logits, expected[index].1, "row {index} of {together}");
            probed.session.release(sequence).unwrap();
        }
    }
}
