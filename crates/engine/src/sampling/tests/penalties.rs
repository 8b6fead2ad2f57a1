//! Penalties and their window.

use super::*;

/// Logits after the penalties.
fn penalised(params: &SamplingParams, prompt: &[u32], output: &[u32], logits: &[f32]) -> Vec<f32> {
    let mut sampler = Sampler::new(params.clone(), 0, prompt, &[]);
    output.iter().for_each(|&id| sampler.observe(id));
    let (mut row, mut scratch) = (logits.to_vec(), SamplerScratch::default());
    let mut pool = CandidatePool::new(&mut row, &mut scratch);
    if let Some(seen) = &sampler.token_counts {
        seen.penalise(&mut pool);
    }
    row
}

#[test]
fn penalties_match_documentation() {
    type Case = (fn(&mut SamplingParams), [f32; 5]);
    let cases: [Case; 12] = [
        (|_| (), [2.0, -2.0, 2.0, -2.0, 2.0]),
        (|p| p.repetition_penalty = 2.0, [1.0, -4.0, 1.0, -4.0, 2.0]),
        (|p| p.presence_penalty = 0.5, [2.0, -2.0, 1.5, -2.5, 2.0]),
        (|p| p.frequency_penalty = 0.5, [2.0, -2.0, 1.0, -2.5, 2.0]),
        (
            |p| {
                (p.repetition_penalty, p.presence_penalty) = (2.0, 1.0);
                p.frequency_penalty = -0.5;
            },
            [1.0, -4.0, 1.0, -4.5, 2.0],
        ),
        // The window counts from the end of prompt and output together: 0 1 1 | 2 2 3.
        (
            |p| (p.repetition_penalty, p.penalty_last_n) = (2.0, 0),
            [2.0, -2.0, 2.0, -2.0, 2.0],
        ),
        (
            |p| (p.repetition_penalty, p.penalty_last_n) = (2.0, 1),
            [2.0, -2.0, 2.0, -4.0, 2.0],
        ),
        (
            |p| (p.repetition_penalty, p.penalty_last_n) = (2.0, 3),
            [2.0, -2.0, 1.0, -4.0, 2.0],
        ),
        (
            |p| (p.repetition_penalty, p.penalty_last_n) = (2.0, 5),
            [2.0, -4.0, 1.0, -4.0, 2.0],
        ),
        (
            |p| (p.repetition_penalty, p.penalty_last_n) = (2.0, 6),
            [1.0, -4.0, 1.0, -4.0, 2.0],
        ),
        (
            |p| (p.frequency_penalty, p.penalty_last_n) = (0.5, 2),
            [2.0, -2.0, 1.5, -2.5, 2.0],
        ),
        (
            |p| (p.frequency_penalty, p.penalty_last_n) = (0.5, 100),
            [2.0, -2.0, 1.0, -2.5, 2.0],
        ),
    ];
    for (change, expected) in cases {
        let params = params(change);
        let found = penalised(
            &params,
            &[0, 1, 1],
            &[2, 2, 3],
            &[2.0, -2.0, 2.0, -2.0, 2.0],
        );
        assert_eq!(found, expected, "{params:?}");
    }
}

#[test]
fn token_leaves_window_twice() {
    let params = params(|p| {
        (p.repetition_penalty, p.presence_penalty) = (2.0, 1.0);
        p.penalty_last_n = 2;
    });
    let cases: [(&[u32], f32); 4] = [(&[], 2.0), (&[0], 1.0), (&[0, 1], 1.0), (&[0, 1, 1], 4.0)];
    for (output, expected) in cases {
        let found = penalised(&params, &[0, 0], output, &[4.0, 0.0]);
        assert_eq!(found[0], expected, "{output:?}");
    }
}
