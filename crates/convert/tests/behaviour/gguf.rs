//! GGUF compared with the output of llama.cpp's converter, and round trips.

use loquat_convert::{ConvertError, Target};
use loquat_testkit::goldens;
use loquat_weights::{Checkpoint, decode};

use crate::support::{tensors, to};

/// Goldens that can be written as GGUF. Others are refused by name.
const WRITTEN: &[&str] = &[
    "ernie4_5",
    "gemma",
    "gemma2",
    "granite",
    "granitemoe",
    "llama_tied",
    "mistral",
    "mixtral",
    "olmo2",
    "olmoe",
    "phi3",
    "phi3_longrope",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "starcoder2",
];

#[test]
fn tensors_match_llama_cpp_converter() {
    for file in goldens::gguf().unwrap() {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let result = to(Target::Gguf, "bf16", &goldens::family(&name));
        let expected = WRITTEN.contains(&name.as_str());
        let converted = match result {
            Ok(converted) if expected => converted,
            Ok(_) => panic!("{name} was written, and is not in the list"),
            Err(error) if expected => panic!("{name}: {error}"),
            Err(ConvertError::Family { .. }) => continue,
            Err(error) => panic!("{name}: not refused by name: {error}"),
        };
        let (ours, theirs) = (tensors(&converted.path), tensors(&file));
        let names =
            |of: &std::collections::BTreeMap<String, _>| of.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs), "{name}");
        for (tensor, our) in &ours {
            let their = &theirs[tensor];
            assert_eq!(our.shape, their.shape, "{name} {tensor}");
            let floats = |tensor: &loquat_weights::RawTensor| {
                let mut values = vec![0.0; tensor.shape.iter().product()];
                decode::decode_row(tensor.dtype, &tensor.data, &mut values).unwrap();
                values
            };
            let (our_values, their_values) = (floats(our), floats(their));
            if tensor.starts_with("rope_f") {
                // Computed on both sides, in another order.
                let close = our_values
                    .iter()
                    .zip(&their_values)
                    .all(|(a, b)| (a - b).abs() <= 1e-5 * b);
                assert!(close, "{name} {tensor}: {our_values:?} {their_values:?}");
            } else {
                assert_eq!(our.dtype, their.dtype, "{name} {tensor}");
                assert_eq!(our_values, their_values, "{name} {tensor}");
            }
        }
    }
}

#[test]
fn metadata_matches_llama_cpp_converter() {
    for name in WRITTEN {
        let file = goldens::fixtures().join(format!("goldens-gguf/{name}.gguf"));
        let converted = to(Target::Gguf, "bf16", &goldens::family(name)).unwrap();
        let open = |path| Checkpoint::open(path).unwrap();
        let (ours, theirs) = (open(&converted.path), open(&file));
        assert_eq!(ours.spec, theirs.spec, "{name}");
        let (ours, theirs) = (
            ours.gguf_metadata().unwrap(),
            theirs.gguf_metadata().unwrap(),
        );
        let architecture = theirs.str("general.architecture").unwrap();
        for (key, value) in ours.iter().filter(|(key, _)| key.starts_with(architecture)) {
            // A size that no layer has, where all have experts.
            let unused = key.ends_with(".feed_forward_length") && name.contains("moe");
            if let Some(their) = theirs.get(key).filter(|_| !unused) {
                assert_eq!(value, their, "{name} {key}");
            }
        }
    }
}

/// Goldens that can be converted back from GGUF.
const BACK: &[&str] = &[
    "gemma",
    "gemma2",
    "gemma3_text",
    "granite",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "phi3_longrope",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
];

#[test]
fn round_trip_keeps_the_model() {
    for name in BACK {
        let golden = goldens::family(name);
        let there = to(Target::Gguf, "f32", &golden).unwrap_or_else(|e| panic!("{name}: {e}"));
        let back = to(Target::Safetensors, "bf16", &there.path);
        let back = back.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (was, is) = (tensors(&golden), tensors(&back.path));
        assert_eq!(
            was.keys().collect::<Vec<_>>(),
            is.keys().collect::<Vec<_>>(),
            "{name}"
        );
        for (tensor, was) in &was {
            assert_eq!(*was.data, *is[tensor].data, "{name} {tensor}");
        }
    }
}

/// llama.cpp ignores the window in these families.
#[test]
fn windows_that_llama_cpp_ignores_are_refused() {
    for name in ["mistral_swa", "phi3_swa"] {
        let Err(error) = to(Target::Gguf, "bf16", &goldens::family(name)) else {
            panic!("{name} was written");
        };
        assert!(error.to_string().contains("its window of"), "{error}");
    }
}

/// Rows without a token have placeholder names in GGUF, which are not tokens.
#[test]
fn rows_without_token_get_no_token() {
    for name in ["gemma3_text", "qwen2"] {
        let there = to(Target::Gguf, "bf16", &goldens::family(name)).unwrap();
        let opened = Checkpoint::open(&there.path).unwrap();
        let tokens = opened.gguf_metadata().unwrap();
        let tokens = tokens.strings("tokenizer.ggml.tokens").unwrap();
        assert!(tokens.contains(&"[PAD285]".to_owned()), "{name}");
        let back = to(Target::Safetensors, "bf16", &there.path).unwrap();
        let text = std::fs::read_to_string(back.path.join("tokenizer.json")).unwrap();
        assert!(!text.contains("[PAD285]"), "{name}");
    }
}

#[test]
fn tower_beside_a_model_is_left_out() {
    let folder = goldens::fixtures().join("goldens-vision-gguf/gemma3");
    assert!(Checkpoint::open(&folder).unwrap().spec.vision.is_some());
    let text = tensors(&folder.join("gemma3.gguf"));
    let copy = to(Target::Gguf, "f32", &folder).unwrap();
    assert!(text.keys().eq(tensors(&copy.path).keys()));
    let back = to(Target::Safetensors, "bf16", &folder).unwrap();
    assert!(Checkpoint::open(&back.path).unwrap().spec.vision.is_none());
}
