//! Invalid input, existing output and interruption.

use std::path::{Path, PathBuf};

use loquat_convert::{Conversion, ConvertError, Quant, Step, Target, convert};
use loquat_testkit::goldens;
use loquat_weights::{Blob, Checkpoint, Dtype, RawTensor, safetensors};

use crate::support::to;

fn conversion<'a>(source: &'a Path, out: &'a Path) -> Conversion<'a> {
    Conversion {
        source,
        adapters: &[],
        out,
        target: Target::Mlx,
        quant: Quant::default_of(Target::Mlx),
        dtype: None,
        name: None,
        requantize: false,
        force: false,
        records: None,
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// A copy of a golden with another first value in one tensor.
fn with_value(folder: &Path, tensor: &str, value: f32) -> PathBuf {
    let golden = goldens::family("llama");
    let copy = folder.join("source");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(golden.join("config.json"), copy.join("config.json")).unwrap();
    let tensors: Vec<RawTensor> = Checkpoint::open(&golden)
        .unwrap()
        .tensors()
        .iter()
        .map(|read| {
            let mut bytes = read.data.to_vec();
            if read.name == tensor {
                assert_eq!(read.dtype, Dtype::BF16);
                bytes[..2].copy_from_slice(&value.to_bits().to_le_bytes()[2..]);
            }
            RawTensor {
                data: Blob::from_vec(bytes),
                ..read.clone()
            }
        })
        .collect();
    safetensors::save_safetensors(&copy.join("model.safetensors"), &tensors).unwrap();
    copy
}

#[test]
fn unrepresentable_value_names_the_tensor() {
    let tensor = "model.layers.1.mlp.up_proj.weight";
    let table = [
        (f32::NAN, Target::Mlx, "q4", "NaN"),
        (f32::INFINITY, Target::Mlx, "mxfp4", "inf"),
        (f32::NEG_INFINITY, Target::Gguf, "q8_0", "-inf"),
        (1e30, Target::Gguf, "q4_0", "too large"),
        (1e30, Target::Safetensors, "f16", "too large"),
    ];
    for (value, target, quant, said) in table {
        let folder = tempfile::tempdir().unwrap();
        let source = with_value(folder.path(), tensor, value);
        let error = to(target, quant, &source).err().unwrap().to_string();
        let short = error.contains("up_proj") || error.contains("ffn_up");
        assert!(short && error.contains(said), "{value} {quant}: {error}");
    }
}

#[test]
fn plain_types_keep_non_finite_values() {
    let folder = tempfile::tempdir().unwrap();
    let source = with_value(folder.path(), "model.norm.weight", f32::INFINITY);
    let converted = to(Target::Safetensors, "f32", &source).unwrap();
    let error = converted.report.whole();
    assert!(error.values > 0 && error.relative() == 0.0);
}

#[test]
fn requantizing_needs_the_option() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let source = goldens::fixtures().join("goldens-mlx/llama__affine4_g32");
    let error = convert(&conversion(&source, &out), &mut |_| true).unwrap_err();
    assert!(matches!(&error, ConvertError::Quantized { found } if found == "affine 4-bit g32"));
    assert_eq!(names(folder.path()), [""; 0]);
    let wanted = Conversion {
        requantize: true,
        ..conversion(&source, &out)
    };
    let report = convert(&wanted, &mut |_| true).unwrap();
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("affine 4-bit g32"))
    );
}

#[test]
fn force_replaces_only_models() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (goldens::family("llama"), folder.path().join("out"));
    let go = |force, out: &Path| {
        let wanted = Conversion {
            force,
            ..conversion(&source, out)
        };
        convert(&wanted, &mut |_| true)
    };
    go(false, &out).unwrap();
    assert!(matches!(go(false, &out), Err(ConvertError::Exists { .. })));
    let mark = out.join("added_tokens.json");
    std::fs::write(&mark, "{}").unwrap();
    go(true, &out).unwrap();
    assert!(!mark.exists() && out.join("model.safetensors").is_file());
    let home = folder.path().join("home");
    std::fs::create_dir_all(home.join("letters")).unwrap();
    std::fs::write(home.join("config.json"), "{}").unwrap();
    assert!(matches!(
        go(true, &home),
        Err(ConvertError::NotReplaceable { .. })
    ));
    assert!(home.join("letters").is_dir());
    assert!(matches!(
        go(true, &source),
        Err(ConvertError::OntoItself { .. })
    ));
    assert_eq!(names(folder.path()).len(), 2);
}

