//! Conversations, over a real pseudo-terminal that Python's `pty` provides.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Altered, Files, LETTER_A, TEMPLATE, WEATHER, golden};

/// Runs a scenario of `pty_chat.py`, which says what it missed and what the terminal showed.
/// False when it could not.
#[track_caller]
fn play(scenario: &str, model: &str, cache: &Path, flags: &[&str]) -> bool {
    if Command::new("python3")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("skipped: there is no python3 to hold a terminal");
        return false;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/pty_chat.py");
    let mut python = Command::new("python3");
    python
        .arg(script)
        .args([scenario, env!("CARGO_BIN_EXE_loquat"), "run", model]);
    python.args(flags).env("LOQUAT_CACHE", cache);
    python.env("TERM", "xterm").env_remove("NO_COLOR");
    let output = python.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {said}");
    true
}

fn letters() -> String {
    format!("--logit-bias={LETTER_A}=100")
}

#[test]
fn a_conversation_remembers_until_it_is_cleared() {
    let cache = TempDir::new().unwrap();
    // Not there yet, as for a first user with a model of their own.
    let cache = cache.path().join("new");
    let flags = ["-v", "-n", "4", &letters()];
    if play("memory", &golden("llama"), &cache, &flags) {
        let history = std::fs::read_to_string(cache.join("chat-history")).unwrap();
        assert!(history.contains("first question"), "{history}");
    }
}

#[test]
fn commands_are_answered_and_not_asked() {
    let cache = TempDir::new().unwrap();
    play(
        "commands",
        &golden("llama"),
        cache.path(),
        &["-n", "4", &letters()],
    );
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    let flags = ["-n", "150000", &letters()];
    play("interrupt", model.path(), cache.path(), &flags);
}

#[test]
fn a_full_context_is_told_and_cleared() {
    let cache = TempDir::new().unwrap();
    let flags = ["-n", "20", "--context=100", &letters()];
    play("full", &golden("llama"), cache.path(), &flags);
}

#[test]
fn a_model_that_cannot_chat_says_so_at_once() {
    let cache = TempDir::new().unwrap();
    play("no_template", Altered::mute().path(), cache.path(), &[]);
}

#[test]
fn a_conversation_is_not_printed_as_json() {
    let cache = TempDir::new().unwrap();
    play(
        "no_json",
        &golden("llama"),
        cache.path(),
        &["--output=json"],
    );
}

#[test]
fn control_characters_of_a_model_stay_off_the_terminal() {
    let cache = TempDir::new().unwrap();
    // The token that writes an escape byte.
    let flags = ["-n", "4", "--logit-bias=215=100"];
    play("escapes", &golden("llama"), cache.path(), &flags);
}

#[test]
fn a_person_plays_the_tools() {
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
        &letters(),
    ];
    play("tool", model.path(), cache.path(), &flags);
}

#[test]
fn thinking_is_dimmed_on_a_terminal() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let template = files.write("template.jinja", TEMPLATE);
    let flags = [
        "--template",
        &template,
        "--thinking-budget=6",
        "-n16",
        &letters(),
    ];
    play("thinking", &golden("llama"), cache.path(), &flags);
}

#[test]
fn output_that_goes_elsewhere_makes_no_conversation() {
    let cache = TempDir::new().unwrap();
    let flags = ["-n", "4", &letters()];
    play("redirected", &golden("llama"), cache.path(), &flags);
}
