//! What `run` and `generate` say, and for how long.

use crate::support::{Altered, EOS, LETTER_A, golden, loquat, piped};

fn bias(token: &str) -> String {
    format!("--logit-bias={token}=100")
}

/// A number in front of a word in the closing line.
fn count(line: &str, before: &str, after: &str) -> usize {
    let rest = line.split(before).nth(1).expect(line);
    let number = rest.split(after).next().expect(line);
    number.trim().parse().expect(line)
}

#[test]
fn an_answer_goes_to_stdout_and_nothing_else_does() {
    let model = golden("llama");
    let answer = loquat(["run", &model, "hi", "-n", "12", "--seed", "7"]).quiet();
    assert!(answer.len() > 1 && answer.ends_with('\n'), "{answer:?}");
}

#[test]
fn every_golden_with_a_tokenizer_speaks() {
    for family in loquat_testkit::goldens::SPEAKING {
        let model = golden(family);
        let forced = bias(LETTER_A);
        for command in ["run", "generate"] {
            let said = loquat([command, &model, "hi", "-n", "3", &forced]).quiet();
            assert_eq!(said, "AAA\n", "{command} {family}");
        }
    }
}

#[test]
fn a_seed_repeats_an_answer_and_another_seed_does_not() {
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
    // Without both the answers differ, or the above says nothing.
    let free = || loquat(["run", &model, "hi", "-n", "24", "-t", "1"]).quiet();
    assert_ne!(free(), free());
}

#[test]
fn the_seed_of_an_answer_can_be_had_and_repeats_it() {
    let model = golden("llama");
    let first = loquat(["run", &model, "hi", "-n", "24", "-v"]);
    let seed = first.stderr.trim_end().rsplit(' ').next().unwrap();
    let again = loquat(["run", &model, "hi", "-n", "24", "--seed", seed]).quiet();
    assert_eq!(first.text(), again);
}

#[test]
fn stdin_is_the_prompt_where_no_argument_is() {
    let model = golden("llama");
    for command in ["run", "generate"] {
        let options = [command, &model, "-n", "24", "--seed", "3"];
        let argument = loquat(options.into_iter().chain(["two\nlines"])).quiet();
        assert_eq!(piped(&options, b"two\nlines").quiet(), argument);
        // The last line break is the pipe's, whoever wrote it.
        assert_eq!(piped(&options, b"two\nlines\n").quiet(), argument);
        assert_eq!(piped(&options, b"two\nlines\r\n").quiet(), argument);
        assert_ne!(piped(&options, b"two\nlines\n\n").quiet(), argument);
    }
}

#[test]
fn a_system_prompt_is_heard() {
    let model = golden("llama");
    let plain = ["run", &model, "hi", "-n", "1", "-v", "--seed", "3"];
    let prompt = |line: &str| count(line, "prompt ", " tokens at");
    let short = prompt(&loquat(plain).stderr);
    let long = prompt(&loquat(plain.into_iter().chain(["--system", "Be brief."])).stderr);
    assert!(long > short + "Be brief.".len(), "{short} {long}");
}

#[test]
fn generate_continues_the_text_alone_and_run_frames_it() {
    let model = golden("llama");
    let prompt = |command: &str| {
        let line = loquat([command, &model, "hello", "-n", "1", "-v"]).stderr;
        count(&line, "prompt ", " tokens at")
    };
    assert_eq!(prompt("generate"), "hello".len());
    assert!(prompt("run") > "hello".len());
}

#[test]
fn max_tokens_ends_an_answer_and_says_so() {
    let model = golden("llama");
    let said = loquat(["run", &model, "hi", "-n", "9", "-v", &bias(LETTER_A)]);
    assert_eq!(said.text(), "AAAAAAAAA\n");
    assert!(said.stderr.contains("9 tokens · "), "{}", said.stderr);
    assert!(said.stderr.contains("--max-tokens"), "{}", said.stderr);
}

#[test]
fn an_answer_left_to_itself_ends_with_the_context() {
    let model = golden("llama");
    let said = loquat(["run", &model, "hi", "-v", "--context=64", &bias(LETTER_A)]);
    let prompt = count(&said.stderr, "prompt ", " tokens at");
    assert_eq!(said.text().trim_end().len(), 64 - prompt);
    assert!(said.stderr.contains("context is full"), "{}", said.stderr);
}

#[test]
fn the_models_end_is_the_end_unless_ignored() {
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
fn a_stop_string_ends_the_text_before_it() {
    let model = golden("llama");
    let args = ["generate", &model, "hi", "-n", "40", "--seed", "5"];
    let whole = loquat(args).quiet();
    // A letter that comes up somewhere inside, found in what the model says anyway.
    let (at, letter) = whole
        .char_indices()
        .skip(3)
        .find(|(at, letter)| letter.is_ascii_alphanumeric() && !whole[..*at].contains(*letter))
        .expect("some letter");
    let letter = letter.to_string();
    let stopped = loquat(
        args.into_iter()
            .chain(["--stop", "not this", "--stop", &letter]),
    );
    assert_eq!(stopped.quiet(), format!("{}\n", &whole[..at]));
}

#[test]
fn a_model_without_a_template_generates_and_does_not_chat() {
    let model = Altered::mute();
    loquat(["run", model.path(), "hi"]).refused(4, &["chat template", "generate"]);
    loquat(["render", model.path(), "hi"]).refused(4, &["chat template"]);
    let said = loquat(["generate", model.path(), "hi", "-n2", &bias(LETTER_A)]).quiet();
    assert_eq!(said, "AA\n");
}

#[test]
fn a_built_in_template_stands_in_and_says_so() {
    let model = Altered::from("llama").without("chat_template.jinja");
    let said = loquat(["run", model.path(), "hi", "-n2", &bias(LETTER_A)]);
    assert_eq!(
        (said.code, said.text().as_str()),
        (0, "AA\n"),
        "{}",
        said.stderr
    );
    let told = "brings no chat template; the built-in `chatml` is used\n";
    assert!(said.stderr.ends_with(told), "{}", said.stderr);
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
fn precisions_and_threads_are_settings_of_the_same_model() {
    let model = golden("llama");
    let args = ["generate", &model, "hi", "-n", "8", "-t0"];
    let one = ["--precision=reference", "--threads=1"];
    let two = ["--precision=reference", "--threads=2"];
    let one = loquat(args.into_iter().chain(one)).quiet();
    let two = loquat(args.into_iter().chain(two)).quiet();
    assert_eq!(one, two);
}
