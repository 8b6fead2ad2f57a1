//! More threads than cores, and than a small matrix has tiles, give the same bits.

use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, ModelSource, SessionOptions, StepBatch, StepOutput};
use loquat_synthetic::Recipe;
use loquat_testkit::goldens;

/// Enough that threads share the tokens of a tile.
const PROMPT: usize = 150;

fn synthetic(recipe: &str) -> ModelSource {
    let recipe: Recipe = recipe.parse().unwrap();
    let made = recipe.make(recipe.container(), 1).unwrap();
    let checkpoint = made.checkpoint().unwrap();
    ModelSource {
        weights: Arc::new(checkpoint.bind().unwrap()),
        spec: Arc::new(checkpoint.spec),
        paths: Vec::new(),
    }
}

/// The bits of the logits after a prompt and after one more token, and of its tokens chosen
/// greedily.
fn bits(source: &ModelSource, threads: usize) -> Vec<u32> {
    let prompt = PROMPT.min(source.spec.max_context - 1);
    let options = SessionOptions {
        context: Some(prompt + 1),
        max_sequences: 2,
        max_step_tokens: 2 * prompt,
        threads: Some(threads),
        ..SessionOptions::default()
    };
    let backend = CpuBackend::AUTO.open(source.clone(), &options, &mut |_| {});
    let mut session = backend.unwrap();
    let vocabulary = source.spec.vocab_size as u32;
    let tokens: Vec<u32> = (0..prompt as u32).map(|i| i * 31 % vocabulary).collect();
    let sequences = [session.create().unwrap(), session.create().unwrap()];
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut all = Vec::new();
    for tokens in [tokens.as_slice(), &[1]] {
        let positions = tokens.len();
        batch.clear();
        batch.push(sequences[0], tokens, Emit::Logits { positions });
        batch.push(sequences[1], tokens, Emit::Greedy { positions });
        session.step(&batch, &mut output).unwrap();
        for position in 0..positions {
            let logits = output.logits(0, position).iter();
            all.extend(logits.map(|logit| logit.to_bits()));
        }
        all.extend(output.tokens(1));
    }
    all
}

#[test]
fn threads_beyond_cores_give_equal_bits() {
    let mut sources = Vec::new();
    for folder in goldens::all().unwrap() {
        let source = goldens::source(&folder).unwrap();
        sources.push((folder.display().to_string(), source));
    }
    for recipe in ["llama-tiny:q4_0", "llama-tiny:q6_k", "llama-tiny:bf16"] {
        sources.push((recipe.to_owned(), synthetic(recipe)));
    }
    for (name, source) in sources {
        let expected = bits(&source, 1);
        for threads in [3, 40] {
            assert!(bits(&source, threads) == expected, "{name} {threads}");
        }
    }
}
