//! The commands about models, against a hub on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use loquat_hubkit::{FakeFile, FakeRepo, HubServer, noise};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Outcome, command, golden};

/// A hub with one real tiny model and a repository of quants, and a machine with nothing on it.
struct Town {
    hub: HubServer,
    machine: TempDir,
}

impl Town {
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
fn a_model_is_pulled_run_listed_and_removed() {
    let town = Town::new();
    let pulled = town.json(&["pull", "tiny/llama", "--json"]);
    assert_eq!(pulled["name"], "tiny/llama");
    assert!(Path::new(pulled["path"].as_str().unwrap()).is_dir());

    let listed = town.json(&["models", "--json"]);
    let model = &listed[0];
    assert_eq!(model["name"], "tiny/llama");
    assert_eq!(model["kind"], "safetensors");
    assert_eq!(model["source"], "hub tiny/llama");
    assert_eq!(
        (&model["shared"], &model["last_used"]),
        (&false.into(), &Value::Null)
    );
    assert_eq!(model["verified"], "hub");

    let before = town.hub.requests().len();
    for flags in [&[][..], &["--offline"], &["--safetensors"]] {
        let args = ["run", "tiny/llama", "hi", "--max-tokens", "2"];
        let outcome = town.run(&[&args, flags].concat());
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    }
    assert_eq!(town.hub.requests().len(), before);
    let table = town.run(&["models"]).quiet();
    assert!(
        table.contains("tiny/llama") && table.contains("just now"),
        "{table}"
    );
    let shown = town.run(&["show", "tiny/llama"]).quiet();
    assert!(
        shown.contains("safetensors") && shown.contains("path"),
        "{shown}"
    );

    let removed = town.run(&["rm", "tiny/llama"]).quiet();
    assert!(removed.starts_with("removed tiny/llama, "), "{removed}");
    assert!(town.names().is_empty());
    town.run(&["rm", "tiny/llama"])
        .refused(3, &["tiny/llama", "loquat models"]);
    assert!(town.run(&["models"]).stderr.contains("loquat pull"));
}

#[test]
fn what_could_be_several_models_is_refused_with_what_to_say() {
    let town = Town::new();
    for args in [
        &["pull", "tiny/quants"][..],
        &["run", "tiny/quants", "hi"],
        &["inspect", "tiny/quants"],
    ] {
        let words = ["tiny/quants:Q8_0", "tiny/quants:Q2_K", "4.0 kB"];
        town.run(args).refused(3, &words);
    }
    town.run(&["pull", "tiny/quants:q2_k"]);
    town.run(&["pull", "tiny/quants:Q8_0"]);
    assert_eq!(town.names(), ["tiny/quants:Q2_K", "tiny/quants:Q8_0"]);
    town.run(&["rm", "tiny/quants"])
        .refused(3, &["tiny/quants:Q8_0", "tiny/quants:Q2_K"]);
    let removed = town.json(&["rm", "tiny/quants:Q8_0", "tiny/quants:Q2_K", "--json"]);
    assert_eq!(removed[1]["freed_bytes"], 4004);
}

#[test]
fn a_damaged_model_is_told_and_fails() {
    let town = Town::new();
    for quant in ["Q8_0", "Q2_K"] {
        town.run(&["pull", &format!("tiny/quants:{quant}")]);
    }
    let right = town.run(&["verify"]);
    assert_eq!(
        (right.code, right.text().as_str()),
        (0, "tiny/quants:Q2_K: right\ntiny/quants:Q8_0: right\n")
    );
    let shown = town.json(&["show", "tiny/quants:Q8_0", "--json"]);
    let path = shown["here"][0]["path"].as_str().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[100] ^= 1;
    fs::write(path, bytes).unwrap();

    let outcome = town.run(&["verify"]);
    assert_eq!(outcome.code, 1);
    assert!(outcome.stderr.contains("tiny/quants:Q8_0") && outcome.stderr.contains("loquat pull"));
    let told: Value =
        serde_json::from_str(&town.run(&["verify", "tiny/quants:Q8_0", "--json"]).text()).unwrap();
    assert_eq!(
        (&told[0]["right"], told.as_array().unwrap().len()),
        (&false.into(), 1)
    );
    assert!(
        told[0]["damaged"][0]
            .as_str()
            .unwrap()
            .contains("q-Q8_0.gguf")
    );
    assert_eq!(town.run(&["verify", "tiny/quants:Q2_K"]).code, 0);

    let mended = town.run(&["pull", "tiny/quants:Q8_0"]);
    assert!(mended.stderr.contains("damaged"), "{}", mended.stderr);
    assert_eq!(town.run(&["verify"]).code, 0);
}

#[test]
fn what_others_brought_is_listed_and_left_alone() {
    let town = Town::new();
    town.run(&["pull", "tiny/llama"]);
    // Whoever has another cache does not know who brought it.
    fs::remove_dir_all(town.machine.path().join("cache")).unwrap();
    assert_eq!(town.json(&["models", "--json"])[0]["shared"], true);
    let table = town.run(&["models"]).quiet();
    assert!(table.contains("(shared)"), "{table}");
    town.run(&["rm", "tiny/llama"])
        .refused(3, &["another tool", "snapshots"]);
    // Nor does what may go, where not all may.
    town.run(&["pull", "tiny/quants:Q8_0"]);
    town.run(&["rm", "tiny/quants:Q8_0", "tiny/llama"])
        .refused(3, &["another tool"]);
    assert_eq!(town.names(), ["tiny/llama", "tiny/quants:Q8_0"]);
}

#[test]
fn pruning_says_what_goes_before_it_does() {
    let town = Town::new();
    town.run(&["pull", "tiny/quants:Q8_0"]);
    let blobs = town.hub_cache().join("models--tiny--quants/blobs");
    let half = blobs.join(format!("{}.loquat.incomplete", "a".repeat(64)));
    fs::write(&half, vec![0; 100]).unwrap();
    let said = town.run(&["prune", "--dry-run"]).quiet();
    assert!(
        said.contains("would remove") && said.contains("100 B"),
        "{said}"
    );
    assert!(half.exists());
    let pruned = town.json(&["prune", "--json"]);
    assert_eq!(pruned["freed_bytes"], 100);
    assert!(!half.exists());
    assert_eq!(town.run(&["prune"]).quiet(), "0 B free\n");
    assert_eq!(town.names(), ["tiny/quants:Q8_0"]);
    let kept = town.json(&["prune", "--older-than", "1h", "--json"]);
    assert_eq!(kept["removed"], Value::Array(Vec::new()));
    town.run(&["prune", "--older-than", "soon"])
        .refused(2, &["30d"]);
}

#[test]
fn offline_and_unknown_names_say_what_to_do() {
    let town = Town::new();
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
        town.run(args).refused(code, words);
    }
}

