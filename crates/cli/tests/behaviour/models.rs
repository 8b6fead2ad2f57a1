//! Commands about models, against a local hub.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use loquat_hubkit::{FakeFile, FakeRepo, HubServer, noise};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Outcome, command, golden};

/// A hub with a tiny model and a repository of quants, and an empty machine.
struct Fixture {
    hub: HubServer,
    machine: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let tiny = fs::read_dir(golden("llama")).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let content = fs::read(entry.path()).unwrap();
            if name.ends_with(".safetensors") {
                FakeFile::large(&name, content)
            } else {
                FakeFile::small(&name, content)
            }
        });
        let quant = |name: &str, seed| {
            let content = [b"GGUF".to_vec(), noise(4000, seed)].concat();
            FakeFile::large(name, content)
        };
        let repos = vec![
            FakeRepo::new("tiny/llama", tiny.collect()),
            FakeRepo::new(
                "tiny/quants",
                vec![quant("q-Q8_0.gguf", 1), quant("q-Q2_K.gguf", 2)],
            ),
        ];
        Self {
            hub: HubServer::start(repos).unwrap(),
            machine: TempDir::new().unwrap(),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&self.machine.path().join("cache"));
        command
            .args(args)
            .env("HF_ENDPOINT", self.hub.url())
            .env("HF_HUB_CACHE", self.hub_cache());
        command
    }

    fn run(&self, args: &[&str]) -> Outcome {
        self.command(args).output().unwrap().into()
    }

    fn hub_cache(&self) -> PathBuf {
        self.machine.path().join("hub")
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let outcome = self.run(args);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        serde_json::from_str(&outcome.text()).unwrap()
    }

    #[track_caller]
    fn names(&self) -> Vec<String> {
        let models = self.json(&["models", "--json"]);
        let models = models.as_array().unwrap().iter();
        let name = |model: &Value| model["name"].as_str().unwrap().to_owned();
        models.map(name).collect()
    }
}

