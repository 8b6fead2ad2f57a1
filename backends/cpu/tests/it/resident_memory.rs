//! Memory that the system counts: a file does not stay resident next to its packed weights, and
//! neither do keys and values behind windows.

use std::path::Path;
use std::process::Command;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SessionOptions, StepBatch, StepOutput};
use loquat_synthetic::{Container, Recipe};
use loquat_testkit::goldens;

/// Passes the file's path to the process that opens it.
const MODEL: &str = "LOQUAT_TEST_MODEL";
const STEP: usize = 256;

/// A field of this process's status in bytes.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field));
    let kibibytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() << 10
}

/// Makes a model, and runs a test over it in another process, since making it takes memory too.
fn run_alone(recipe: &str, test_name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe: Recipe = recipe.parse().unwrap();
    let made = recipe.make(Container::for_path(&path), 0).unwrap();
    let work = tempfile::tempdir_in(folder.path()).unwrap();
    made.save(&path, work.path()).unwrap();
    let test = std::env::current_exe().unwrap();
    let child = Command::new(test)
        .args(["--ignored", "--exact", test_name])
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
fn packed_file_does_not_stay_resident() {
    // A fifth of it is one matrix: keeping that twice would exceed the bound.
    run_alone(
        "smollm2-135m:q8_0",
        "resident_memory::open_model_from_environment",
    );
}

#[test]
fn memory_behind_windows_is_freed() {
    run_alone(
        "gemma3-270m:q8_0",
        "resident_memory::fill_windows_from_environment",
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

    let (peak, planned) = (status_bytes("VmHWM:"), plan.resident_bytes);
    assert!(planned > 140 << 20, "the model is too small to tell");
    assert!(
        peak as f64 <= 1.15 * planned as f64,
        "{peak} bytes resident, planned {planned}"
    );
}

#[test]
#[ignore = "run in another process by the test above"]
fn fill_windows_from_environment() {
    const CONTEXT: usize = 4096;
    /// As long as the windows.
    const SHORT: usize = 512;
    let path = std::env::var_os(MODEL).unwrap();
    let source = goldens::source(Path::new(&path)).unwrap();
    let options = SessionOptions {
        context: Some(CONTEXT),
        kv_tokens: Some(CONTEXT),
        max_sequences: 1,
        max_step_tokens: STEP,
        threads: Some(2),
        ..SessionOptions::default()
    };
    let plan = CpuBackend::AUTO.plan(&source, &options).unwrap();
    let backend = CpuBackend::AUTO.open(source, &options, &mut |_| {});
    let mut session = backend.unwrap();
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut resident = Vec::new();
    for step in 0..CONTEXT / STEP {
        let tokens: Vec<u32> = (0..STEP).map(|i| ((step * STEP + i) * 61) as u32).collect();
        batch.clear();
        batch.push(sequence, &tokens, Emit::Greedy { positions: 1 });
        session.step(&batch, &mut output).unwrap();
        assert_eq!(output.rows()[0].error, None);
        if (step + 1) * STEP == SHORT {
            resident.push(status_bytes("VmRSS:"));
        }
    }
    resident.push(status_bytes("VmRSS:"));

    let grown = resident[1].saturating_sub(resident[0]);
    let everything = (CONTEXT - SHORT) as u64 * plan.memory.kv_bytes_per_token;
    assert!(everything > 60 << 20, "the model is too small to tell");
    assert!(
        grown < everything / 3,
        "{grown} bytes more are resident; without freeing, {everything}"
    );
    let planned = plan.memory.kv_capacity as u64 * plan.memory.kv_bytes_per_token;
    assert!(planned < everything / 2, "{planned} bytes are planned");
}
