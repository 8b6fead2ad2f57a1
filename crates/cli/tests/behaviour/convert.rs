//! `loquat convert`, and running its output.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use loquat_testkit::goldens;
use loquat_weights::safetensors::safetensors_header;
use loquat_weights::{Checkpoint, TensorInfo};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{HANG_TIMEOUT, Outcome, command, ends, loquat};

#[test]
fn lossless_conversion_keeps_answers() {
    let folder = TempDir::new().unwrap();
    let source = goldens::family("llama").display().to_string();
    let ask = |model: &str| {
        let greedy = [
            "generate",
            model,
            "Hello there",
            "--temperature",
            "0",
            "--max-tokens",
            "6",
        ];
        loquat(greedy).quiet()
    };
    let first = ask(&source);
    // These types are exact.
    for (target, out) in [
        ("gguf", "model.gguf"),
        ("mlx", "mlx"),
        ("safetensors", "plain"),
    ] {
        let out = folder.path().join(out).display().to_string();
        let args = [
            "convert", &source, "--to", target, "--quant", "bf16", "-o", &out, "--json",
        ];
        let report: Value = serde_json::from_str(&loquat(args).quiet()).unwrap();
        assert_eq!(report["error"]["relative_rms"], 0.0, "{target}");
        assert!(
            report["bits_per_weight"].as_f64().unwrap() >= 16.0,
            "{target}"
        );
        assert_eq!(ask(&out), first, "{target}");
    }
}

