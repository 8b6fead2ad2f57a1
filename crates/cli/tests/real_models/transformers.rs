//! Token ids, logprobs and greedy text against transformers.

use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_engine::{
    Completion, Engine, EngineOptions, GenerateRequest, Logprobs, SamplingParams, TokenInfo,
};
use loquat_session::{
    Backend, Emit, ModelSource, Precision, Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_store::{NoProgress, Store, StoreOptions};
use loquat_testkit::real::{Case, Kind, Reference, reference};
use loquat_text::{ChatInput, ChatTemplate, Special, Tokenizer};
use loquat_weights::Checkpoint;

struct Subject {
    reference: Reference,
    checkpoint: Checkpoint,
    source: ModelSource,
    tokenizer: Tokenizer,
}

impl Subject {
    fn load(model: &str, golden: &str) -> Self {
        let store = Store::open(StoreOptions::default()).unwrap();
        let located = store.locate(&model.into(), &mut NoProgress).unwrap();
        let checkpoint = Checkpoint::open(&located.path).unwrap();
        Self {
            reference: reference(golden),
            source: ModelSource {
                spec: Arc::new(checkpoint.spec.clone()),
                weights: Arc::new(checkpoint.bind().unwrap()),
                paths: checkpoint.paths.clone(),
            },
            tokenizer: Tokenizer::from_gguf(checkpoint.gguf_metadata().unwrap()).unwrap(),
            checkpoint,
        }
    }

    fn session(&self, precision: Precision) -> Box<dyn Session> {
        let options = SessionOptions {
            precision,
            kv_tokens: Some(2048),
            max_step_tokens: 1024,
            ..SessionOptions::default()
        };
        let session = CpuBackend::AUTO.open(self.source.clone(), &options, &mut |_| {});
        session.unwrap()
    }

    fn ids_are_exact(&self) {
        for case in &self.reference.cases {
            let special = match case.kind {
                Kind::Text => Special::PROMPT,
                Kind::Chat => {
                    assert_eq!(self.render(case), case.text);
                    Special::RENDERED
                }
            };
            let ids = self.tokenizer.encode(&case.text, special).unwrap();
            assert_eq!(ids, case.ids, "{:?}", case.source);
        }
    }

    fn render(&self, case: &Case) -> String {
        let template = ChatTemplate::from_gguf(self.checkpoint.gguf_metadata().unwrap()).unwrap();
        let input = ChatInput {
            messages: case.source.clone(),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        template.render(&input).unwrap()
    }

    fn logprobs(&self, precision: Precision) -> LogprobsComparison {
        let mut session = self.session(precision);
        let mut found = LogprobsComparison::default();
        for case in &self.reference.cases {
            let rows = logprobs(session.as_mut(), &case.ids);
            let chosen: Vec<f32> = (case.ids[1..].iter().zip(&rows))
                .map(|(id, row)| row[*id as usize])
                .collect();
            if chosen.len() >= LONG {
                let sum: f64 = chosen.iter().map(|p| f64::from(*p)).sum();
                let mean = sum / chosen.len() as f64;
                found.long_means.push((mean, case.mean_logprob));
            }
            let last = &rows[rows.len() - 1];
            let top = case.top_ids.iter().map(|id| last[*id as usize]);
            let ours = chosen.iter().copied().chain(top);
            let expected = case.token_logprobs.iter().chain(&case.top_logprobs);
            let errors = ours
                .zip(expected)
                .map(|(ours, expected)| (ours - expected).abs());
            found.errors.push(errors.fold(0.0, f32::max));
        }
        found
    }

    /// Greedy completions of all cases at once through the engine.
    fn greedy(&self, precision: Precision) -> Vec<Completion> {
        let engine = Engine::start(
            self.session(precision),
            Some(self.tokenizer.clone()),
            EngineOptions::default(),
        );
        let engine = engine.unwrap();
        let generations: Vec<_> = (self.reference.cases.iter())
            .map(|case| {
                let request = GenerateRequest {
                    prompt: case.ids.clone(),
                    max_tokens: case.greedy_ids.len(),
                    sampling: SamplingParams::greedy(),
                    stop_ids: self.tokenizer.eos_ids().to_vec(),
                    // Ranks first and second: their distance is the margin.
                    logprobs: (precision == Precision::Reference).then_some(Logprobs::for_model(2)),
                    ..GenerateRequest::default()
                };
                engine.submit(request).unwrap()
            })
            .collect();
        generations
            .into_iter()
            .map(|generation| generation.collect_blocking().unwrap())
            .collect()
    }
}

/// The most that rounding may change the mean logprob of a long text.
const MEAN_LIMIT: f64 = 0.005;
/// Tokens of a text long enough for its mean to measure quality.
const LONG: usize = 256;

/// Logprobs of all cases against the reference.
#[derive(Default)]
struct LogprobsComparison {
    /// Each case's largest difference from the reference.
    errors: Vec<f32>,
    /// Mean of each long text, and the reference's.
    long_means: Vec<(f64, f64)>,
}

impl LogprobsComparison {
    fn worst(&self) -> f32 {
        self.errors.iter().copied().fold(0.0, f32::max)
    }

    /// The largest difference of a long text's mean from transformers'.
    fn mean_error(&self) -> f64 {
        let differences = self.long_means.iter().map(|(ours, theirs)| ours - theirs);
        differences.map(f64::abs).fold(0.0, f64::max)
    }

    /// The largest difference from another session's means.
    fn mean_difference(&self, other: &Self) -> f64 {
        let means = self.long_means.iter().zip(&other.long_means);
        let differences = means.map(|((ours, _), (theirs, _))| ours - theirs);
        differences.map(f64::abs).fold(0.0, f64::max)
    }
}

/// The lead of the most likely token over the second.
fn margin(token: &TokenInfo) -> f32 {
    token.top[0].1 - token.top[1].1
}

/// Log-probabilities after every token.
fn logprobs(session: &mut dyn Session, ids: &[u32]) -> Vec<Vec<f32>> {
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let positions = ids.len();
    batch.push(sequence, ids, Emit::Logits { positions });
    session.step(&batch, &mut output).unwrap();
    assert!(output.rows()[0].error.is_none());
    session.release(sequence).unwrap();
    (0..positions)
        .map(|position| {
            let logits = output.logits(0, position);
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
            let total = max + sum.ln() as f32;
            logits.iter().map(|logit| logit - total).collect()
        })
        .collect()
}

fn judge(model: &str, golden: &str) {
    let subject = Subject::load(model, golden);
    subject.ids_are_exact();
    let cases = &subject.reference.cases;

    let fp32 = subject.logprobs(Precision::Reference);
    let (worst, mean) = (fp32.worst(), fp32.mean_error());
    println!(
        "{model} reference: logprobs off by {worst:.5} at most, long text's mean by {mean:.5}"
    );
    assert!(worst <= 2e-3, "logprobs are off by {worst}");
    assert!(!fp32.long_means.is_empty(), "no long text to judge by");
    let exact = subject.greedy(Precision::Reference);
    for (case, ours) in cases.iter().zip(&exact) {
        assert_eq!(ours.ids(), case.greedy_ids, "{:?}", case.source);
        // Ours omits the end token, theirs includes it.
        assert!(case.greedy_text.starts_with(&ours.text), "{:?}", ours.text);
    }

    let rounded = subject.logprobs(Precision::Fast);
    let fast = subject.greedy(Precision::Fast);
    let mut equal = 0;
    for (((case, ours), exact), error) in cases.iter().zip(&fast).zip(&exact).zip(&rounded.errors) {
        let parted = ours
            .ids()
            .iter()
            .zip(&case.greedy_ids)
            .position(|(a, b)| a != b);
        equal += usize::from(parted.is_none());
        if let Some(place) = parted {
            // Two logits, each off by as much as this case's prompt was, can swap.
            let margin = margin(&exact.tokens[place]);
            let source = &case.source;
            assert!(
                margin <= 2.0 * error,
                "{source}: parts at a margin of {margin}, error {error}"
            );
        }
    }
    let mean = rounded.mean_difference(&fp32);
    println!(
        "{model} fast: logprobs off by {:.5} at most, long text's mean by {:.5} and by {mean:.5} \
         from fp32, greedy texts equal: {equal} of {}",
        rounded.worst(),
        rounded.mean_error(),
        cases.len()
    );
    assert!(
        mean <= MEAN_LIMIT,
        "rounding moves the long text's mean by {mean}"
    );
}

#[test]
fn smollm2_matches_transformers() {
    judge("smollm2:135m", "smollm2-135m");
}

#[test]
fn gemma3_matches_transformers() {
    judge("gemma3:270m", "gemma3-270m");
}
