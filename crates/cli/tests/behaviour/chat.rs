//! Chats on a terminal.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Altered, Files, LETTER_A, TEMPLATE, WEATHER, command, golden};
use crate::terminal::{CTRL_C, CTRL_D, ENTER, PROMPT, Terminal};

/// `run` with a model that only generates `A`.
pub fn letters(cache: &Path, model: &str, flags: &[&str]) -> Command {
    let mut command = command(cache);
    command.args(["run", model]).args(flags);
    command.args([&format!("--logit-bias={LETTER_A}=100"), "--seed=1"]);
    command
}

/// A chat with the tiny model, which answers with four letters.
pub fn chat(cache: &TempDir) -> Terminal {
    Terminal::start(&letters(cache.path(), &golden("llama"), &["-n", "4"]))
}

fn number_before(text: &str, what: &str) -> usize {
    let (before, _) = text
        .rsplit_once(what)
        .unwrap_or_else(|| panic!("no {what} in {text}"));
    let digits = before
        .rsplit(|letter: char| !letter.is_ascii_digit())
        .next();
    digits.unwrap().parse().unwrap()
}

#[test]
fn conversation_is_kept_until_cleared() {
    let cache = TempDir::new().unwrap();
    let flags = ["-v", "-n", "4"];
    let mut terminal = Terminal::start(&letters(cache.path(), &golden("llama"), &flags));
    let prompt = |output: &str| {
        assert!(output.starts_with("AAAA\n"), "{output}");
        let (_, line) = output.split_once("prompt ").unwrap();
        number_before(&line[..line.find(" tokens").unwrap() + 7], " tokens")
    };
    let first = prompt(&terminal.ask("first question"));
    let output = terminal.ask("other question");
    let second = prompt(&output);
    assert!(
        second >= first + "AAAAother question".len(),
        "{second} after {first}"
    );
    let kept = number_before(&output, " cached");
    assert!(kept >= first, "only {kept} of {first} were kept: {output}");
    terminal.ask("/clear");
    assert_eq!(prompt(&terminal.ask("first question")), first);
    terminal.press(CTRL_D);
    assert_eq!(terminal.ends().0, 0);
}

#[test]
fn answers_are_streamed() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    let flags = ["-n", "150000"];
    let mut terminal = Terminal::start(&letters(cache.path(), model.path(), &flags));
    let count = |terminal: &Terminal| terminal.screen().matches('A').count();
    terminal.send("go");
    for more in [10, 50, 200] {
        terminal.wait("more letters", |terminal| count(terminal) > more);
        assert!(
            !terminal.screen().contains("tokens/s"),
            "it has ended already"
        );
    }
    terminal.press(CTRL_C);
    terminal.expect("stopped");
    terminal.leave();
}

#[test]
fn commands_are_not_sent_to_model() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    assert!(terminal.ask("/help").contains("/clear  "));
    assert!(
        terminal
            .ask("/nope")
            .contains("no command /nope. /help lists")
    );
    assert!(
        terminal
            .ask("/systme Be kind.")
            .contains("Did you mean /system?")
    );
    let (row, _) = terminal.cursor();
    terminal.press(ENTER);
    terminal.wait("another prompt", |terminal| terminal.cursor().0 > row);
    terminal.ready();
    assert!(!terminal.screen().contains("AAAA"));
    // Several words are a message, even after a slash.
    assert!(terminal.ask("/etc is what?").starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn ctrl_c_stops_answer_and_twice_leaves() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    let command = letters(cache.path(), model.path(), &["-n", "150000"]);
    let mut terminal = Terminal::start(&command);
    for question in ["one", "two"] {
        terminal.send(question);
        terminal.expect(&format!("{PROMPT}{question}\nAAAA"));
        terminal.press(CTRL_C);
        terminal.ready();
        // It does not count for the next line.
        terminal.type_in("discarded");
        terminal.press(CTRL_C);
        terminal.ready();
    }
    let file = cache.path().join("talk.json");
    terminal.ask(&format!("/save {}", file.display()));
    let saved: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(saved.as_array().unwrap().len(), 4, "{saved}");
    let answer = saved[1]["content"].as_str().unwrap();
    assert!(answer.starts_with("AAAA"), "{saved}");

    // If the machine is too busy for two presses in time, the hint appears: try again.
    loop {
        terminal.send("go on");
        terminal.expect(&format!("{PROMPT}go on\nAAAA"));
        terminal.press(CTRL_C);
        terminal.ready();
        terminal.press(CTRL_C);
        if terminal.ends_before("Press Ctrl-C again") {
            break;
        }
        // The hint stays in force until another line.
        terminal.press("\x0c");
        terminal.ask("/help");
    }
    let (code, screen) = terminal.ends();
    assert_eq!(code, 130, "{screen}");
}