/// A model, flags, the output, the exit code and words of the refusal.
type Case<'a> = (&'a str, &'a [&'a str], &'a str, i32, &'a [&'a str]);

#[test]
fn invalid_conversions_are_refused() {
    let folder = TempDir::new().unwrap();
    let source = goldens::family("llama").display().to_string();
    let unwritable = goldens::family("mamba2").display().to_string();
    let quantized = goldens::fixtures().join("goldens-mlx/llama__affine4_g32");
    let quantized = quantized.display().to_string();
    let out = folder.path().join("out").display().to_string();
    let there = folder.path().display().to_string();
    let table: &[Case] = &[
        (
            &source,
            &["--to", "mlx", "--quant", "q4_0"],
            &out,
            2,
            &["q4_0", "mxfp4", "q8"],
        ),
        (
            &source,
            &["--to", "gguf", "--quant", "q4"],
            &out,
            2,
            &["q4_k_m", "q8_0"],
        ),
        (&source, &["--to", "mlx"], &there, 2, &["--force"]),
        (&source, &["--to", "gguf"], &there, 2, &["Name a file"]),
        (
            &source,
            &["--to", "mlx", "--quant", "f32", "--dtype", "f16"],
            &out,
            2,
            &["--quant f32", "--dtype f16"],
        ),
        (
            &source,
            &["--to", "mlx", "--force"],
            &there,
            2,
            &["holds no model"],
        ),
        (
            &quantized,
            &["--to", "mlx"],
            &out,
            2,
            &["affine 4-bit g32", "--requantize"],
        ),
        (
            &unwritable,
            &["--to", "gguf"],
            &out,
            3,
            &["mamba2", "--to mlx", "qwen3"],
        ),
    ];
    for (model, flags, out, code, words) in table {
        let args = ["convert", model, "-o", out]
            .into_iter()
            .chain(flags.iter().copied());
        loquat(args).refused(*code, words);
    }
}

/// A model of zeros whose conversion takes minutes. The file has no blocks on the disk.
fn endless_model(folder: &Path) -> PathBuf {
    const VOCABULARY: usize = 1 << 24;
    let golden = goldens::family("llama");
    let model = folder.join("endless");
    fs::create_dir(&model).unwrap();
    let config = fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["vocab_size"] = VOCABULARY.into();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let enlarged = |info: TensorInfo| match info.name.as_str() {
        "model.embed_tokens.weight" | "lm_head.weight" => TensorInfo {
            shape: vec![VOCABULARY, info.shape[1]],
            ..info
        },
        _ => info,
    };
    let checkpoint = Checkpoint::open(&golden).unwrap();
    let infos = checkpoint.tensors().iter().map(|tensor| tensor.info());
    let infos: Vec<TensorInfo> = infos.map(enlarged).collect();
    let header = safetensors_header(&infos, "pt").unwrap();
    let data: usize = infos.iter().map(|info| info.bytes().unwrap()).sum();
    let mut file = File::create(model.join("model.safetensors")).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((header.len() + data) as u64).unwrap();
    model
}

/// A process that has begun to write.
struct Converting {
    child: Child,
    folder: TempDir,
}

impl Converting {
    fn start(model: &Path, cache: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = command(cache);
        let command = command.arg("convert").arg(model);
        let command = command.args(["--to", "mlx", "--quant", "q2", "-o"]);
        let child = command.arg(folder.path().join("out")).spawn().unwrap();
        let started = Self { child, folder };
        let deadline = Instant::now() + HANG_TIMEOUT;
        while started.left().is_empty() {
            assert!(Instant::now() < deadline, "it does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        started
    }

    /// What is in the folder of its output.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

impl Drop for Converting {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
#[test]
fn ended_conversion_leaves_nothing() {
    let (folder, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let model = endless_model(folder.path());
    for signal in ["TERM", "INT", "HUP"] {
        let mut converting = Converting::start(&model, cache.path());
        let id = converting.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(sent.unwrap().success());
        assert_eq!(ends(&mut converting.child), 130, "{signal}");
        assert_eq!(converting.left(), [""; 0], "{signal}");
    }
    let records = fs::read_dir(cache.path().join("conversions")).unwrap();
    assert_eq!(records.count(), 0);
}

/// The paths that `prune` lists.
fn prune(cache: &Path, flags: &[&str]) -> Vec<Value> {
    let mut command = command(cache);
    let pruned = command.args(["prune", "--json"]).args(flags).output();
    let report: Value = serde_json::from_str(&Outcome::from(pruned.unwrap()).quiet()).unwrap();
    let removed = report["removed"].as_array().unwrap().iter();
    removed.map(|removed| removed["path"].clone()).collect()
}

#[test]
fn prune_removes_what_a_killed_conversion_left() {
    let (folder, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let model = endless_model(folder.path());
    let live = Converting::start(&model, cache.path());
    let mut killed = Converting::start(&model, cache.path());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let left = killed.left();
    assert!(left[0].starts_with(".loquat-work-"), "{left:?}");
    let work = killed.folder.path().join(&left[0]);
    let expected = [Value::from(work.to_str().unwrap())];
    assert_eq!(prune(cache.path(), &["--dry-run"]), expected);
    assert_eq!(killed.left(), left);
    assert_eq!(prune(cache.path(), &[]), expected);
    assert_eq!(killed.left(), [""; 0]);
    assert_eq!(prune(cache.path(), &[]), [""; 0]);
    assert_eq!(live.left().len(), 1, "a conversion that runs is spared");
}

#[test]
fn prune_removes_what_a_killed_save_left() {
    let cache = TempDir::new().unwrap();
    // On a busy machine the model may be saved before the process is killed: try again.
    let (saving, work) = loop {
        let folder = TempDir::new().unwrap();
        let mut command = command(cache.path());
        let command = command.args(["bench", "--synthetic", "smollm2-135m:q8_0", "--save"]);
        let child = command.arg(folder.path().join("model.gguf")).spawn();
        let mut saving = Converting {
            child: child.unwrap(),
            folder,
        };
        while saving.left().is_empty() && saving.child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        saving.child.kill().unwrap();
        saving.child.wait().unwrap();
        let left = saving.left();
        if left[0].starts_with(".loquat-work-") {
            let work = saving.folder.path().join(&left[0]);
            break (saving, work);
        }
    };
    assert_eq!(prune(cache.path(), &[]), [work.to_str().unwrap()]);
    assert_eq!(saving.left(), [""; 0]);
}
