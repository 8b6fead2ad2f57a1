//! Adapters on the command line, with tiny ones of `crates/testkit/goldens-lora`.

use std::path::Path;

use loquat_hubkit::{FakeFile, FakeRepo, HubServer};
use loquat_testkit::goldens;
use tempfile::TempDir;

use crate::support::{Outcome, command, loquat};
#[cfg(unix)]
use crate::terminal::Terminal;

/// The checkpoints have none.
const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";

/// A copy of an adapter's model with a chat template.
fn model(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let base = goldens::fixtures().join("goldens-lora/base").join(name);
    for entry in std::fs::read_dir(base).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

fn adapter(name: &str) -> String {
    let path = goldens::fixtures().join("goldens-lora").join(name);
    path.to_str().unwrap().to_owned()
}

/// The answer of a backend; warnings on stderr are accepted.
fn answer(cache: &Path, backend: &str, model: &Path, adapters: &[&str]) -> Vec<u8> {
    let mut command = command(cache);
    command.arg("run").arg(model);
    command.args(["-n", "12", "-t", "0", "--precision", "reference"]);
    command.args(["--backend", backend]);
    for adapter in adapters {
        command.args(["--adapter", adapter]);
    }
    let outcome = Outcome::from(command.arg("Tell me a story.").output().unwrap());
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    outcome.stdout
}

/// The experimental backend warns on stderr. A build without it is covered by the tests of backends.
#[test]
fn backends_give_the_same_adapted_answer() {
    let list = loquat(["backends"]).quiet();
    let mlx = list.lines().find(|line| line.starts_with("mlx ")).unwrap();
    let backends: &[&str] = if mlx.contains(" unavailable ") {
        eprintln!("not tested on MLX: {mlx}");
        &["cpu"]
    } else {
        &["cpu", "mlx"]
    };
    let (cache, base) = (tempfile::tempdir().unwrap(), model("llama"));
    let quantized = cache.path().join("quantized");
    let words = ["--to", "mlx", "--quant", "q8", "-o"];
    let mut convert = command(cache.path());
    convert
        .arg("convert")
        .arg(base.path())
        .args(words)
        .arg(&quantized);
    let outcome = Outcome::from(convert.output().unwrap());
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let (dora, all) = (adapter("llama__dora"), adapter("llama__all"));
    let half = format!("{dora}@0.5");
    let cases: [&[&str]; 4] = [&[], &[&dora], &[&half], &[&half, &all]];
    for model in [base.path(), &quantized] {
        let mut answers = Vec::new();
        for adapters in cases {
            let own = answer(cache.path(), backends[0], model, adapters);
            for backend in &backends[1..] {
                let other = answer(cache.path(), backend, model, adapters);
                assert_eq!(other, own, "{}, {adapters:?}", model.display());
            }
            answers.push(own);
        }
        let plain = answers.remove(0);
        assert!(!answers.contains(&plain), "{answers:?}, {plain:?}");
    }
}

/// A chat starts with the adapters of its command line; `/adapter` changes them.
#[cfg(unix)]
#[test]
fn chat_applies_and_scales_adapters() {
    const QUESTION: &str = "Tell me a story.";
    let (folder, base) = (tempfile::tempdir().unwrap(), model("llama"));
    // Short paths, so that lines do not wrap.
    let [dora, all] = ["llama__dora", "llama__all"].map(|name| {
        let link = folder.path().join(&name[7..]);
        std::os::unix::fs::symlink(adapter(name), &link).unwrap();
        link.to_str().unwrap().to_owned()
    });
    let chat = |adapters: &[&str]| {
        let mut command = command(&folder.path().join("cache"));
        command.arg("run").arg(base.path());
        command.args(["-n", "12", "-t", "0"]);
        for adapter in adapters {
            command.args(["--adapter", adapter]);
        }
        Terminal::start(&command)
    };
    let answer = |terminal: &mut Terminal| {
        terminal.ask("/clear");
        let output = terminal.ask(QUESTION);
        // Its time follows.
        let (answer, _) = output.split_once("\n12 tokens ").expect("an answer");
        answer.to_owned()
    };
    let half = format!("{dora}@0.5");
    let sets: [&[&str]; 4] = [&[], &[&dora], &[&half], &[&half, &all]];
    let expected = sets.map(|adapters| {
        let mut terminal = chat(adapters);
        let found = answer(&mut terminal);
        terminal.leave();
        found
    });
    for (index, own) in expected.iter().enumerate() {
        assert!(!expected[..index].contains(own), "{expected:?}");
    }

    let mut terminal = chat(&[]);
    assert!(terminal.ask("/adapter").starts_with("No adapters. "));
    assert_eq!(answer(&mut terminal), expected[0]);
    let steps = [
        (&dora, format!("{dora} (scale 1)")),
        (&half, format!("{dora} (scale 0.5)")),
        (&all, format!("{dora} (scale 0.5)\n{all} (scale 1)")),
    ];
    for ((argument, listed), expected) in steps.iter().zip(&expected[1..]) {
        assert_eq!(terminal.ask(&format!("/adapter {argument}")), *listed);
        assert_eq!(answer(&mut terminal), *expected);
    }
    // What is refused changes nothing.
    let refused = terminal.ask("/adapter ./absent");
    assert!(refused.starts_with("error: "), "{refused}");
    assert_eq!(terminal.ask("/adapter"), steps[2].1);
    assert_eq!(answer(&mut terminal), expected[3]);
    let off = terminal.ask("/adapter off");
    assert_eq!(off, format!("{dora} (off)\n{all} (off)"));
    assert_eq!(answer(&mut terminal), expected[0]);
    terminal.leave();
}

/// A hub with an adapter, and a machine with its model.
struct Hub {
    server: HubServer,
    machine: TempDir,
    base: TempDir,
}

impl Hub {
    fn new() -> Self {
        let file = |name: &str| {
            let content = std::fs::read(Path::new(&adapter("llama__qv")).join(name)).unwrap();
            FakeFile::large(name, content)
        };
        let files = vec![
            file("adapter_config.json"),
            file("adapter_model.safetensors"),
            FakeFile::small("README.md", "read me"),
        ];
        let other = ["config.json", "model.safetensors"].map(|name| FakeFile::small(name, "{}"));
        let repos = vec![
            FakeRepo::new("tiny/poet", files),
            FakeRepo::new("tiny/model", other.to_vec()),
        ];
        Self {
            server: HubServer::start(repos).unwrap(),
            machine: TempDir::new().unwrap(),
            base: model("llama"),
        }
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let mut command = command(&self.machine.path().join("cache"));
        command.args(args).env("HF_ENDPOINT", self.server.url());
        command.env("HF_HUB_CACHE", self.machine.path().join("hub"));
        command.output().unwrap().into()
    }

    fn base(&self) -> &str {
        self.base.path().to_str().unwrap()
    }

    fn answer(&self, words: &[&str]) -> Vec<u8> {
        let args = [
            "run",
            self.base(),
            "Tell me a story.",
            "-n",
            "12",
            "-t",
            "0",
        ];
        let outcome = self.run(&[&args, words].concat());
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        outcome.stdout
    }
}

#[test]
fn hub_adapter_is_kept_like_a_model() {
    let hub = Hub::new();
    let plain = hub.answer(&[]);
    let local = adapter("llama__qv");
    let expected = hub.answer(&["--adapter", &local]);
    assert_ne!(plain, expected);
    for reference in [
        "tiny/poet",
        "tiny/poet@main",
        "tiny/poet@1",
        "tiny/poet@main@1.0",
        "tiny/poet:adapter_model.safetensors",
    ] {
        assert_eq!(
            hub.answer(&["--adapter", reference]),
            expected,
            "{reference}"
        );
    }
    let offline = hub.answer(&["--offline", "--adapter", "tiny/poet"]);
    assert_eq!(offline, expected);
    let half = hub.answer(&["--adapter", "tiny/poet@0.5"]);
    assert_eq!(half, hub.answer(&["--adapter", &format!("{local}@0.5")]));

    let listed = hub.run(&["models"]).quiet();
    assert!(
        listed.contains("tiny/poet  safetensors adapter"),
        "{listed}"
    );
    assert!(!listed.contains("never"), "{listed}");
    let verified = hub.run(&["verify"]).text();
    assert_eq!(verified, "tiny/poet: valid\n");
    let shown = hub.run(&["show", "tiny/poet"]).quiet();
    assert!(shown.contains("safetensors adapter, "), "{shown}");
    let inspected = hub.run(&["inspect", hub.base(), "--adapter", "tiny/poet"]);
    assert!(
        inspected.text().contains("adapter tiny/poet (PEFT)"),
        "{}",
        inspected.text()
    );
    let out = hub.machine.path().join("merged");
    let words = ["--to", "safetensors", "--adapter", "tiny/poet", "-o"];
    let convert = ["convert", hub.base()];
    let merged = hub.run(&[&convert[..], &words, &[out.to_str().unwrap()]].concat());
    assert_eq!(merged.code, 0, "{}", merged.stderr);

    let removed = hub.run(&["rm", "tiny/poet"]).quiet();
    assert!(removed.starts_with("removed tiny/poet, "), "{removed}");
    hub.run(&[
        "run",
        hub.base(),
        "hi",
        "--offline",
        "--adapter",
        "tiny/poet",
    ])
    .refused(3, &["tiny/poet", "offline"]);
    let pulled = hub.run(&["pull", "tiny/poet"]).text();
    assert!(pulled.starts_with("tiny/poet is at "), "{pulled}");
}

#[test]
fn adapter_reference_that_names_none_is_refused() {
    let hub = Hub::new();
    let run = |adapter: &str| hub.run(&["run", hub.base(), "hi", "--adapter", adapter]);
    run("tiny/model").refused(3, &["tiny/model has no adapter", "a model, not an adapter"]);
    run("tiny/absent").refused(3, &["tiny/absent"]);
    run("./absent").refused(3, &["./absent is not an adapter", "owner/name"]);
    hub.run(&["run", "tiny/poet", "hi"])
        .refused(3, &["LoRA adapter", "--adapter"]);
}
