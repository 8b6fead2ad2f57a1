//! `fit`, `doctor`, `quickstart`, `completions` and `man`.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Altered, Files, HANG_TIMEOUT, Outcome, command, golden, loquat};

/// Models added to the built-in catalog.
const CATALOG: &str = r#"
[[model]]
name = "giant"
tags = ["9t"]
family = "llama"
parameters = 9_000_000_000_000
context = 4096
licence = "none"
kind = "instruct"
kv = { layers = 10, heads = 1, width = 64 }

[[model.forms]]
kind = "gguf"
quant = "Q4_K_M"
file = "giant.gguf"
[[model.forms.sources]]
type = "hub"
repo = "no/giant"

[[model]]
name = "tiny"
tags = ["1m"]
family = "llama"
parameters = 1_000_000
context = 4096
licence = "none"
kind = "instruct"
kv = { layers = 2, heads = 1, width = 64 }

[[model.forms]]
kind = "gguf"
quant = "Q8_0"
file = "tiny.gguf"
[[model.forms.sources]]
type = "hub"
repo = "no/tiny"

[[model]]
name = "twofold"
tags = ["1m"]
family = "llama"
parameters = 1_000_000
context = 4096
licence = "none"
kind = "instruct"
kv = { layers = 2, heads = 1, width = 64 }

[[model.forms]]
kind = "gguf"
quant = "Q8_0"
file = "twofold.gguf"
bytes = 9_000_000_000_000
[[model.forms.sources]]
type = "hub"
repo = "no/twofold"

[[model.forms]]
kind = "mlx"
quant = "4bit"
bytes = 600_000
[[model.forms.sources]]
type = "hub"
repo = "no/twofold-mlx"
"#;

