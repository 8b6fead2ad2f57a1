//! The fast path against the general operations: interpreted with a tiny model, and with larger ones
//! on a GPU if there is one.

use loquat_cuda::{CudaBackend, InterpretedBackend};
use loquat_session::conformance::{Subject, run};
use loquat_session::{
    Backend, Draw, Emit, ModelSource, Probe, SequenceId, Session, SessionOptions, StepBatch,
    StepOutput,
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

/// The draw of a row's step.
fn draw(row: usize, step: usize) -> Draw {
    let unit = (row * 37 + step * 61) % 97;
    Draw {
        temperature: [0.7, 1.0, 2.0][row % 3],
        top_k: [0, 40][row % 2],
        top_p: [1.0, 0.9, 0.95][step % 3],
        min_p: [0.0, 0.05][step % 2],
        unit: unit as f32 / 97.0,
    }
}

/// What rows emit in a step: most are drawn.
fn drawn_or_greedy(row: usize, step: usize) -> Emit {
    if (row + step).is_multiple_of(5) {
        GREEDY
    } else {
        Emit::Drawn(draw(row, step))
    }
}

/// Recorded steps draw the tokens that logits give, alone, beside others, beside greedy rows and
/// prompts, and if the step that was started ahead is dropped.
#[test]
fn recorded_steps_draw_from_their_logits() {
    for ([backend, _], recipes) in cases() {
        let source = source(recipes[0]);
        let mut probed = Probed::open(backend, &source);
        let mut reference = Probed::open(backend, &source);
        for together in [1, 3, 11] {
            let open = |probed: &mut Probed| -> Vec<SequenceId> {
                let rows = 0..together;
                rows.map(|_| probed.session.create().unwrap()).collect()
            };
            let (rows, plain) = (open(&mut probed), open(&mut reference));
            let mut next = Vec::new();
            for row in 0..together {
                let prompt = tokens(9 + 7 * row, row as u32);
                probed.step(&[(rows[row], &prompt, drawn_or_greedy(row, 0))]);
                let logits = reference.logits(plain[row], &prompt);
                check(&logits, drawn_or_greedy(row, 0), probed.output.tokens(0)[0]);
                next.push(probed.output.tokens(0)[0]);
            }
            for step in 1..25 {
                if step == 7 {
                    // The step ahead was of the token that was drawn.
                    next[0] = next[0] % 500 + 1;
                }
                let inputs: Vec<[u32; 1]> = next.iter().map(|token| [*token]).collect();
                let only_greedy = step == 12;
                let emit = |row: usize| {
                    if only_greedy {
                        GREEDY
                    } else {
                        drawn_or_greedy(row, step)
                    }
                };
                let mut batch: Vec<(SequenceId, &[u32], Emit)> = (0..together)
                    .map(|row| (rows[row], &inputs[row][..], emit(row)))
                    .collect();
                let guest = (step == 17).then(|| probed.session.create().unwrap());
                let prompt = tokens(30, 5);
                batch.extend(guest.map(|guest| (guest, &prompt[..], GREEDY)));
                probed.step(&batch);
                next = (0..together)
                    .map(|row| probed.output.tokens(row)[0])
                    .collect();
                if let Some(guest) = guest {
                    probed.session.release(guest).unwrap();
                }
                for row in 0..together {
                    let logits = reference.logits(plain[row], &inputs[row]);
                    check(&logits, emit(row), next[row]);
                }
            }
            for (probed, rows) in [(&mut probed, rows), (&mut reference, plain)] {
                for row in rows {
                    probed.session.release(row).unwrap();
                }
            }
        }
    }
}

/// Fails unless the token is the one that the logits give, or its neighbour at an edge.
fn check(logits: &[f32], emit: Emit, token: u32) {
    const EDGE: f32 = 1e-5;
    let draw = match emit {
        Emit::Drawn(draw) => draw,
        _ => Draw {
            temperature: 1.0,
            top_k: 1,
            top_p: 1.0,
            min_p: 0.0,
            unit: 0.0,
        },
    };
    let near = [-EDGE, 0.0, EDGE].map(|by| Draw {
        unit: (draw.unit + by).clamp(0.0, 1.0 - f32::EPSILON),
        ..draw
    });
    let expected = near.map(|draw| draw.choose(logits));
    assert!(
        expected.contains(&Some(token)),
        "{emit:?}: {token}, {expected:?}"
    );
}

/// The contract on the fast path: bit for bit beside other rows, and near if a prompt is cut. On a GPU
/// only, since it takes the interpreter a minute.
#[test]
fn fast_path_conforms() {
    for ([backend, _], recipes) in cases() {
        let source = source(recipes[0]);
        let open = |options: &SessionOptions| backend.open(source.clone(), options, &mut |_| {});
        let session = open(&SessionOptions::default()).unwrap();
        let promises = session.capabilities();
        assert!(promises.batch_invariant && !promises.chunk_invariant);
        if backend.name() != "cuda" {
            continue;
        }
        let subject = Subject {
            open: &open,
            tolerance: 0.1,
            media: &[],
            adapters: &[],
        };
        let failed: Vec<_> = run(&subject)
            .into_iter()
            .filter(|(_, outcome)| outcome.is_err())
            .collect();
        assert!(failed.is_empty(), "{}: {failed:#?}", backend.name());
    }
}
