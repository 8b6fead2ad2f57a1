//! The CPU backend against logits that others computed, on its reference path.

use loquat_cpu::CpuBackend;
use loquat_session::conformance::{Golden, Subject, golden};
use loquat_session::{Backend, ModelSource, Precision, SessionOptions};
use loquat_testkit::goldens::{self, Arrays};
use loquat_weights::Checkpoint;

fn check(source: &ModelSource, cases: &[(Vec<u32>, Vec<f32>)], tolerance: f32) -> f32 {
    let open = |options: &SessionOptions| {
        let options = SessionOptions {
            precision: Precision::Reference,
            ..options.clone()
        };
        CpuBackend::AUTO.open(source.clone(), &options, &mut |_| {})
    };
    let subject = Subject {
        open: &open,
        tolerance: 0.0,
    };
    let differences = cases.iter().map(|(tokens, logits)| {
        let case = Golden {
            tokens,
            logits,
            tolerance,
        };
        golden(&subject, &case).unwrap_or_else(|error| panic!("{:?}: {error}", source.paths))
    });
    differences.fold(0.0, f32::max)
}

/// A copy of a golden folder whose config is the older style.
fn hub_style(family: &str) -> tempfile::TempDir {
    let (from, to) = (goldens::family(family), tempfile::tempdir().unwrap());
    std::fs::copy(
        from.join("config.hub_style.json"),
        to.path().join("config.json"),
    )
    .unwrap();
    std::fs::copy(
        from.join("model.safetensors"),
        to.path().join("model.safetensors"),
    )
    .unwrap();
    to
}

#[test]
fn every_family_matches_transformers_in_both_config_styles() {
    for family in goldens::FAMILIES {
        let folder = goldens::family(family);
        let arrays = Arrays::open(&folder).unwrap();
        let prompt_a = arrays.tokens("prompt_a");
        let mut cases = vec![
            (prompt_a.clone(), arrays.floats("logits_a")),
            (arrays.tokens("prompt_b"), arrays.floats("logits_b")),
        ];
        // Greedy logits follow the prompt and each token chosen so far.
        let (ids, logits) = (arrays.tokens("greedy_ids"), arrays.floats("greedy_logits"));
        let vocab = logits.len() / ids.len();
        let mut tokens = prompt_a.clone();
        tokens.extend(&ids[..ids.len() - 1]);
        let mut expected = cases[0].1[..(prompt_a.len() - 1) * vocab].to_vec();
        expected.extend(logits);
        cases.push((tokens, expected));

        let style_5 = goldens::source(&folder).unwrap();
        let copy = hub_style(family);
        let older = goldens::source(copy.path()).unwrap();
        assert_eq!(style_5.spec, older.spec, "{family}");
        let worst = check(&style_5, &cases, 1e-4).max(check(&older, &cases, 1e-4));
        println!("{family}: {worst:e}");
    }
}

#[test]
fn mlx_quantized_checkpoints_match_mlx() {
    for folder in goldens::mlx().unwrap() {
        let arrays = Arrays::open(&folder).unwrap();
        let cases = [
            (arrays.tokens("prompt_a"), arrays.floats("logits_a_f32")),
            (arrays.tokens("prompt_b"), arrays.floats("logits_b_f32")),
        ];
        let worst = check(&goldens::source(&folder).unwrap(), &cases, 1e-3);
        println!(
            "{}: {worst:e}",
            folder.file_name().unwrap().to_string_lossy()
        );
    }
}

#[test]
fn an_opened_checkpoint_says_what_it_is() {
    let checkpoint = Checkpoint::open(&goldens::family("smollm3")).unwrap();
    let ropes: Vec<bool> = checkpoint
        .spec
        .mixers()
        .map(|(_, mixer)| mixer.rope().is_some())
        .collect();
    assert_eq!(
        (checkpoint.spec.family, ropes),
        ("smollm3", vec![true, false])
    );
}