/// Runs offline with this catalog and cache.
fn with_catalog(cache: &Path, args: &[&str]) -> Outcome {
    let catalog = cache.join("catalog.toml");
    fs::write(&catalog, CATALOG).unwrap();
    let mut command = command(cache);
    command.env("LOQUAT_CATALOG", catalog).args(args);
    command.env("HF_HUB_OFFLINE", "1");
    Outcome::from(command.output().unwrap())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn fit_lists_best_models_first() {
    let cache = TempDir::new().unwrap();
    let all = json(&with_catalog(cache.path(), &["fit", "--json", "--all"]).quiet());
    assert!(all["machine"]["memory_bytes"].as_u64().unwrap() > 0);
    assert!(all["machine"]["read_bytes_per_second"].as_f64().unwrap() > 0.0);
    let models = all["models"].as_array().unwrap();
    let named = |name: &str| models.iter().find(|model| model["model"] == name).unwrap();
    assert_eq!(named("giant:9t")["fits"], "no");
    assert_eq!(named("giant:9t")["comfortable_context"], 0);
    let tiny = named("tiny:1m");
    assert_eq!(tiny["fits"], "well");
    assert_eq!(tiny["comfortable_context"], 4096);
    assert!(
        tiny["decode_tokens_per_second"]["fresh"].as_f64()
            > tiny["decode_tokens_per_second"]["full"].as_f64()
    );
    assert_eq!(all["best"], models[0]["model"]);
    let smaller = named("twofold:1m --mlx");
    assert_eq!(smaller["files"], "mlx 4bit");
    assert_eq!(smaller["weight_bytes"], 600_000);

    assert!(cache.path().join("machine.json").is_file());
    let again = json(&with_catalog(cache.path(), &["fit", "--json"]).quiet());
    let read = |report: &Value| report["machine"]["read_bytes_per_second"].as_f64();
    assert!(read(&again) >= read(&all), "the best counts");
    let shown = again["models"].as_array().unwrap();
    assert!(shown.iter().all(|model| model["fits"] != "no"));
    assert!(shown.len() < models.len());

    let text = with_catalog(cache.path(), &["fit"]).quiet();
    for word in [
        "tokens/s",
        "smollm2:135m",
        "do not fit; --all",
        "Best for this machine: loquat run ",
    ] {
        assert!(text.contains(word), "no {word} in {text}");
    }
    assert!(!text.contains("giant"), "{text}");
}

#[test]
fn fit_plans_files_and_contexts() {
    let model = golden("llama");
    let planned = json(&loquat(["fit", &model, "--json", "--context", "128"]).quiet());
    let planned = &planned["models"][0];
    assert_eq!(planned["exact"], true);
    assert_eq!(planned["context"], 128);
    let inspected = json(&loquat(["inspect", &model, "--json", "--context", "128"]).quiet());
    for number in ["weight_bytes", "kv_bytes_per_token", "parameters"] {
        assert_eq!(planned[number], inspected[number], "{number}");
    }

    loquat(["fit", &model, "--context", "100000"])
        .refused(2, &["context", "at most the model's 512"]);
    loquat(["fit", "nope"]).refused(3, &["nope"]);
    loquat(["fit", "--backend", "nope"]).refused(2, &["`nope`"]);
    let cache = TempDir::new().unwrap();
    let short = with_catalog(
        cache.path(),
        &["fit", "tiny:1m", "--context=8192", "--json"],
    );
    assert_eq!(json(&short.quiet())["models"][0]["fits"], "short");
}

#[test]
fn oversized_models_are_not_downloaded() {
    let cache = TempDir::new().unwrap();
    for args in [
        &["run", "giant:9t", "hi"][..],
        &["generate", "giant:9t", "hi"],
        &["bench", "giant:9t"],
        &["serve", "giant:9t", "--port=0"],
    ] {
        let refused = with_catalog(cache.path(), args);
        refused.refused(
            3,
            &[
                "giant:9t",
                "this machine has",
                "not downloaded",
                "These fit: ",
            ],
        );
        assert!(
            !refused.stderr.contains("downloading"),
            "{}",
            refused.stderr
        );
    }
    let refused = with_catalog(cache.path(), &["run", "twofold:1m", "hi"]);
    refused.refused(3, &["9.0 TB", "It fits as mlx 4bit: twofold:1m --mlx."]);
    let other = with_catalog(cache.path(), &["run", "twofold:1m", "hi", "--mlx"]);
    other.refused(3, &["offline"]);
    let refused = with_catalog(
        cache.path(),
        &["run", "smollm2:135m", "hi", "--memory=50MB"],
    );
    refused.refused(
        3,
        &[
            "98.4 MB",
            "`memory` allows 50.0 MB",
            "These fit: tiny:1m, twofold:1m --mlx (",
        ],
    );
    let refused = with_catalog(cache.path(), &["run", "smollm2:135m", "hi", "--memory=1kB"]);
    refused.refused(3, &["No model of the catalog fits"]);
}

#[test]
fn oversized_models_get_advice() {
    let model = golden("llama");
    let refused = loquat(["run", &model, "hi", "--memory=1kB"]);
    refused.refused(3, &["Use --memory ", "MiB", "No model of the catalog fits"]);
    // Enough for the model, but not for the buffers of its whole context.
    let endless = Altered::endless();
    let refused = loquat(["run", endless.path(), "hi", "--memory=2300kB"]);
    refused.refused(3, &["`memory` allows 2300000", "--context "]);
    let (_, rest) = refused.stderr.split_once("--context ").unwrap();
    let context = rest.split([' ', '.']).next().unwrap();
    let args = [
        "run",
        endless.path(),
        "hi",
        "-n1",
        "--memory=2300kB",
        "--context",
        context,
    ];
    assert_eq!(loquat(args).code, 0, "the advice works");
}

#[test]
fn doctor_finds_no_problems_here() {
    let outcome = doctor(|command| command);
    assert_eq!(outcome.code, 0, "{}", outcome.text());
    assert_eq!(outcome.stderr, "");
    for word in [
        "build ",
        "cpu backend",
        "memory ",
        "cache ",
        "port ",
        "hub ",
    ] {
        assert!(outcome.text().contains(word), "{}", outcome.text());
    }
}

/// In its own environment, offline.
fn doctor(change: impl FnOnce(&mut Command) -> &mut Command) -> Outcome {
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    command.arg("doctor").env("HF_HUB_OFFLINE", "1");
    command.env("HF_HUB_CACHE", cache.path());
    change(&mut command);
    let started = Instant::now();
    let outcome = Outcome::from(command.output().unwrap());
    assert!(started.elapsed() < HANG_TIMEOUT, "it hangs");
    outcome
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["check"] == name).unwrap()
}

#[test]
fn doctor_reports_unusable_cache() {
    let files = Files::new();
    let file = files.write("file", "");
    // Not writable for any user.
    let mut places = vec![file.clone(), format!("{file}/below")];
    if cfg!(target_os = "linux") {
        places.push("/proc/self".to_owned());
    }
    for place in places {
        let outcome = doctor(|command| command.arg("--json").env("LOQUAT_CACHE", &place));
        assert_eq!(outcome.code, 1, "{place}");
        assert!(
            outcome.stderr.contains("found 1 problem"),
            "{}",
            outcome.stderr
        );
        let report = json(&outcome.text());
        assert_eq!(report["healthy"], false);
        let cache = check(&report, "cache");
        assert_eq!(cache["verdict"], "problem", "{cache}");
        assert!(cache["remedy"].as_str().unwrap().contains("LOQUAT_CACHE="));
    }
}

#[test]
fn doctor_works_in_odd_environments() {
    let outcome = doctor(|command| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path)
    });
    // Without a home there is no cache, unless the system knows one.
    assert!([0, 1].contains(&outcome.code), "{}", outcome.stderr);
    assert!(outcome.text().contains("terminal"), "{}", outcome.text());

    let outcome = doctor(|command| {
        command.arg("--json").env("PATH", "").env("LANG", "");
        command.env("LC_ALL", "C").env("LOQUAT_PYTHON", "");
        command
            .env("HF_HUB_OFFLINE", "")
            .env("HF_ENDPOINT", "http://127.0.0.1:1")
    });
    assert_eq!(outcome.code, 0, "{}", outcome.text());
    let report = json(&outcome.text());
    for (name, word) in [
        ("python", "python3"),
        ("terminal", "C"),
        ("hub", "127.0.0.1:1"),
    ] {
        let check = check(&report, name);
        assert_eq!(check["verdict"], "note", "{check}");
        assert!(check["what"].as_str().unwrap().contains(word), "{check}");
    }
}

