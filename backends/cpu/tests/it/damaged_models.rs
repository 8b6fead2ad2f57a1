//! A damaged model is refused or steps; it never panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SessionOptions, StepBatch, StepOutput};
use loquat_synthetic::SplitMix64;
use loquat_testkit::{gguf, goldens};

/// Whether the model loads and steps.
fn load_and_step(path: &Path) -> bool {
    let options = SessionOptions {
        kv_tokens: Some(64),
        threads: Some(1),
        ..SessionOptions::default()
    };
    let Ok(source) = goldens::source(path) else {
        return false;
    };
    let Ok(mut session) = CpuBackend::AUTO.open(source, &options, &mut |_| {}) else {
        return false;
    };
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let tokens: Vec<u32> = (0..9).collect();
    batch.push(sequence, &tokens, Emit::Greedy { positions: 1 });
    session.step(&batch, &mut output).unwrap();
    true
}

/// Truncates `file` or flips bits of it, half of the time in its first `header` bytes.
fn damage(file: &[u8], header: usize, random: &mut SplitMix64) -> Vec<u8> {
    let mut damaged = file.to_vec();
    if random.below(4) == 0 {
        damaged.truncate(random.below(file.len()));
        return damaged;
    }
    for _ in 0..=random.below(4) {
        let limit = if random.below(2) == 0 {
            header
        } else {
            file.len()
        };
        let byte = random.below(limit.min(file.len()));
        damaged[byte] ^= 1 << random.below(8);
    }
    damaged
}

/// Loads the model at `path` with a thousand different damages to `file`.
fn assert_no_panic(path: &Path, file: &Path, header: usize, seed: u64) {
    let original = std::fs::read(file).unwrap();
    assert!(load_and_step(path), "the undamaged model works");
    let mut random = SplitMix64::new(seed);
    let (mut loaded, mut refused) = (0, 0);
    for round in 0..1000 {
        std::fs::write(file, damage(&original, header, &mut random)).unwrap();
        match catch_unwind(AssertUnwindSafe(|| load_and_step(path))) {
            Ok(true) => loaded += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("{}: round {round} of seed {seed} panicked", file.display()),
        }
    }
    println!("{}: {loaded} loaded, {refused} refused", file.display());
    assert!(refused > 100, "most damage is detected");
}

#[test]
fn damaged_gguf_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    for (family, seed) in [("llama", 1), ("gemma3_text", 2)] {
        let path = folder.path().join(format!("{family}.gguf"));
        std::fs::write(&path, gguf::from_golden(family)).unwrap();
        assert_no_panic(&path, &path, 4096, seed);
    }
}

#[test]
fn damaged_safetensors_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        let golden = goldens::family("qwen3").join(file);
        std::fs::copy(golden, folder.path().join(file)).unwrap();
    }
    assert_no_panic(
        folder.path(),
        &folder.path().join("model.safetensors"),
        3000,
        3,
    );
    let golden = goldens::family("qwen3").join("model.safetensors");
    std::fs::copy(golden, folder.path().join("model.safetensors")).unwrap();
    assert_no_panic(folder.path(), &folder.path().join("config.json"), 900, 4);
}

/// The ranges of the numbers in a JSON text.
fn number_ranges(text: &str) -> Vec<std::ops::Range<usize>> {
    let is_number = |letter: char| letter.is_ascii_digit() || "+-.e".contains(letter);
    let mut found = Vec::new();
    let (mut start, mut quoted) = (None, false);
    for (at, letter) in text.char_indices() {
        quoted ^= letter == '"';
        match start {
            None if !quoted && (letter.is_ascii_digit() || letter == '-') => start = Some(at),
            Some(from) if !is_number(letter) => {
                found.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Many numbers do not affect weight shapes: experts per token, windows, scales, RoPE bases.
#[test]
fn changed_config_numbers_never_panic() {
    const OTHERS: [&str; 9] = [
        "0",
        "1",
        "3",
        "7",
        "1000",
        "0.5",
        "1e9",
        "-1e-30",
        "4294967295",
    ];
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    let (mut loaded, mut refused) = (0, 0);
    for golden in goldens::all().unwrap() {
        let weights = "model.safetensors";
        std::fs::copy(golden.join(weights), folder.path().join(weights)).unwrap();
        let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
        std::fs::write(&config, &text).unwrap();
        assert!(load_and_step(folder.path()), "{}", golden.display());
        for range in number_ranges(&text) {
            for other in OTHERS {
                let mut changed = text.clone();
                changed.replace_range(range.clone(), other);
                std::fs::write(&config, &changed).unwrap();
                match catch_unwind(AssertUnwindSafe(|| load_and_step(folder.path()))) {
                    Ok(true) => loaded += 1,
                    Ok(false) => refused += 1,
                    Err(_) => panic!(
                        "{}: {other} for {:?}",
                        golden.display(),
                        &text[range.start.saturating_sub(40)..range.end]
                    ),
                }
            }
        }
    }
    println!("{loaded} loaded, {refused} refused");
    assert!(loaded > 100 && refused > 100, "{loaded} {refused}");
}
