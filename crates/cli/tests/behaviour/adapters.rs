//! Adapters on the command line, with tiny ones of `crates/testkit/goldens-lora`.

use std::path::Path;

use loquat_testkit::goldens;
use tempfile::TempDir;

use crate::support::{Outcome, command, loquat};

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