#[test]
fn source_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let made = to(Target::Gguf, "f32", &goldens::family("llama")).unwrap();
    std::fs::copy(&made.path, &file).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    for source in [folder.path(), &file] {
        let wanted = Conversion {
            target: Target::Gguf,
            quant: Quant::default_of(Target::Gguf),
            force: true,
            ..conversion(source, &file)
        };
        let result = convert(&wanted, &mut |_| true);
        assert!(matches!(result, Err(ConvertError::OntoItself { .. })));
        assert!(std::fs::read(&file).unwrap() == bytes);
    }
}

#[test]
fn files_replace_files_and_folders_replace_folders() {
    let folder = tempfile::tempdir().unwrap();
    let source = goldens::family("llama");
    let (file, model) = (folder.path().join("model"), folder.path().join("folder"));
    let go = |target, out: &Path| {
        let wanted = Conversion {
            target,
            quant: Quant::default_of(target),
            force: true,
            ..conversion(&source, out)
        };
        convert(&wanted, &mut |_| panic!("it began"))
    };
    std::fs::write(&file, "GGUF").unwrap();
    std::fs::create_dir(&model).unwrap();
    let slash = folder.path().join("new/sub/");
    let table = [
        (Target::Mlx, &file),
        (Target::Gguf, &model),
        (Target::Gguf, &slash),
    ];
    for (target, out) in table {
        let result = go(target, out);
        assert!(matches!(result, Err(ConvertError::WrongShape { .. })));
    }
    assert_eq!(names(folder.path()).len(), 2);
    // Detected by contents, not by name.
    let wanted = Conversion {
        target: Target::Gguf,
        quant: Quant::default_of(Target::Gguf),
        force: true,
        ..conversion(&source, &file)
    };
    convert(&wanted, &mut |_| true).unwrap();
}

#[test]
fn contradicting_types_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (goldens::family("llama"), folder.path().join("a/out"));
    let wanted = Conversion {
        quant: Quant::Plain(Some(Dtype::F32)),
        dtype: Some(Dtype::F16),
        ..conversion(&source, &out)
    };
    let error = convert(&wanted, &mut |_| true).unwrap_err().to_string();
    assert!(
        error.contains("--quant f32") && error.contains("--dtype f16"),
        "{error}"
    );
    assert_eq!(names(folder.path()), [""; 0]);
}

#[cfg(unix)]
#[test]
fn source_truncated_meanwhile_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = with_value(folder.path(), "model.norm.weight", 1.0);
    let out = folder.path().join("out");
    let error = convert(&conversion(&source, &out), &mut |step| {
        if let Step::Begin(_) = step {
            let weights = source.join("model.safetensors");
            let file = std::fs::File::options().write(true).open(weights);
            file.unwrap().set_len(9000).unwrap();
        }
        true
    })
    .unwrap_err();
    assert!(error.to_string().contains("and now has 9000"), "{error}");
    assert_eq!(names(folder.path()), ["source"]);
}

#[test]
fn interrupted_conversion_leaves_nothing() {
    for stop_after in [0, 1, 5] {
        let folder = tempfile::tempdir().unwrap();
        let (source, out) = (goldens::family("llama"), folder.path().join("out"));
        let mut tensors = 0;
        let result = convert(&conversion(&source, &out), &mut |step| {
            tensors += usize::from(matches!(step, Step::Tensor(_)));
            tensors <= stop_after
        });
        assert!(
            matches!(result, Err(ConvertError::Interrupted)),
            "{stop_after}"
        );
        assert_eq!(names(folder.path()), [""; 0], "{stop_after}");
    }
}

#[test]
fn bytes_are_reproducible() {
    let source = goldens::family("qwen2");
    for (target, quant) in [(Target::Gguf, "q4_k_m"), (Target::Gguf, "q8_0")] {
        let once = std::fs::read(to(target, quant, &source).unwrap().path).unwrap();
        let again = std::fs::read(to(target, quant, &source).unwrap().path).unwrap();
        assert!(once == again, "{quant}");
    }
}
