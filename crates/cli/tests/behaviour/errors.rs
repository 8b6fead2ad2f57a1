//! Errors: exit codes and messages.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Altered, Outcome, command, ends, golden, loquat, piped};

#[test]
fn empty_prompt_is_refused() {
    let model = golden("llama");
    loquat(["run", &model]).refused(2, &["no prompt"]);
    loquat(["run", &model, ""]).refused(2, &["no prompt"]);
    loquat(["run", &model, " \t"]).refused(2, &["no prompt"]);
    loquat(["run", ""]).refused(2, &["no prompt"]);
    loquat(["generate", &model, ""]).refused(2, &["no prompt"]);
    piped(&["run", &model], b"\n \n").refused(2, &["no prompt"]);
    piped(&["run", &model], b"\xff").refused(1, &["stdin", "UTF-8"]);
}

/// Reading a pipe that nobody writes to, or an endless device, would never end.
#[cfg(unix)]
#[test]
fn pipes_and_devices_in_models_are_refused() {
    let replaced = |file: &str, is_pipe: bool| {
        let model = Altered::from("llama").without(file);
        let path = model.file(file);
        if is_pipe {
            let made = Command::new("mkfifo").arg(&path).status();
            assert!(made.unwrap().success());
        } else {
            std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        }
        model
    };
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "model.safetensors",
    ] {
        for is_pipe in [true, false] {
            let model = replaced(file, is_pipe);
            let cache = TempDir::new().unwrap();
            let mut command = command(cache.path());
            let mut child = command.args(["run", model.path(), "hi"]).spawn().unwrap();
            assert_eq!(ends(&mut child), 3, "{file}");
            let refused: Outcome = child.wait_with_output().unwrap().into();
            refused.refused(3, &[file]);
        }
    }
}

#[test]
fn context_overflow_names_numbers() {
    let model = golden("llama");
    let long = "x".repeat(600);
    loquat(["generate", &model, &long]).refused(4, &["600 tokens", "512"]);
    loquat(["run", &model, &long]).refused(4, &["512"]);
    let args = ["generate", &model, "hello", "--context=5", "-n4"];
    loquat(args).refused(4, &["5 tokens", "context of 5"]);
    loquat(["generate", &model, "hi", "--context=513"]).refused(2, &["513", "at most", "512"]);
}

#[test]
fn out_of_range_values_name_range() {
    let model = golden("llama");
    for (flag, values, range) in [
        ("--temperature", ["-1", "200", "abc"], "from 0 to 100"),
        ("--top-k", ["-1", "1.5", "abc"], "from 0 to 16777216"),
        ("--top-p", ["-0.1", "1.1", "NaN"], "from 0 to 1"),
        ("--min-p", ["-0.1", "1.1", ""], "from 0 to 1"),
        (
            "--repetition-penalty",
            ["0", "-1", "101"],
            "from 0.01 to 100",
        ),
        ("--presence-penalty", ["-2.1", "2.1", "inf"], "from -2 to 2"),
        ("--frequency-penalty", ["-2.1", "2.1", "x"], "from -2 to 2"),
        ("--max-tokens", ["0", "-1", "1e3"], "at least 1"),
        ("--context", ["0", "-1", "many"], "at least 1"),
        ("--threads", ["0", "-1", "all"], "at least 1"),
        ("--memory", ["6", "-1", "much"], "6GiB or 800MB"),
        ("--memory", ["0%", "101%", "1.5%"], "from 1% to 100%"),
        (
            "--seed",
            ["-1", "x", "1.5"],
            "from 0 to 18446744073709551615",
        ),
        ("--precision", ["exact", "", "fp32"], "fast, reference"),
    ] {
        for value in values {
            let refused = loquat(["run", &model, "hi", flag, value]);
            refused.refused(2, &[flag, range]);
        }
    }
}

#[test]
fn memory_shortage_names_numbers() {
    let model = golden("llama");
    let words = ["needs", "bytes", "`memory` allows 1000"];
    for args in [
        &["run", &model, "hi", "--memory=1kB"][..],
        &["generate", &model, "hi", "--memory=1kB"],
        &["inspect", &model, "--memory=1kB"],
    ] {
        loquat(args.iter().copied()).refused(3, &words);
    }
    let cache = TempDir::new().unwrap();
    let refused = command(cache.path())
        .env("LOQUAT_MEMORY", "1kB")
        .args(["inspect", &model])
        .output();
    Outcome::from(refused.unwrap()).refused(3, &words);
}

#[test]
fn invalid_biases_are_refused() {
    let model = golden("llama");
    for (bias, code, words) in [
        ("5", 2, ["TOKEN=BIAS", "5"]),
        ("x=1", 2, ["`x`", "token id"]),
        ("5=x", 2, ["5=x", "from -100 to 100"]),
        ("5=101", 2, ["5=101", "from -100 to 100"]),
        ("288=1", 4, ["token 288", "has 288"]),
    ] {
        loquat(["run", &model, "hi", "--logit-bias", bias]).refused(code, &words);
    }
    loquat(["run", &model, "hi", "--stop", ""]).refused(4, &["`stop`", "at least one"]);
}

