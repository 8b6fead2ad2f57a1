//! A model's files may change while it is open.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SessionError, SessionOptions, StepBatch, StepOutput};
use loquat_testkit::goldens;

/// A model that is read from the mapped file, and one that is packed completely.
const PLAIN: &str = "goldens/llama";
const PACKED: &str = "goldens-mlx/gemma__affine4_g32";

fn copy_model(model: &str, to: &Path) -> PathBuf {
    for file in fs::read_dir(goldens::fixtures().join(model)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to.join("model.safetensors")
}

/// Steps before and after the file is truncated to `len` bytes; returns the second result.
fn step_after_truncation(model: &str, len: u64) -> Result<u32, SessionError> {
    let folder = tempfile::tempdir().unwrap();
    let weights = copy_model(model, folder.path());
    let options = SessionOptions {
        kv_tokens: Some(64),
        threads: Some(2),
        ..SessionOptions::default()
    };
    let source = goldens::source(folder.path()).unwrap();
    let mut session = CpuBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap();
    let mut step = || {
        let sequence = session.create().unwrap();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        batch.push(sequence, &[1, 2, 3], Emit::Greedy { positions: 1 });
        session.step(&batch, &mut output)?;
        Ok(output.tokens(0)[0])
    };
    let before = step().unwrap();
    let file = File::options().write(true).open(&weights).unwrap();
    file.set_len(len).unwrap();
    let after = step()?;
    assert_eq!(after, before);
    Ok(after)
}

#[test]
fn truncated_weights_fail_the_step() {
    for len in [0, 50_000] {
        let error = step_after_truncation(PLAIN, len).unwrap_err();
        assert!(error.is_fatal(), "{error}");
        let expected = format!("and now has {len}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn packed_model_outlives_its_file() {
    step_after_truncation(PACKED, 0).unwrap();
}
