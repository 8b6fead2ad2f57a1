//! Logits are finite, of a trained model's magnitude, and depend on the prompt.

use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, ModelSource, SessionOptions, StepBatch, StepOutput};
use loquat_synthetic::{FORMATS, Format, Recipe, Shape};

use crate::shapes::every_family;

/// The logits after each of two prompts of one length.
fn logits(shape: &'static Shape, format: Format) -> [Vec<f32>; 2] {
    let recipe = Recipe { shape, format };
    let made = recipe.make(recipe.container(), 5).unwrap();
    let checkpoint = made.checkpoint().unwrap();
    let source = ModelSource {
        spec: Arc::new(checkpoint.spec.clone()),
        weights: Arc::new(checkpoint.bind().unwrap()),
        paths: Vec::new(),
    };
    let options = SessionOptions {
        context: Some(64),
        max_sequences: 2,
        threads: Some(1),
        ..SessionOptions::default()
    };
    let opened = CpuBackend::AUTO.open(source, &options, &mut |_| {});
    let mut session = opened.unwrap();
    let mut batch = StepBatch::default();
    for first in [1, 2] {
        let prompt: Vec<u32> = (0..24).map(|at| (first + 7 * at) % 300).collect();
        let sequence = session.create().unwrap();
        batch.push(sequence, &prompt, Emit::Logits { positions: 1 });
    }
    let mut output = StepOutput::default();
    session.step(&batch, &mut output).unwrap();
    [0, 1].map(|row| {
        assert_eq!(output.rows()[row].error, None);
        output.logits(row, 0).to_vec()
    })
}

fn product(one: &[f32], other: &[f32]) -> f32 {
    let sum: f32 = one.iter().zip(other).map(|(a, b)| a * b).sum();
    sum / one.len() as f32
}

#[test]
fn logits_are_bounded_and_depend_on_prompt() {
    for shape in every_family() {
        for (name, format) in FORMATS {
            let [one, other] = logits(shape, *format);
            let what = format!("{} {name}", shape.name);
            let sizes = [&one, &other].map(|logits| product(logits, logits).sqrt());
            // Also false for NaN.
            let is_bounded = sizes.iter().all(|size| (0.2..5.0).contains(size));
            assert!(is_bounded, "{what}: logits of {sizes:?}");
            let similarity = product(&one, &other) / (sizes[0] * sizes[1]);
            assert!(
                similarity < 0.9,
                "{what}: similarity of prompts is {similarity}"
            );
        }
    }
}