#[test]
fn unknown_arguments_are_usage_errors() {
    let model = golden("llama");
    loquat(["run", &model, "hi", "--nope"]).refused(2, &["--nope", "Usage"]);
    loquat(["run", &model, "hi", "--ignore-eos"]).refused(2, &["--ignore-eos"]);
    loquat(["run", &model, "who", "are"]).refused(2, &["'are'"]);
    loquat(["nope"]).refused(2, &["nope"]);
    // Similar names are suggested.
    loquat(["runn", &model]).refused(2, &["'runn'", "'run'"]);
    loquat(["run", &model, "hi", "--temprature=1"]).refused(2, &["'--temperature'"]);
    for command in ["run", "generate"] {
        loquat([command, "hello"]).refused(2, &["no model named `hello`", "loquat run -- hello"]);
    }
    let nothing = loquat([]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.stderr.contains("Usage"), "{}", nothing.stderr);
}

#[test]
fn environment_sets_backend_and_log_filter() {
    let (cache, model) = (TempDir::new().unwrap(), golden("llama"));
    for (variable, value, code, word) in [
        ("LOQUAT_BACKEND", "nope", 2, "`nope`"),
        ("LOQUAT_BACKEND", "cpu", 0, ""),
        ("LOQUAT_BACKEND", "", 0, ""),
        ("LOQUAT_LOG", "a=b=c", 2, "LOQUAT_LOG"),
        ("LOQUAT_LOG", "", 0, ""),
        ("LOQUAT_LOG", "info", 0, "loaded llama"),
    ] {
        let mut command = command(cache.path());
        command.args(["run", &model, "hi", "-n", "2"]);
        let output = command.env(variable, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{variable}={value}");
        assert!(stderr.contains(word), "{variable}={value}: {stderr}");
    }
    let mut command = command(cache.path());
    command.args(["run", &model, "hi", "-n", "2", "--backend=cpu"]);
    let output = command.env("LOQUAT_BACKEND", "nope").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "the flag takes precedence");
}

#[test]
fn missing_model_is_named() {
    let empty = TempDir::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (model, words) in [
        ("/nope/model.gguf", ["/nope/model.gguf", "nothing at"]),
        ("/nope", ["/nope", "nothing at"]),
        ("owner/name", ["127.0.0.1:1", "HF_ENDPOINT"]),
        ("nope", ["nope", "smollm2:135m"]),
        (empty, [empty, "not a model"]),
    ] {
        loquat(["run", model, "hi"]).refused(3, &words);
        loquat(["inspect", model]).refused(3, &words);
    }
}

#[test]
fn file_that_is_not_a_model_is_named() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, bytes, word) in [
        ("text.gguf", &b"just some text"[..], "has another header"),
        ("empty.gguf", b"", "GGUF"),
        ("short.gguf", b"GGUF\x03\0\0\0\x05", "GGUF"),
        ("text.txt", b"just some text", ".gguf"),
    ] {
        fs::write(at(name), bytes).unwrap();
        loquat(["run", &at(name), "hi"]).refused(3, &[&at(name), word]);
    }
}

#[test]
fn broken_checkpoint_names_file() {
    let truncated = Altered::from("llama");
    let weights = truncated.file("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for len in [bytes.len() - 1, 100, 4, 0] {
        fs::write(&weights, &bytes[..len]).unwrap();
        loquat(["run", truncated.path(), "hi"]).refused(3, &["model.safetensors"]);
    }
    for (model, words) in [
        (
            Altered::from("llama").replace("config.json", "\"llama\"", "\"nope\""),
            ["config.json", "`nope`", "llama, llama4_text, mamba2"],
        ),
        (
            Altered::from("llama").replace("config.json", "{", "{{"),
            ["config.json", "", ""],
        ),
        (
            Altered::from("llama").without("tokenizer.json"),
            ["tokenizer.json", "", ""],
        ),
        (
            Altered::from("llama").replace("chat_template.jinja", "{% endfor %}", ""),
            ["template", "", ""],
        ),
        (
            Altered::from("llama").without("model.safetensors"),
            [".safetensors", "", ""],
        ),
    ] {
        loquat(["run", model.path(), "hi"]).refused(3, &words);
    }
}

#[test]
fn default_model_is_downloaded() {
    let cache = TempDir::new().unwrap();
    let ask = |args: &[&str]| {
        let mut command = command(cache.path());
        command.args(args).env("LOQUAT_PYTHON", "/nope/python");
        Outcome::from(command.output().unwrap())
    };
    for args in [&["run", "Who are you?"][..], &["inspect"], &["bench"]] {
        let outcome = ask(args);
        assert_eq!(outcome.code, 3, "{args:?}");
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        assert_eq!(lines[0], "downloading smollm2:135m");
        assert!(lines[1].contains("/nope/python"), "{}", lines[1]);
        assert!(lines[1].ends_with("trying the next source"), "{}", lines[1]);
        let last = lines.last().unwrap();
        assert!(
            last.starts_with("error: ") && last.contains("127.0.0.1:1"),
            "{last}"
        );
    }
    let place = "models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf";
    let place = cache.path().join(place);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(&place, "half a model").unwrap();
    let stderr = ask(&["inspect"]).stderr;
    assert!(stderr.contains("downloading it again\n"), "{stderr}");

    // Nothing is downloaded without a prompt.
    ask(&["run"]).refused(2, &["no prompt"]);
}
