//! Adapters folded into the result.

use std::path::Path;

use loquat_convert::{Conversion, ConvertError, MergedAdapter, Quant, Target, convert};
use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, Precision, SessionOptions, StepBatch, StepOutput};
use loquat_testkit::goldens::{self, Arrays};

/// The accepted difference from the unmerged logits.
const TOLERANCE: f32 = 1e-3;

fn merge(base: &Path, adapter: &Path, target: Target, out: &Path) -> Result<(), ConvertError> {
    let adapters = [MergedAdapter {
        path: adapter,
        scale: 1.0,
    }];
    let wanted = Conversion {
        source: base,
        adapters: &adapters,
        out,
        target,
        quant: Quant::parse(target, "f32", None)?,
        dtype: None,
        name: None,
        requantize: false,
        force: false,
        records: None,
    };
    convert(&wanted, &mut |_| true).map(|_| ())
}

fn logits(model: &Path, tokens: &[u32]) -> Vec<f32> {
    let source = goldens::source(model).unwrap();
    let options = SessionOptions {
        precision: Precision::Reference,
        ..SessionOptions::default()
    };
    let mut session = CpuBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap();
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let positions = tokens.len();
    batch.push(sequence, tokens, Emit::Logits { positions });
    session.step(&batch, &mut output).unwrap();
    let positions = 0..positions;
    positions
        .flat_map(|position| output.logits(0, position).iter().copied())
        .collect()
}

#[test]
fn merged_models_agree_with_peft() {
    let folder = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    for adapter in goldens::adapters().unwrap() {
        let name = adapter.file_name().unwrap().to_string_lossy().into_owned();
        let base = goldens::adapter_base(&adapter);
        let arrays = Arrays::open(&adapter).unwrap();
        let (tokens, expected) = (arrays.tokens("prompt_b"), arrays.floats("logits_b"));
        let mut targets = vec![(Target::Safetensors, "pt")];
        // A format that orders rows of queries and keys in another way, and one that stacks.
        if name.starts_with("llama__") {
            targets.extend([(Target::Gguf, "gguf"), (Target::Mlx, "mlx")]);
        }
        for (target, ending) in targets {
            let out = folder.path().join(format!("{name}.{ending}"));
            let merged = merge(&base, &adapter, target, &out);
            if name == "llama_tied__tied_embed" {
                assert!(
                    matches!(merged, Err(ConvertError::TiedAdapter { .. })),
                    "{merged:?}"
                );
                continue;
            }
            merged.unwrap_or_else(|error| panic!("{name} to {ending}: {error}"));
            let found = logits(&out, &tokens);
            let pairs = found.iter().zip(&expected);
            let difference = pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            if difference > TOLERANCE {
                faults.push(format!("{name} to {ending}: differs by {difference}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn other_base_model_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("poet");
    std::fs::create_dir(&adapter).unwrap();
    let golden = goldens::fixtures().join("goldens-lora/llama__qv");
    let base = goldens::adapter_base(&golden);
    let weights = "adapter_model.safetensors";
    std::fs::copy(golden.join(weights), adapter.join(weights)).unwrap();
    let config = std::fs::read_to_string(golden.join("adapter_config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["base_model_name_or_path"] = "Qwen/Qwen2.5-0.5B".into();
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    let adapters = [MergedAdapter {
        path: &adapter,
        scale: 1.0,
    }];
    for (model, expected) in [
        (Some("meta-llama/Llama-3.2-1B"), true),
        (Some("qwen2.5:0.5b"), false),
        (None, false),
    ] {
        let wanted = Conversion {
            source: &base,
            adapters: &adapters,
            out: &folder.path().join("merged"),
            target: Target::Safetensors,
            quant: Quant::parse(Target::Safetensors, "f32", None).unwrap(),
            dtype: None,
            name: model,
            requantize: false,
            force: true,
            records: None,
        };
        let report = convert(&wanted, &mut |_| true).unwrap();
        let noted = report
            .notes
            .iter()
            .any(|note| note.contains("Qwen/Qwen2.5-0.5B"));
        assert_eq!(noted, expected, "{model:?}: {:?}", report.notes);
    }
}

/// The model in GGUF orders rows of queries and keys in another way than the adapter's.
#[test]
fn peft_adapter_works_on_a_gguf_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llama__all", "llama__norms", "llama__dora"] {
        let adapter = goldens::fixtures().join("goldens-lora").join(name);
        let base = goldens::adapter_base(&adapter);
        let gguf = folder.path().join(format!("{name}.gguf"));
        let wanted = Conversion {
            source: &base,
            adapters: &[],
            out: &gguf,
            target: Target::Gguf,
            quant: Quant::parse(Target::Gguf, "f32", None).unwrap(),
            dtype: None,
            name: None,
            requantize: false,
            force: false,
            records: None,
        };
        convert(&wanted, &mut |_| true).unwrap();
        let merged = folder.path().join(format!("{name}-merged.gguf"));
        merge(&gguf, &adapter, Target::Gguf, &merged).unwrap();
        let arrays = Arrays::open(&adapter).unwrap();
        let (tokens, expected) = (arrays.tokens("prompt_b"), arrays.floats("logits_b"));
        let found = logits(&merged, &tokens);
        let pairs = found.iter().zip(&expected);
        let difference = pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(difference <= TOLERANCE, "{name}: differs by {difference}");
    }
}