#[test]
fn ctrl_c_at_empty_prompt_warns_then_leaves() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    terminal.type_in("discarded");
    terminal.press(CTRL_C);
    terminal.ready();
    assert!(
        !terminal.screen().contains("Press Ctrl-C"),
        "{}",
        terminal.screen()
    );
    terminal.press(CTRL_C);
    terminal.expect("Press Ctrl-C again, Ctrl-D or /exit to leave.");
    terminal.ready();
    terminal.press(CTRL_C);
    let (code, screen) = terminal.ends();
    assert_eq!(code, 130, "{screen}");
    assert!(!screen.contains("AAAA"), "{screen}");
}

/// A hub that lets its clients wait, so that a model of it never finishes loading.
struct StuckHub(TcpListener);

/// A request that waits. Dropped, it is answered: there is no such model.
struct StuckRequest(TcpStream);

impl StuckHub {
    const MODEL: &str = "owner/name";

    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// Waits for the next request.
    fn request(&self) -> StuckRequest {
        let (mut client, _) = self.0.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        StuckRequest(client)
    }
}

impl Drop for StuckRequest {
    fn drop(&mut self) {
        // A client that has left needs no answer.
        let _ = (self.0).write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }
}

#[test]
fn ctrl_c_while_loading_leaves_at_once() {
    let (cache, hub) = (TempDir::new().unwrap(), StuckHub::new());
    let mut command = letters(cache.path(), StuckHub::MODEL, &[]);
    command.env("HF_ENDPOINT", hub.url());
    let mut loading = Terminal::start(&command);
    let held = hub.request();
    loading.press(CTRL_C);
    assert_eq!(loading.ends().0, 130);
    drop(held);
}

#[test]
fn ctrl_c_while_switching_warns_before_it_leaves() {
    let (cache, files, hub) = (TempDir::new().unwrap(), Files::new(), StuckHub::new());
    let warning = "Press Ctrl-C again to leave; the conversation is not saved.";
    let mut command = letters(cache.path(), &golden("llama"), &["-n", "4"]);
    command.env("HF_ENDPOINT", hub.url());
    let mut terminal = Terminal::start(&command);
    terminal.ask("one");
    terminal.send(&format!("/model {}", StuckHub::MODEL));
    let held = hub.request();
    terminal.press(CTRL_C);
    terminal.expect(warning);
    // A model that does not exist is an error, and the conversation continues.
    drop(held);
    terminal.ready();
    assert_eq!(questions(&saved(&mut terminal, &files)), ["one"]);

    terminal.press("\x0c");
    terminal.send(&format!("/model {}", StuckHub::MODEL));
    let held = hub.request();
    terminal.press(CTRL_C);
    terminal.expect(warning);
    terminal.press(CTRL_C);
    let (code, screen) = terminal.ends();
    assert_eq!(code, 130, "{screen}");
    drop(held);
}

#[test]
fn ctrl_c_before_answer_removes_question() {
    let (cache, files, model) = (TempDir::new().unwrap(), Files::new(), Altered::endless());
    // It thinks without end.
    let template = files.write("template.jinja", TEMPLATE);
    let flags = ["--template", &template, "-n", "150000"];
    let mut terminal = Terminal::start(&letters(cache.path(), model.path(), &flags));
    terminal.send("why?");
    terminal.expect(&format!("{PROMPT}why?\nAAAA"));
    terminal.press(CTRL_C);
    terminal.expect("Question removed.");
    terminal.ready();
    assert_eq!(saved(&mut terminal, &files), Value::Array(Vec::new()));
    // A cancelled retry keeps the earlier answer.
    let before = r#"[{"role":"user","content":"one"},{"role":"assistant","content":"1"}]"#;
    terminal.ask(&format!("/load {}", files.write("before.json", before)));
    terminal.press("\x0c/retry\r");
    terminal.expect(&format!("{PROMPT}/retry\nAAAA"));
    terminal.press(CTRL_C);
    terminal.expect("Question removed.");
    terminal.ready();
    assert_eq!(saved(&mut terminal, &files).to_string(), before);
    terminal.leave();
}