#[test]
fn model_can_be_pulled_run_and_removed() {
    let fixture = Fixture::new();
    let pulled = fixture.json(&["pull", "tiny/llama", "--json"]);
    assert_eq!(pulled["name"], "tiny/llama");
    assert!(Path::new(pulled["path"].as_str().unwrap()).is_dir());

    let listed = fixture.json(&["models", "--json"]);
    let model = &listed[0];
    assert_eq!(model["name"], "tiny/llama");
    assert_eq!(model["kind"], "safetensors");
    assert_eq!(model["source"], "hub tiny/llama");
    assert_eq!(
        (&model["shared"], &model["last_used"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(model["verified"], "hub");

    let before = fixture.hub.requests().len();
    for flags in [&[][..], &["--offline"], &["--safetensors"]] {
        let args = ["run", "tiny/llama", "hi", "--max-tokens", "2"];
        let outcome = fixture.run(&[&args, flags].concat());
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    }
    assert_eq!(fixture.hub.requests().len(), before);
    let table = fixture.run(&["models"]).quiet();
    assert!(
        table.contains("tiny/llama") && !table.contains("never"),
        "{table}"
    );
    let shown = fixture.run(&["show", "tiny/llama"]).quiet();
    assert!(
        shown.contains("safetensors") && shown.contains("path"),
        "{shown}"
    );

    let removed = fixture.run(&["rm", "tiny/llama"]).quiet();
    assert!(removed.starts_with("removed tiny/llama, "), "{removed}");
    assert!(fixture.names().is_empty());
    fixture
        .run(&["rm", "tiny/llama"])
        .refused(3, &["tiny/llama", "loquat models"]);
    assert!(fixture.run(&["models"]).stderr.contains("loquat pull"));
}

#[test]
fn ambiguous_reference_lists_candidates() {
    let fixture = Fixture::new();
    for args in [
        &["pull", "tiny/quants"][..],
        &["run", "tiny/quants", "hi"],
        &["inspect", "tiny/quants"],
    ] {
        let words = ["tiny/quants:Q8_0", "tiny/quants:Q2_K", "4.0 kB"];
        fixture.run(args).refused(3, &words);
    }
    fixture.run(&["pull", "tiny/quants:q2_k"]);
    fixture.run(&["pull", "tiny/quants:Q8_0"]);
    assert_eq!(fixture.names(), ["tiny/quants:Q2_K", "tiny/quants:Q8_0"]);
    fixture
        .run(&["rm", "tiny/quants"])
        .refused(3, &["tiny/quants:Q8_0", "tiny/quants:Q2_K"]);
    let removed = fixture.json(&["rm", "tiny/quants:Q8_0", "tiny/quants:Q2_K", "--json"]);
    assert_eq!(removed[1]["freed_bytes"], 4004);
}

#[test]
fn damaged_model_fails_verification() {
    let fixture = Fixture::new();
    for quant in ["Q8_0", "Q2_K"] {
        fixture.run(&["pull", &format!("tiny/quants:{quant}")]);
    }
    let valid = fixture.run(&["verify"]);
    assert_eq!(
        (valid.code, valid.text().as_str()),
        (0, "tiny/quants:Q2_K: valid\ntiny/quants:Q8_0: valid\n")
    );
    let shown = fixture.json(&["show", "tiny/quants:Q8_0", "--json"]);
    let path = shown["here"][0]["path"].as_str().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[100] ^= 1;
    fs::write(path, bytes).unwrap();

    let outcome = fixture.run(&["verify"]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("tiny/quants:Q8_0") && outcome.stderr.contains("loquat pull"));
    let report: Value = serde_json::from_str(
        &fixture
            .run(&["verify", "tiny/quants:Q8_0", "--json"])
            .text(),
    )
    .unwrap();
    assert_eq!(
        (&report[0]["valid"], report.as_array().unwrap().len()),
        (&false.into(), 1)
    );
    assert!(
        report[0]["damaged"][0]
            .as_str()
            .unwrap()
            .contains("q-Q8_0.gguf")
    );
    assert_eq!(fixture.run(&["verify", "tiny/quants:Q2_K"]).code, 0);

    let mended = fixture.run(&["pull", "tiny/quants:Q8_0"]);
    assert!(mended.stderr.contains("damaged"), "{}", mended.stderr);
    assert_eq!(fixture.run(&["verify"]).code, 0);
}

#[test]
fn shared_models_are_listed_and_kept() {
    let fixture = Fixture::new();
    fixture.run(&["pull", "tiny/llama"]);
    // With another cache, the model belongs to another tool.
    fs::remove_dir_all(fixture.machine.path().join("cache")).unwrap();
    assert_eq!(fixture.json(&["models", "--json"])[0]["shared"], true);
    let table = fixture.run(&["models"]).quiet();
    assert!(table.contains("(shared)"), "{table}");
    fixture
        .run(&["rm", "tiny/llama"])
        .refused(3, &["another tool", "snapshots"]);
    // If one model must stay, none is removed.
    fixture.run(&["pull", "tiny/quants:Q8_0"]);
    fixture
        .run(&["rm", "tiny/quants:Q8_0", "tiny/llama"])
        .refused(3, &["another tool"]);
    assert_eq!(fixture.names(), ["tiny/llama", "tiny/quants:Q8_0"]);
}

#[test]
fn dry_run_lists_what_prune_removes() {
    let fixture = Fixture::new();
    fixture.run(&["pull", "tiny/quants:Q8_0"]);
    let blobs = fixture.hub_cache().join("models--tiny--quants/blobs");
    let half = blobs.join(format!("{}.loquat.incomplete", "a".repeat(64)));
    fs::write(&half, vec![0; 100]).unwrap();
    let listed = fixture.run(&["prune", "--dry-run"]).quiet();
    assert!(
        listed.contains("would remove") && listed.contains("100 B"),
        "{listed}"
    );
    assert!(half.exists());
    let pruned = fixture.json(&["prune", "--json"]);
    assert_eq!(pruned["freed_bytes"], 100);
    assert!(!half.exists());
    assert_eq!(fixture.run(&["prune"]).quiet(), "freed 0 B\n");
    assert_eq!(fixture.names(), ["tiny/quants:Q8_0"]);
    let kept = fixture.json(&["prune", "--older-than", "1h", "--json"]);
    assert_eq!(kept["removed"], Value::Array(Vec::new()));
    fixture
        .run(&["prune", "--older-than", "soon"])
        .refused(2, &["30d"]);
}

#[test]
fn offline_and_unknown_names_give_advice() {
    let fixture = Fixture::new();
    for (args, code, words) in [
        (
            &["pull", "tiny/llama", "--offline"][..],
            3,
            &["offline"][..],
        ),
        (
            &["run", "smollm2", "hi", "--offline"],
            3,
            &["smollm2:135m", "offline"],
        ),
        (&["pull", "tiny/lama"], 3, &["tiny/lama"]),
        (&["pull", "qwen3:5b"], 3, &["did you mean", "qwen3:4b"]),
        (&["run", "smolm2"], 2, &["did you mean", "smollm2"]),
        (&["show", "lama3.2:1b"], 3, &["did you mean", "llama3.2:1b"]),
        (&["show", "tiny/llama"], 3, &["not on this machine"]),
        (&["verify", "tiny/llama"], 3, &["not on this machine"]),
    ] {
        fixture.run(args).refused(code, words);
    }
}

#[test]
fn catalog_needs_no_network() {
    let fixture = Fixture::new();
    let found = fixture.run(&["search", "qwen3", "4b"]).quiet();
    let first = found.lines().nth(1).unwrap();
    assert!(
        first.starts_with("qwen3:4b ") && first.contains("about"),
        "{first}"
    );
    let all = fixture.json(&["search", "--json"]);
    assert!(all.as_array().unwrap().len() >= 25);
    assert!(
        fixture
            .run(&["search", "zzzz"])
            .stderr
            .contains("No matches")
    );
    let shown = fixture.run(&["show", "gpt-oss:20b"]).quiet();
    for part in [
        "gpt_oss",
        "21B, 3.6B active",
        "Apache-2.0",
        "about",
        "loquat pull",
    ] {
        assert!(shown.contains(part), "{part} not in: {shown}");
    }
    assert!(fixture.hub.requests().is_empty());
}

#[test]
fn file_flags_select_exact_files() {
    let fixture = Fixture::new();
    let llama = golden("llama");
    let tokens = ["--max-tokens", "2"];
    // It is safetensors, not MLX.
    fixture
        .run(&["run", "--mlx-file", &llama, "hi"])
        .refused(3, &["is safetensors", "not mlx"]);
    fixture
        .run(&[&["run", &llama, "hi", "--gguf"][..], &tokens].concat())
        .refused(3, &["is safetensors", "not gguf"]);
    fixture
        .run(&["inspect", "--gguf-file", "missing.gguf"])
        .refused(3, &["nothing at ./missing.gguf"]);
    for args in [
        &["run", "--gguf", "--mlx", "a", "b"][..],
        &["run", "--gguf", "--gguf-file", "a.gguf", "b"],
        &["inspect", "smollm2", "--gguf-file", "a.gguf"],
        &["bench", "--synthetic", "llama-1b", "--gguf"],
    ] {
        let outcome = fixture.run(args);
        assert_eq!(outcome.code, 2, "{args:?}: {}", outcome.stderr);
    }
    fixture
        .run(&["run", "--gguf-file", "a.gguf", "smollm2", "hi"])
        .refused(2, &["--gguf-file"]);
}