#[test]
fn the_catalog_is_searched_and_shown_without_a_network() {
    let town = Town::new();
    let found = town.run(&["search", "qwen3", "4b"]).quiet();
    let first = found.lines().nth(1).unwrap();
    assert!(
        first.starts_with("qwen3:4b ") && first.contains("about"),
        "{first}"
    );
    let all = town.json(&["search", "--json"]);
    assert!(all.as_array().unwrap().len() >= 25);
    assert!(town.run(&["search", "zzzz"]).stderr.contains("Nothing"));
    let shown = town.run(&["show", "gpt-oss:20b"]).quiet();
    for part in [
        "gpt_oss",
        "21B, 3.6B of them",
        "Apache-2.0",
        "about",
        "loquat pull",
    ] {
        assert!(shown.contains(part), "{part} not in: {shown}");
    }
    assert!(town.hub.requests().is_empty());
}

#[test]
fn flags_name_exact_files() {
    let town = Town::new();
    let llama = golden("llama");
    let tokens = ["--max-tokens", "2"];
    // It is safetensors, and not MLX's.
    town.run(&["run", "--mlx-file", &llama, "hi"])
        .refused(3, &["is safetensors", "not mlx"]);
    town.run(&[&["run", &llama, "hi", "--gguf"][..], &tokens].concat())
        .refused(3, &["is safetensors", "not gguf"]);
    town.run(&["inspect", "--gguf-file", "missing.gguf"])
        .refused(3, &["nothing at ./missing.gguf"]);
    for args in [
        &["run", "--gguf", "--mlx", "a", "b"][..],
        &["run", "--gguf", "--gguf-file", "a.gguf", "b"],
        &["inspect", "smollm2", "--gguf-file", "a.gguf"],
        &["bench", "--synthetic", "llama-1b", "--gguf"],
    ] {
        let outcome = town.run(args);
        assert_eq!(outcome.code, 2, "{args:?}: {}", outcome.stderr);
    }
    town.run(&["run", "--gguf-file", "a.gguf", "smollm2", "hi"])
        .refused(2, &["--gguf-file"]);
}
