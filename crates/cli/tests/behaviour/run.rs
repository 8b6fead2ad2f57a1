//! Answers of `run` and `generate`.

use crate::support::{Altered, EOS, LETTER_A, golden, loquat, piped};

fn bias(token: &str) -> String {
    format!("--logit-bias={token}=100")
}

/// A number between two texts in the statistics line.
fn count(line: &str, before: &str, after: &str) -> usize {
    let rest = line.split(before).nth(1).expect(line);
    let number = rest.split(after).next().expect(line);
    number.trim().parse().expect(line)
}

#[test]
fn only_the_answer_goes_to_stdout() {
    let model = golden("llama");
    let answer = loquat(["run", &model, "hi", "-n", "12", &bias(LETTER_A)]).quiet();
    assert_eq!(answer, "AAAAAAAAAAAA\n");
}

#[test]
fn every_golden_with_tokenizer_answers() {
    for family in loquat_testkit::goldens::SPEAKING {
        let model = golden(family);
        let forced = bias(LETTER_A);
        for command in ["run", "generate"] {
            let answer = loquat([command, &model, "hi", "-n", "3", &forced]).quiet();
            assert_eq!(answer, "AAA\n", "{command} {family}");
        }
    }
}

#[test]
fn seed_determines_the_answer() {
    let model = golden("qwen2");
    let ask = |seed: &str| loquat(["run", &model, "hi", "-n", "24", "--seed", seed]).quiet();
    assert_eq!(ask("1"), ask("1"));
    assert_ne!(ask("1"), ask("2"));
}

#[test]
fn temperature_zero_needs_no_seed() {
    let model = golden("llama");
    let ask = || loquat(["run", &model, "hi", "-n", "24", "-t", "0"]).quiet();
    assert_eq!(ask(), ask());
    // Without a seed, each run draws its own.
    let seed = || -> serde_json::Value {
        let words = ["run", &model, "hi", "-n", "2", "-t", "1", "-o", "json"];
        let reply: serde_json::Value = serde_json::from_str(&loquat(words).quiet()).unwrap();
        reply["seed"].clone()
    };
    assert_ne!(seed(), seed());
}

#[test]
fn reported_seed_repeats_the_answer() {
    let model = golden("llama");
    let first = loquat(["run", &model, "hi", "-n", "24", "-v"]);
    let seed = first.stderr.trim_end().rsplit(' ').next().unwrap();
    let again = loquat(["run", &model, "hi", "-n", "24", "--seed", seed]).quiet();
    assert_eq!(first.text(), again);
}

#[test]
fn prompt_is_read_from_stdin() {
    let model = golden("llama");
    for command in ["run", "generate"] {
        let options = [command, &model, "-n", "24", "--seed", "3"];
        let argument = loquat(options.into_iter().chain(["two\nlines"])).quiet();
        assert_eq!(piped(&options, b"two\nlines").quiet(), argument);
        // One trailing line break is removed.
        assert_eq!(piped(&options, b"two\nlines\n").quiet(), argument);
        assert_eq!(piped(&options, b"two\nlines\r\n").quiet(), argument);
        assert_ne!(piped(&options, b"two\nlines\n\n").quiet(), argument);
    }
}

#[test]
fn system_prompt_is_rendered() {
    let model = golden("llama");
    let plain = ["run", &model, "hi", "-n", "1", "-v", "--seed", "3"];
    let prompt = |line: &str| count(line, "prompt ", " tokens at");
    let short = prompt(&loquat(plain).stderr);
    let long = prompt(&loquat(plain.into_iter().chain(["--system", "Be brief."])).stderr);
    assert!(long > short + "Be brief.".len(), "{short} {long}");
}

#[test]
fn only_run_applies_the_template() {
    let model = golden("llama");
    let prompt = |command: &str| {
        let line = loquat([command, &model, "hello", "-n", "1", "-v"]).stderr;
        count(&line, "prompt ", " tokens at")
    };
    assert_eq!(prompt("generate"), "hello".len());
    assert!(prompt("run") > "hello".len());
}

#[test]
fn max_tokens_ends_answer_with_note() {
    let model = golden("llama");
    let answer = loquat(["run", &model, "hi", "-n", "9", "-v", &bias(LETTER_A)]);
    assert_eq!(answer.text(), "AAAAAAAAA\n");
    assert!(answer.stderr.contains("9 tokens · "), "{}", answer.stderr);
    assert!(answer.stderr.contains("--max-tokens"), "{}", answer.stderr);
}

#[test]
fn answer_ends_at_the_context() {
    let model = golden("llama");
    let answer = loquat(["run", &model, "hi", "-v", "--context=64", &bias(LETTER_A)]);
    let prompt = count(&answer.stderr, "prompt ", " tokens at");
    assert_eq!(answer.text().trim_end().len(), 64 - prompt);
    assert!(
        answer.stderr.contains("context is full"),
        "{}",
        answer.stderr
    );
}

