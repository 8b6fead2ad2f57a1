//! Runs the judge through its command line and checks verdicts and reasons.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use loquat_testkit::{gguf, goldens};
use loquat_weights::{Blob, RawTensor, safetensors};
use serde_json::Value;
use tempfile::TempDir;

const FAMILY: &str = "llama";

/// A copy of a committed golden with a unique name, in its own folder.
struct GoldenCopy {
    parent: TempDir,
    name: &'static str,
}

impl GoldenCopy {
    fn new(name: &'static str) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let copy = Self { parent, name };
        std::fs::create_dir(copy.folder()).unwrap();
        for entry in std::fs::read_dir(goldens::family(FAMILY)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.folder().join(entry.file_name())).unwrap();
        }
        copy
    }

    fn folder(&self) -> PathBuf {
        self.parent.path().join(self.name)
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.folder().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    /// Flips one bit of a tensor.
    fn flip_bit(&self, tensor: &str, byte: usize, bit: u8) {
        let path = self.folder().join("model.safetensors");
        let mut tensors: Vec<RawTensor> = safetensors::open(&path).unwrap();
        let found = tensors.iter_mut().find(|found| found.name == tensor);
        let found = found.unwrap_or_else(|| panic!("no tensor {tensor}"));
        let mut bytes = found.data.to_vec();
        bytes[byte] ^= 1 << bit;
        found.data = Blob::from_vec(bytes);
        let file = safetensors::write_safetensors(&tensors).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, file).unwrap();
    }

    /// The only report of a run over this copy, and whether the run passed.
    fn judge(&self) -> (bool, Value) {
        only_report(&["--only", self.name, text(self.parent.path())])
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn goldens_command(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquat-goldens"));
    command.args(args).output().unwrap()
}

fn only_report(args: &[&str]) -> (bool, Value) {
    let output = goldens_command(&[args, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let reports: Vec<Value> = serde_json::from_slice(&output.stdout).expect(&errors);
    let [report] = reports.try_into().expect("one report");
    (output.status.success(), report)
}

#[test]
fn changed_weight_fails() {
    let copy = GoldenCopy::new("one_changed_weight");
    let (passed, report) = copy.judge();
    assert!(passed, "{report:#}");
    assert_eq!(report["verdict"], "equal");
    assert_eq!(report["chunks"], "identical");

    // The sign bit of a bf16 value that every logit depends on.
    copy.flip_bit("model.norm.weight", 1, 7);
    let (passed, report) = copy.judge();
    assert!(!passed);
    assert_eq!(report["verdict"], "failed");
    for case in ["prompt_a", "prompt_b", "greedy"] {
        assert!(report[case].as_f64() > Some(1e-3), "{report:#}");
    }
    assert_eq!(report["chunks"], "identical");
}

#[test]
fn contradicting_configs_name_the_field() {
    let copy = GoldenCopy::new("contradicting_configs");
    copy.edit(
        "config.hub_style.json",
        "\"rms_norm_eps\": ",
        "\"rms_norm_eps\": 1",
    );
    let (passed, report) = copy.judge();
    assert!(!passed);
    let why = report["why"].as_str().unwrap();
    assert!(
        why.contains("config.hub_style.json") && why.contains("eps"),
        "{why}"
    );
}

#[test]
fn unsupported_family_fails_by_name() {
    let copy = GoldenCopy::new("unknown_family");
    copy.edit(
        "config.json",
        "\"model_type\": \"llama\"",
        "\"model_type\": \"abacus\"",
    );
    let (passed, report) = copy.judge();
    assert!(!passed);
    assert_eq!(report["verdict"], "not_supported");
    assert_eq!(report["model_type"], "abacus");
}

#[test]
fn gguf_without_logits_is_only_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama_file.gguf");
    std::fs::write(file, gguf::from_golden(FAMILY)).unwrap();
    let copy = GoldenCopy::new("llama_file");
    let args = ["--only", "llama_file", text(folder.path())];

    let (passed, report) = only_report(&args);
    assert!(passed, "{report:#}");
    assert_eq!(report["verdict"], "loads_only");

    let logits = ["--logits", text(copy.parent.path())];
    let (passed, report) = only_report(&[&args[..], &logits].concat());
    assert!(passed, "{report:#}");
    assert_eq!(report["verdict"], "equal");
    assert_eq!(
        [
            &report["family"],
            &report["format"],
            &report["architecture"]
        ],
        [FAMILY, "GGUF", "llama"]
    );
}

#[test]
fn table_names_failure_and_reason() {
    let copy = GoldenCopy::new("damaged_golden");
    std::fs::remove_file(copy.folder().join("golden.safetensors")).unwrap();
    std::fs::write(copy.folder().join("golden.safetensors"), "no tensors").unwrap();
    let output = goldens_command(&["--only", copy.name, text(copy.parent.path())]);
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8_lossy(&output.stdout);
    let row = table.lines().find(|line| line.starts_with(copy.name));
    assert!(row.is_some_and(|row| row.ends_with("FAILED")), "{table}");
    assert!(
        table.contains("golden.safetensors is not a usable"),
        "{table}"
    );
    assert!(table.ends_with("1 judged on cpu: 1 FAILED\n"), "{table}");
}

#[test]
fn filter_without_match_fails() {
    let output = goldens_command(&["--committed", "--only", "no such checkpoint"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no such checkpoint"));
}