/// The server's default port, so that it is in use by us, or by another program. The doctors of other
/// tests have it for a moment only.
fn default_port() -> Option<TcpListener> {
    let attempts = (0..500).map(|_| TcpListener::bind("127.0.0.1:8080"));
    attempts
        .inspect(|_| std::thread::sleep(Duration::from_millis(5)))
        .find_map(Result::ok)
}

#[test]
fn doctor_checks_port_and_configuration() {
    let held = default_port();
    let files = Files::new();
    let (right, wrong) = (
        files.write("right.toml", "[server]\nport = 8081\n"),
        files.write("wrong.toml", "[server]\nprot = 8081\n"),
    );
    let outcome = doctor(|command| command.args(["--json", "--config", &right]));
    assert_eq!(outcome.code, 0, "{}", outcome.text());
    let report = json(&outcome.text());
    assert_eq!(check(&report, "config")["verdict"], "ok");
    let port = check(&report, "port")["what"].as_str().unwrap().to_owned();
    assert!(!port.contains("free"), "{port}");
    drop(held);
    let outcome = doctor(|command| command.args(["--config", &wrong]));
    assert_eq!(outcome.code, 1);
    assert!(outcome.text().contains("prot"), "{}", outcome.text());
}

#[test]
fn quickstart_writes_valid_configuration() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("loquat.toml");
    let shown = path.to_str().unwrap();
    let made = loquat(["quickstart", "-o", shown]);
    assert_eq!(
        (made.code, made.text().as_str()),
        (0, ""),
        "{}",
        made.stderr
    );
    assert!(
        made.stderr.contains("loquat serve --config"),
        "{}",
        made.stderr
    );
    let checked = loquat(["config", "check", shown]).quiet();
    assert!(checked.contains("is valid: no keys"), "{checked}");

    let text = fs::read_to_string(&path).unwrap();
    loquat(["quickstart", "-o", shown]).refused(2, &[shown, "--force"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "it is unchanged");
    fs::write(&path, "mine").unwrap();
    assert_eq!(loquat(["quickstart", "-o", shown, "--force"]).code, 0);
    assert!(fs::read_to_string(&path).unwrap().contains("[[models]]"));
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "no temporary file is left");

    let printed = loquat(["quickstart", "-o", "-"]).quiet();
    assert!(printed.contains("[[models]]"), "{printed}");
    let nowhere = folder.path().join("no/such/loquat.toml");
    loquat(["quickstart", "-o", nowhere.to_str().unwrap()]).refused(1, &["no/such"]);
}

/// The names of all commands in the help.
fn commands(parents: &[&str]) -> Vec<String> {
    let mut args = parents.to_vec();
    args.push("--help");
    let help = loquat(args).quiet();
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| {
        line.split_whitespace()
            .next()
            .filter(|_| line.starts_with("  ") && !line.starts_with("   "))
    });
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = loquat(["completions", shell]).quiet();
        for name in commands(&[]) {
            assert!(script.contains(&name), "{shell}: no {name}");
        }
        assert!(script.contains("max-tokens"), "{shell}");
    }
    loquat(["completions", "tcsh"]).refused(2, &["tcsh", "bash"]);
    let script = Files::new();
    let bash = script.write("loquat.bash", &loquat(["completions", "bash"]).quiet());
    // If bash is installed.
    if let Ok(parsed) = Command::new("bash").args(["-n", &bash]).output() {
        let stderr = String::from_utf8_lossy(&parsed.stderr).into_owned();
        assert!(parsed.status.success() && stderr.is_empty(), "{stderr}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let folder = TempDir::new().unwrap();
    let pages = folder.path().join("man/man1");
    loquat(["man", "--dir", pages.to_str().unwrap()]).quiet();
    let mut expected = vec!["loquat.1".to_owned()];
    for name in commands(&[]) {
        expected.push(format!("loquat-{name}.1"));
    }
    for name in commands(&["config"]) {
        expected.push(format!("loquat-config-{name}.1"));
    }
    for page in &expected {
        let text = fs::read_to_string(pages.join(page)).unwrap_or_else(|_| panic!("no {page}"));
        assert!(text.contains(".SH NAME"), "{page}");
        let groff = Command::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-z"])
            .arg(pages.join(page))
            .stdin(Stdio::null())
            .output();
        if let Ok(rendered) = groff {
            let warnings = String::from_utf8_lossy(&rendered.stderr).into_owned();
            assert!(
                rendered.status.success() && warnings.is_empty(),
                "{page}: {warnings}"
            );
        }
    }
    let main = loquat(["man"]).quiet();
    assert_eq!(main, fs::read_to_string(pages.join("loquat.1")).unwrap());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    loquat(["man", "--dir", file.to_str().unwrap()]).refused(1, &["cannot write"]);
}