#[test]
fn full_context_suggests_clear() {
    let cache = TempDir::new().unwrap();
    let flags = ["-n", "20", "--context=100"];
    let mut terminal = Terminal::start(&letters(cache.path(), &golden("llama"), &flags));
    let question = "a question of some length";
    assert!(terminal.ask(question).starts_with("AAAA"));
    let refused = terminal.ask("a second of the same length");
    assert!(refused.starts_with("error: "), "{refused}");
    assert!(refused.contains("/clear starts over"), "{refused}");
    terminal.ask("/clear");
    assert!(terminal.ask(question).starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn impossible_chats_are_refused_at_once() {
    let cache = TempDir::new().unwrap();
    let without_template = Altered::without_template();
    let llama = golden("llama");
    let cases: [(&str, &[&str], i32, &str); 2] = [
        (without_template.path(), &[], 4, "chat template"),
        (
            &llama,
            &["--output=json"],
            2,
            "`--output` of a conversation",
        ),
    ];
    for (model, flags, code, words) in cases {
        let terminal = Terminal::start(&letters(cache.path(), model, flags));
        let (found, screen) = terminal.ends();
        assert_eq!(found, code, "{screen}");
        assert!(
            screen.starts_with("error: ") && screen.contains(words),
            "{screen}"
        );
        assert!(!screen.contains(PROMPT), "{screen}");
    }
}

#[test]
fn control_characters_are_replaced() {
    let cache = TempDir::new().unwrap();
    let mut command = command(cache.path());
    // The token that writes an escape byte.
    command.args(["run", &golden("llama"), "-n4", "--logit-bias=215=100"]);
    let mut terminal = Terminal::start(&command);
    terminal.ask("hi");
    let raw = String::from_utf8_lossy(&terminal.raw).into_owned();
    assert!(
        raw.contains("\r\n\u{fffd}\u{fffd}\u{fffd}\u{fffd}\r\n"),
        "{raw:?}"
    );
    terminal.leave();
}

#[test]
fn user_answers_tool_calls() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    // Tools in words take more than the tiny model's own context.
    let model = Altered::endless();
    let tools = files.write("tools.json", WEATHER);
    let flags = [
        "--tools",
        &tools,
        "--tool-choice=required",
        "--no-parallel-tool-calls",
        "--reasoning-format=none",
        "-n150",
    ];
    let mut terminal = Terminal::start(&letters(cache.path(), model.path(), &flags));
    let asked = |terminal: &Terminal| terminal.line() == "get_weather =";
    terminal.send("Is it raining?");
    terminal.expect("→ get_weather {\"city\": ");
    terminal.wait("tool's prompt", asked);
    terminal.press("It is.\r");
    terminal.expect("AAAA");
    terminal.send("And now?");
    terminal.wait("tool's prompt", asked);
    terminal.press(CTRL_C);
    terminal.expect("Question removed.");
    // The removed question does not affect the next one.
    terminal.send("And then?");
    terminal.wait("tool's prompt", asked);
    terminal.press("No.\r");
    terminal.leave();
}

/// Thinks six letters, then answers with ten.
fn thinker(cache: &TempDir, files: &Files, flags: &[&str]) -> Command {
    let template = files.write("template.jinja", TEMPLATE);
    let thinks = ["--template", &template, "--thinking-budget=6", "-n16"];
    letters(cache.path(), &golden("llama"), &[&thinks, flags].concat())
}

#[test]
fn thinking_is_dimmed() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = Terminal::start(&thinker(&cache, &files, &[]));
    let output = terminal.ask("hi");
    let (thought, answer) = output.split_once('\n').unwrap();
    assert_eq!(thought, "AAAAAA");
    assert!(answer.starts_with("AAAA"), "{output}");
    assert!(terminal.is_dim("AAAAAA"));
    assert!(!output.contains("think>"), "{output}");
    terminal.leave();
}

