//! Adapters of files, against logits of peft; and steps that mix them.

use loquat_mlx::MlxBackend;
use loquat_session::{AppliedAdapter, Emit, Precision, SequenceId, StepBatch, StepOutput};
use loquat_testkit::adapters::{self, AdaptedSession};
use loquat_testkit::goldens;

/// The accepted difference from peft, whose sums of float32 have another order.
const TOLERANCE: f32 = 1e-3;

struct Opened(AdaptedSession);

impl Opened {
    fn create(&mut self, adapters: &[(usize, f32)]) -> SequenceId {
        let applied = adapters.iter().map(|(index, scale)| AppliedAdapter {
            id: self.0.ids[*index],
            scale: *scale,
        });
        let applied: Vec<AppliedAdapter> = applied.collect();
        self.0.session.create_adapted(&applied).unwrap()
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
            self.0.session.step(&batch, &mut output).unwrap();
            for (row, ((_, tokens), answer)) in rows.iter_mut().zip(&mut answers).enumerate() {
                *tokens = output.tokens(row).to_vec();
                answer.extend_from_slice(tokens);
            }
        }
        for (sequence, _) in rows {
            self.0.session.release(sequence).unwrap();
        }
        answers
    }
}

#[test]
fn goldens_agree_with_peft() {
    let faults = adapters::differences_from_peft(&MlxBackend::AUTO, TOLERANCE);
    assert!(faults.is_empty(), "{faults:#?}");
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
        let mut opened = Opened(AdaptedSession::open(
            &MlxBackend::AUTO,
            source.clone(),
            &adapters::pair(&source.spec),
            Precision::Reference,
        ));
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
