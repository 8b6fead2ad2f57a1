//! Hidden states are the head's input.

use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::conformance::max_difference;
use loquat_session::{
    Backend, Emit, ModelSource, Precision, SessionOptions, StepBatch, StepOutput,
};
use loquat_spec::Role;
use loquat_testkit::goldens::{self, Arrays};

/// Sums are computed in another order.
const TOLERANCE: f32 = 2e-4;

/// Every position's hidden state and logits.
fn compute(source: &ModelSource, tokens: &[u32]) -> Vec<(Vec<f32>, Vec<f32>)> {
    let options = SessionOptions {
        precision: Precision::Reference,
        ..SessionOptions::default()
    };
    let mut session = CpuBackend::AUTO
        .open(source.clone(), &options, &mut |_| {})
        .unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let positions = tokens.len();
    batch.push(
        session.create().unwrap(),
        tokens,
        Emit::Hidden { positions },
    );
    batch.push(
        session.create().unwrap(),
        tokens,
        Emit::Logits { positions },
    );
    session.step(&batch, &mut output).unwrap();
    let both = |position| {
        let hidden = output.hidden(0, position).to_vec();
        (hidden, output.logits(1, position).to_vec())
    };
    (0..positions).map(both).collect()
}

/// A second implementation of the head.
fn head(source: &ModelSource, hidden: &[f32]) -> Vec<f32> {
    let (spec, weights) = (&source.spec, &source.weights);
    let role = if spec.head.tied {
        Role::Embedding
    } else {
        Role::Head
    };
    let matrix = weights.matrix(role).expect("a head");
    let bias = weights.vector(Role::HeadBias);
    let logit = |token: usize| {
        let mut row = vec![0.0; hidden.len()];
        matrix.decode_row(token, &mut row).unwrap();
        let product: f32 = row.iter().zip(hidden).map(|(w, h)| w * h).sum();
        let logit = (product + bias.map_or(0.0, |bias| bias[token])) * spec.head.scale;
        spec.head
            .softcap
            .map_or(logit, |cap| cap * (logit / cap).tanh())
    };
    (0..spec.vocab_size).map(logit).collect()
}

fn prompt(folder: &Path) -> Vec<u32> {
    Arrays::open(folder).unwrap().tokens("prompt_a")
}

#[test]
fn head_maps_hidden_states_to_logits() {
    for folder in goldens::all().unwrap() {
        let source = goldens::source(&folder).unwrap();
        for (position, (hidden, logits)) in compute(&source, &prompt(&folder)).iter().enumerate() {
            let difference = max_difference(&head(&source, hidden), logits);
            let name = folder.display();
            assert!(difference < TOLERANCE, "{name} at {position}: {difference}");
        }
    }
}

/// Made with transformers 5.22.2 in float32, from the goldens' `prompt_a`:
/// `model.model(prompt).last_hidden_state[0, -1, :8]`.
const EXPECTED: [(&str, [f32; 8]); 2] = [
    (
        "llama",
        [
            -2.420544, 1.986457, 0.423745, 1.089483, 0.722186, 0.180569, -0.148848, -0.791169,
        ],
    ),
    (
        "gemma2",
        [
            1.767369, -1.421871, 0.998784, 0.923695, -0.918569, -0.524459, -1.792365, 0.149126,
        ],
    ),
];

#[test]
fn hidden_states_match_transformers() {
    for (family, expected) in EXPECTED {
        let folder = goldens::family(family);
        let source = goldens::source(&folder).unwrap();
        let states = compute(&source, &prompt(&folder));
        let (hidden, _) = states.last().expect("a position");
        let difference = max_difference(&hidden[..expected.len()], &expected);
        assert!(difference < TOLERANCE, "{family}: {difference}");
    }
}