#[test]
fn thinking_display_can_be_changed() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let command = thinker(&cache, &files, &["--show-reasoning=folded"]);
    let mut terminal = Terminal::start(&command);
    let output = terminal.ask("hi");
    let (line, answer) = output.split_once('\n').unwrap();
    assert!(line.starts_with("thought for "), "{output}");
    let tokens = number_before(line, " tokens)");
    // The closing tokens may count as well.
    assert!((6..16).contains(&tokens), "{output}");
    assert!(answer.starts_with("AAAA"), "{output}");
    assert!(terminal.is_dim("thought for"));
    // It counted while thinking.
    let raw = String::from_utf8_lossy(&terminal.raw).into_owned();
    assert!(raw.contains("thinking… "), "{raw:?}");

    assert_eq!(terminal.ask("/reasoning"), "AAAAAA");
    assert_eq!(terminal.ask("/reasoning hidden"), "");
    assert!(terminal.ask("again").starts_with("AAAA"));
    assert_eq!(terminal.ask("/set show_reasoning full"), "");
    assert!(terminal.ask("once more").starts_with("AAAAAA\nAAAA"));
    let refused = terminal.ask("/reasoning loud");
    assert!(
        refused.contains("must be one of full, folded, hidden"),
        "{refused}"
    );
    terminal.leave();
}

/// The messages of the conversation.
pub fn saved(terminal: &mut Terminal, files: &Files) -> Value {
    let file = files.write("saved.json", "");
    terminal.ask(&format!("/save! {file}"));
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

pub fn questions(conversation: &Value) -> Vec<&str> {
    let messages = conversation.as_array().unwrap().iter();
    let asked = messages.filter(|message| message["role"] == "user");
    asked
        .map(|message| message["content"].as_str().unwrap())
        .collect()
}

#[test]
fn settings_can_be_changed_and_listed() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    assert_eq!(terminal.ask("/set max_tokens 2"), "");
    let output = terminal.ask("hi");
    assert!(output.starts_with("AA\n2 tokens"), "{output}");
    let listed = terminal.ask("/set");
    for line in [
        "* max-tokens",
        "* logit-bias",
        "  top-p",
        "  show-reasoning",
    ] {
        let found = listed.lines().any(|found| found.starts_with(line));
        assert!(found, "no {line:?} in {listed}");
    }
    assert_eq!(terminal.ask("/unset max-tokens"), "");
    assert!(
        terminal
            .ask("/set max-tokens")
            .starts_with("max-tokens: not set\n")
    );
    for (line, words) in [
        ("/set temprature 1", "Did you mean temperature?"),
        ("/set top_p 2", "top-p: must be a number from 0 to 1"),
        ("/unset", "usage: /unset NAME"),
        // Its template has no switch.
        ("/set thinking off", "thinking"),
        ("/set samplers top_k", ""),
        ("/set top_p 0.5", "top_p"),
    ] {
        let output = terminal.ask(line);
        assert!(output.contains(words), "{line}: {output}");
        assert_eq!(output.starts_with("error: "), !words.is_empty(), "{output}");
    }
    // A refused setting does not apply.
    assert!(terminal.ask("hi").starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn conversations_can_be_saved_loaded_and_undone() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    assert!(
        terminal
            .ask("/system")
            .contains("Set one with /system TEXT")
    );
    assert_eq!(terminal.ask("/system Be kind."), "");
    assert_eq!(terminal.ask("/system"), "Be kind.");
    assert!(terminal.ask("/undo").contains("Nothing to undo"));
    assert!(terminal.ask("/retry").contains("Nothing to retry"));
    terminal.ask("one");
    terminal.ask("two");
    assert!(terminal.ask("/retry").starts_with("AAAA"));
    let before = saved(&mut terminal, &files);
    assert_eq!(before[0]["content"], "Be kind.");
    assert_eq!(questions(&before), ["one", "two"]);
    assert_eq!(terminal.ask("/undo"), "Removed: two");
    assert_eq!(questions(&saved(&mut terminal, &files)), ["one"]);

    let file = files.write("before.json", &before.to_string());
    let refused = terminal.ask(&format!("/save {file}"));
    assert!(
        refused.contains("already exists. Overwrite it with /save!"),
        "{refused}"
    );
    assert_eq!(terminal.ask(&format!("/load {file}")), "4 messages.");
    assert_eq!(saved(&mut terminal, &files), before);
    let refused = terminal.ask("/load /no/such/file");
    assert!(
        refused.starts_with("error: /load: cannot read"),
        "{refused}"
    );
    let broken = files.write("broken.json", "[{\"role\": \"bot\"}]");
    let refused = terminal.ask(&format!("/load {broken}"));
    assert!(refused.contains("messages[0].role"), "{refused}");
    assert_eq!(saved(&mut terminal, &files), before);
    terminal.leave();

    // The same file is what --messages reads.
    let mut run = letters(
        cache.path(),
        &golden("llama"),
        &["-n4", "--messages", &file],
    );
    let output = run.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "AAAA\n");
}