/// As the server does.
#[test]
fn max_tokens_are_reduced_to_the_context() {
    let model = golden("llama");
    for command in ["run", "generate"] {
        let forced = bias(LETTER_A);
        let words = [
            command,
            &model,
            "hi",
            "-n",
            "32000",
            "--context=64",
            &forced,
        ];
        let answer = loquat(words);
        let limit = answer.text().trim_end().len();
        let note =
            format!("--max-tokens is reduced from 32000 to {limit}, the room in the context");
        assert!(answer.stderr.contains(&note), "{}", answer.stderr);
        assert!(limit > 0 && limit < 64, "{limit}");
    }
}

#[test]
fn end_token_ends_answer_unless_ignored() {
    let model = golden("llama");
    let forced = bias(EOS);
    let ended = loquat(["generate", &model, "hi", "-n", "5", "-v", &forced]);
    assert_eq!(ended.text(), "\n");
    assert!(!ended.stderr.contains("--max-tokens"), "{}", ended.stderr);
    let args = ["generate", &model, "hi", "-n", "5", "-v", "--ignore-eos"];
    let ignored = loquat(args.into_iter().chain([forced.as_str()]));
    assert!(ignored.stderr.contains("5 tokens"), "{}", ignored.stderr);
}

#[test]
fn stop_string_is_not_printed() {
    let model = golden("llama");
    let forced = bias(LETTER_A);
    // `A` and `B`, and no `A` after another.
    let args = ["generate", &model, "hi", "-n", "6", &forced];
    let args = args
        .into_iter()
        .chain(["--allowed-tokens=32,33", "--bad-words=AA"]);
    assert_eq!(loquat(args.clone()).quiet(), "ABABAB\n");
    let stopped = loquat(args.chain(["--stop", "not this", "--stop", "BAB"]));
    assert_eq!(stopped.quiet(), "A\n");
}

#[test]
fn generate_needs_no_template() {
    let model = Altered::without_template();
    loquat(["run", model.path(), "hi"]).refused(4, &["chat template", "generate"]);
    loquat(["render", model.path(), "hi"]).refused(4, &["chat template"]);
    let answer = loquat(["generate", model.path(), "hi", "-n2", &bias(LETTER_A)]).quiet();
    assert_eq!(answer, "AA\n");
}

#[test]
fn builtin_template_is_used_with_warning() {
    let model = Altered::from("llama").without("chat_template.jinja");
    let answer = loquat(["run", model.path(), "hi", "-n2", &bias(LETTER_A)]);
    assert_eq!(
        (answer.code, answer.text().as_str()),
        (0, "AA\n"),
        "{}",
        answer.stderr
    );
    let told = "has no chat template; the built-in `chatml` is used\n";
    assert!(answer.stderr.ends_with(told), "{}", answer.stderr);
    let inspected = loquat(["inspect", model.path()]).quiet();
    assert!(
        inspected.contains("chat template      built-in chatml\n"),
        "{inspected}"
    );
    let named = ["render", "--template=vicuna", "Who are you?"];
    let named = loquat(named).quiet();
    assert!(named.contains("USER: Who are you?"), "{named}");
}

#[test]
fn thread_count_does_not_change_answers() {
    let model = golden("llama");
    let args = ["generate", &model, "hi", "-n", "8", "-t0"];
    let one = ["--precision=reference", "--threads=1"];
    let two = ["--precision=reference", "--threads=2"];
    let one = loquat(args.into_iter().chain(one)).quiet();
    let two = loquat(args.into_iter().chain(two)).quiet();
    assert_eq!(one, two);
}

#[test]
fn suffix_follows_what_is_written() {
    // Of tokens that the texts do not need.
    let model = Altered::from("llama")
        .replace("tokenizer.json", "<tool_call>", "<|fim_prefix|>")
        .replace("tokenizer.json", "</tool_call>", "<|fim_suffix|>")
        .replace("tokenizer.json", "<think>", "<|fim_middle|>");
    let flags = ["-n", "16", "-t", "0"];
    let between = ["generate", model.path(), "def f(", "--suffix", "return 1"];
    let filled = loquat(between.into_iter().chain(flags)).quiet();
    let prompt = "<|fim_prefix|>def f(<|fim_suffix|>return 1<|fim_middle|>";
    let verbatim = ["generate", model.path(), prompt];
    assert_eq!(loquat(verbatim.into_iter().chain(flags)).quiet(), filled);
    let prefix_only = ["generate", model.path(), "def f("];
    assert_ne!(loquat(prefix_only.into_iter().chain(flags)).quiet(), filled);
    // The model ends with any of the format's tokens.
    let forced = bias("263");
    let ended = between.into_iter().chain(["-n", "5", &forced]);
    assert_eq!(loquat(ended).quiet(), "\n");
}

#[test]
fn suffix_needs_fill_in_the_middle_tokens() {
    let words = [
        "generate",
        &golden("llama"),
        "def f(",
        "--suffix",
        "return 1",
    ];
    loquat(words).refused(4, &["fill-in-the-middle"]);
}
