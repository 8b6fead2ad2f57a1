//! Opening a model does not keep its file resident next to the packed weights.

use std::path::Path;
use std::process::Command;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SessionOptions, StepBatch, StepOutput};
use loquat_synthetic::{Container, Recipe};
use loquat_testkit::goldens;

/// Passes the file's path to the process that opens it.
const MODEL: &str = "LOQUAT_TEST_MODEL";
const STEP: usize = 256;

/// This process's peak resident memory in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kibibytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() << 10
}

/// Opens the model in another process, since making the file takes memory too.
#[test]
fn packed_file_does_not_stay_resident() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // A fifth of it is one matrix: keeping that twice would exceed the bound.
    let recipe: Recipe = "smollm2-135m:q8_0".parse().unwrap();
    let made = recipe.make(Container::for_path(&path), 0).unwrap();
    let work = tempfile::tempdir_in(folder.path()).unwrap();
    made.save(&path, work.path()).unwrap();
    let test = std::env::current_exe().unwrap();
    let child = Command::new(test)
        .args([
            "--ignored",
            "--exact",
            "resident_memory::open_model_from_environment",
        ])
        .env(MODEL, &path)
        .output();
    let child = child.unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && output.contains("1 passed"),
        "{output}"
    );
}

#[test]
#[ignore = "run in another process by the test above"]
fn open_model_from_environment() {
    let path = std::env::var_os(MODEL).unwrap();
    let source = goldens::source(Path::new(&path)).unwrap();
    let options = SessionOptions {
        context: Some(STEP),
        max_sequences: 1,
        max_step_tokens: STEP,
        threads: Some(2),
        ..SessionOptions::default()
    };
    let plan = CpuBackend::AUTO.plan(&source, &options).unwrap();
    let backend = CpuBackend::AUTO.open(source, &options, &mut |_| {});
    let mut session = backend.unwrap();
    let sequence = session.create().unwrap();
    // Rows from all over the embedding.
    let tokens: Vec<u32> = (0..STEP as u32).map(|i| i * 191).collect();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(sequence, &tokens, Emit::Greedy { positions: 1 });
    session.step(&batch, &mut output).unwrap();
    assert!(output.rows()[0].error.is_none());

    let (peak, planned) = (peak_bytes(), plan.resident_bytes);
    assert!(planned > 140 << 20, "the model is too small to tell");
    assert!(
        peak as f64 <= 1.15 * planned as f64,
        "{peak} bytes resident, planned {planned}"
    );
}