#[test]
fn switching_models_keeps_conversation() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    assert!(terminal.ask("/model").starts_with("llama on cpu"));
    terminal.ask("one");
    let without_template = Altered::without_template();
    for (model, words) in [
        (without_template.path(), "chat template"),
        ("smolm2", "smolm2"),
    ] {
        let refused = terminal.ask(&format!("/model {model}"));
        assert!(
            refused.starts_with("error: ") && refused.contains(words),
            "{refused}"
        );
        assert!(terminal.ask("/model").starts_with("llama on cpu"));
    }
    let refused = terminal.ask("/model smollm2:135m --mxl");
    assert!(
        refused.contains("/model: unexpected argument '--mxl'"),
        "{refused}"
    );
    let other = Altered::endless();
    let of_kind = terminal.ask(&format!("/model {} --gguf", other.path()));
    assert!(of_kind.starts_with("error: "), "{of_kind}");
    let switched = terminal.ask(&format!("/model {} --safetensors", other.path()));
    assert!(switched.contains("room for 200000 tokens"), "{switched}");
    assert!(terminal.ask("two").starts_with("AAAA"));
    assert_eq!(questions(&saved(&mut terminal, &files)), ["one", "two"]);
    terminal.leave();
}

#[test]
fn switching_to_oversized_model_gives_advice() {
    let cache = TempDir::new().unwrap();
    let flags = ["-n4", "--memory=2300kB"];
    let mut terminal = Terminal::start(&letters(cache.path(), &golden("llama"), &flags));
    let endless = Altered::endless();
    for (model, words) in [
        ("smollm2:135m", ["98.4 MB", "was not downloaded"]),
        (endless.path(), ["`memory` allows 2300000", "--context "]),
    ] {
        let refused = terminal.ask(&format!("/model {model}"));
        // A long line is broken anywhere.
        let refused = refused.replace('\n', "");
        for words in words {
            assert!(refused.contains(words), "no {words:?} in {refused}");
        }
    }
    assert!(terminal.ask("hi").starts_with("AAAA"));
    terminal.leave();
}

#[test]
fn stats_show_tokens_and_memory() {
    let cache = TempDir::new().unwrap();
    let mut terminal = chat(&cache);
    assert!(
        terminal
            .ask("/stats")
            .starts_with("context      512 tokens")
    );
    terminal.ask("one");
    terminal.ask("two");
    let stats = terminal.ask("/stats");
    for words in [
        "last answer  4 tokens at ",
        "of 512 tokens (",
        "all answers  8 tokens",
        "prefix cache ",
        "memory       weights ",
    ] {
        assert!(stats.contains(words), "no {words:?} in {stats}");
    }
    assert!(number_before(&stats, " cached") > 0, "{stats}");
    terminal.leave();
}

#[test]
fn colours_follow_flag_and_environment() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    for (flag, variable, coloured) in [
        ("--color=auto", ("NO_COLOR", ""), true),
        ("--color=auto", ("NO_COLOR", "1"), false),
        ("--color=auto", ("TERM", "dumb"), false),
        ("--color=never", ("TERM", "xterm"), false),
        ("--color=always", ("NO_COLOR", "1"), true),
    ] {
        let mut command = thinker(&cache, &files, &[flag]);
        command.env(variable.0, variable.1);
        let mut terminal = Terminal::start(&command);
        terminal.send("/nope");
        terminal.send("/reasoning folded");
        terminal.send("hi");
        terminal.expect("thought for");
        terminal.ready();
        let found = has_colour(&terminal.raw);
        assert_eq!(found, coloured, "{flag} {variable:?}");
        terminal.leave();

        let mut doctor = self::command(cache.path());
        doctor.args(["doctor", flag]).env(variable.0, variable.1);
        let mut terminal = Terminal::start(&doctor);
        // This follows a colour, even if the output arrives in pieces.
        terminal.expect("loquat ");
        let found = has_colour(&terminal.raw);
        assert_eq!(found, coloured, "doctor {flag} {variable:?}");
    }
}

/// Sequences for colours and the like are those that end in an m.
fn has_colour(raw: &[u8]) -> bool {
    let text = String::from_utf8_lossy(raw);
    text.split("\x1b[").skip(1).any(|sequence| {
        let end = sequence.find(|letter: char| letter.is_ascii_alphabetic());
        end.is_some_and(|end| sequence[end..].starts_with('m'))
    })
}
