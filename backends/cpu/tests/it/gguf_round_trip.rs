//! Golden checkpoints rewritten as GGUF files are the same models.

use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_session::conformance::max_difference;
use loquat_session::{
    Backend, Emit, ModelSource, Precision, SessionOptions, StepBatch, StepOutput,
};
use loquat_spec::{Attention, Inner, LayerRole, Mixer, ModelSpec, Role, RopePairs, RopeScaling};
use loquat_testkit::gguf::{self, Matrices, from_golden_as};
use loquat_testkit::goldens::{self, Arrays};
use loquat_weights::{Checkpoint, Format, Weights};

/// Opens `family` as a folder that holds one GGUF file.
fn open(family: &str, matrices: Matrices) -> ModelSource {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, from_golden_as(family, matrices)).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.format, Format::Gguf);
    assert_eq!(checkpoint.paths, [file]);
    ModelSource {
        weights: Arc::new(checkpoint.bind().unwrap()),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec),
    }
}

fn logits(source: &ModelSource, precision: Precision, tokens: &[u32]) -> Vec<f32> {
    let options = SessionOptions {
        precision,
        ..SessionOptions::default()
    };
    let mut session = CpuBackend::AUTO
        .open(source.clone(), &options, &mut |_| {})
        .unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let emit = Emit::Logits {
        positions: tokens.len(),
    };
    batch.push(session.create().unwrap(), tokens, emit);
    session.step(&batch, &mut output).unwrap();
    assert!(output.rows()[0].error.is_none());
    let positions = 0..output.logit_positions(0);
    positions
        .flat_map(|position| output.logits(0, position).to_vec())
        .collect()
}

/// The norm of the difference divided by the norm of the expected values.
fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    let mut difference = found.iter().zip(expected).map(|(a, b)| a - b);
    length(&mut difference) / length(&mut expected.iter().copied())
}

/// Every row's values by role, without the divisors that replace a scaling in the config.
fn values(weights: &Weights) -> Vec<(Role, Vec<Vec<u32>>)> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    let matrices = weights.matrices().map(|(role, matrix)| {
        let rows = (0..matrix.rows()).map(|row| {
            let mut out = vec![0.0; matrix.cols()];
            matrix.decode_row(row, &mut out).unwrap();
            bits(&out)
        });
        (role, rows.collect())
    });
    let vectors = weights
        .vectors()
        .filter(|(role, _)| *role != Role::RopeFactors)
        .map(|(role, values)| (role, values.iter().map(|v| vec![v.to_bits()]).collect()));
    matrices.chain(vectors).collect()
}

/// The golden's values in the file's order.
fn in_gguf_order(golden: &ModelSource, family: &str) -> Vec<(Role, Vec<Vec<u32>>)> {
    let mut all = values(&golden.weights);
    let attention = attentions(&mut (*golden.spec).clone())[0].clone();
    for (role, rows) in &mut all {
        let heads = match role {
            Role::Layer(_, LayerRole::Query | LayerRole::QueryBias) => attention.heads,
            Role::Layer(_, LayerRole::Key | LayerRole::KeyBias) => attention.kv_heads,
            _ => continue,
        };
        if gguf::is_interleaved(family) {
            *rows = gguf::interleaved(rows, heads);
        }
    }
    all
}

fn attentions(spec: &mut ModelSpec) -> Vec<&mut Attention> {
    let blocks = spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks);
    let branches = blocks.flat_map(|block| &mut block.branches);
    branches
        .filter_map(|branch| match &mut branch.inner {
            Inner::Mixer(Mixer::Attention(attention)) => Some(attention),
            _ => None,
        })
        .collect()
}

/// The golden's spec as GGUF expresses it.
fn as_gguf_spec(golden: &ModelSpec) -> ModelSpec {
    let mut spec = golden.clone();
    let pairs = if gguf::is_interleaved(spec.family) {
        RopePairs::Interleaved
    } else {
        RopePairs::Halves
    };
    for rope in attentions(&mut spec).into_iter().flat_map(|a| &mut a.rope) {
        rope.pairs = pairs;
        if matches!(rope.scaling, RopeScaling::Llama3 { .. }) {
            rope.scaling = RopeScaling::Tensor;
        }
    }
    spec
}

#[test]
fn written_models_are_read_back() {
    for family in gguf::FAMILIES {
        let folder = goldens::family(family);
        let golden = goldens::source(&folder).unwrap();
        let source = open(family, Matrices::Golden);
        assert_eq!(*source.spec, as_gguf_spec(&golden.spec), "{family}");
        assert!(
            values(&source.weights) == in_gguf_order(&golden, family),
            "{family}: bound values differ"
        );
        let arrays = Arrays::open(&folder).unwrap();
        for prompt in ["a", "b"] {
            let tokens = arrays.tokens(&format!("prompt_{prompt}"));
            let expected = arrays.floats(&format!("logits_{prompt}"));
            let found = logits(&source, Precision::Reference, &tokens);
            assert_eq!(found.len(), expected.len());
            let difference = max_difference(&found, &expected);
            assert!(difference <= 1e-4, "{family}: differs by {difference}");
        }
    }
}

/// Without the divisors the same prompt gives other logits.
#[test]
fn rope_divisors_are_used() {
    let source = open("llama", Matrices::Golden);
    assert!(source.weights.vector(Role::RopeFactors).is_some());
    let mut unscaled = (*source.spec).clone();
    for attention in attentions(&mut unscaled) {
        attention.rope.as_mut().unwrap().scaling = RopeScaling::None;
    }
    let tokens = Arrays::open(&goldens::family("llama"))
        .unwrap()
        .tokens("prompt_a");
    let scaled = logits(&source, Precision::Reference, &tokens);
    let spec = Arc::new(unscaled);
    let without = logits(
        &ModelSource { spec, ..source },
        Precision::Reference,
        &tokens,
    );
    assert!(max_difference(&scaled, &without) > 1e-3);
}

/// Integer kernels round activations to eight bits in groups of 32. An independent simulation of
/// this on the model has an error of 2.1 %.
const FAST_Q8_0_ERROR: f32 = 0.03;
/// With float kernels only KV is rounded, to half precision.
const FAST_F32_ERROR: f32 = 0.001;

#[test]
fn q8_0_computes_with_stored_values() {
    let (q8_0, as_f32) = (
        open("qwen2", Matrices::Q8_0),
        open("qwen2", Matrices::Q8_0Values),
    );
    assert_eq!(q8_0.weights.matrix(Role::Head).unwrap().format(), "Q8_0");
    assert_eq!(as_f32.weights.matrix(Role::Head).unwrap().format(), "F32");
    let tokens = Arrays::open(&goldens::family("qwen2"))
        .unwrap()
        .tokens("prompt_a");
    let reference = logits(&q8_0, Precision::Reference, &tokens);
    let expected = logits(&as_f32, Precision::Reference, &tokens);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&reference), bits(&expected));

    let error = |source| relative_error(&logits(source, Precision::Fast, &tokens), &reference);
    for (source, max) in [(&q8_0, FAST_Q8_0_ERROR), (&as_f32, FAST_F32_ERROR)] {
        let found = error(source);
        assert!(found > 0.0, "fast and reference use the same path");
        assert!(
            found <= max,
            "the fast path is off by {found}, more than {max}"
        );
    }
}
