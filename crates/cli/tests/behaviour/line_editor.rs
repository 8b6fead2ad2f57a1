//! Editing, completion and history of lines on a terminal.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::chat::{chat, letters, questions, saved};
use crate::support::{Files, golden};
use crate::terminal::{ALT_ENTER, BACKSPACE, CTRL_C, CTRL_D, ENTER, PROMPT, TAB, Terminal, UP};

#[test]
fn piped_output_starts_no_chat() {
    let cache = TempDir::new().unwrap();
    let run = letters(cache.path(), &golden("llama"), &["-n", "4"]);
    let mut piped = Command::new("sh");
    piped.args(["-c", "\"$0\" \"$@\" 2>/dev/null | cat"]);
    piped.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        if let Some(value) = value {
            piped.env(name, value);
        }
    }
    let mut terminal = Terminal::start(&piped);
    terminal.press(&format!("a question{ENTER}{CTRL_D}"));
    terminal.expect("a question\nAAAA");
    assert!(!terminal.raw.contains(&0x1b), "{:?}", terminal.screen());
    let (code, screen) = terminal.ends();
    assert_eq!(code, 0);
    assert!(!screen.contains(PROMPT), "{screen}");
}

#[test]
fn history_survives_the_process() {
    let cache = TempDir::new().unwrap();
    // The directory does not exist yet.
    let new = cache.path().join("new");
    let command = letters(&new, &golden("llama"), &["-n", "4"]);
    let mut first = Terminal::start(&command);
    for line in ["one", "twö 👩‍👧", "one"] {
        first.ask(line);
    }
    // Without a clean exit.
    drop(first);
    let mut second = Terminal::start(&command);
    second.ready();
    for (key, line) in [(UP, "one"), (UP, "twö"), ("\x1b[B", "one")] {
        second.press(key);
        let line = format!("{PROMPT}{line}");
        second.wait(&line, |terminal| terminal.line().starts_with(&line));
    }
    second.press(ENTER);
    second.expect("AAAA");
    second.leave();
    let history = fs::read_to_string(new.join("chat-history")).unwrap();
    assert_eq!(history, "#V2\ntwö 👩‍👧\none\n/exit\n");
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(new.join("chat-history"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn tab_completes_and_hints_are_dimmed() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let file = files.write("a talk.json", "[{\"role\": \"user\", \"content\": \"hi\"}]");
    let commit = "0123456789".repeat(4);
    let hub = cache.path().join("huggingface/hub/models--ours--Tiny_One");
    let (snapshot, refs) = (hub.join("snapshots").join(&commit), hub.join("refs"));
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&refs).unwrap();
    fs::write(refs.join("main"), &commit).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let there = Path::new(&golden("llama")).join(file);
        fs::copy(there, snapshot.join(file)).unwrap();
    }
    let mut terminal = chat(&cache);
    terminal.type_in("/sta");
    terminal.expect("/stats");
    assert!(terminal.is_dim("ts"));
    terminal.press(TAB);
    terminal.wait("the name", |terminal| terminal.cursor().1 == 10);
    terminal.press(CTRL_C);
    terminal.type_in("/set tempe");
    terminal.press(&format!("{TAB}0.5{ENTER}"));
    terminal.ready();
    assert!(
        terminal.screen().contains("/set temperature 0.5\n"),
        "{}",
        terminal.screen()
    );
    assert!(
        terminal
            .ask("/set temperature")
            .starts_with("temperature: 0.5\n")
    );
    // Several candidates are listed.
    terminal.type_in("/sa");
    terminal.press(TAB);
    terminal.expect("/save!");
    terminal.press(CTRL_C);
    let half = &file[..file.len() - "talk.json".len()];
    terminal.type_in(&format!("/load {half}"));
    terminal.press(&format!("{TAB}{ENTER}"));
    terminal.expect("1 message.");
    terminal.type_in("/model smollm2");
    terminal.press(TAB);
    terminal.expect("smollm2:135m");
    terminal.press(CTRL_C);
    terminal.type_in("/model ours/Tiny_");
    terminal.press(TAB);
    terminal.expect("/model ours/Tiny_One");
    terminal.press(CTRL_C);
    terminal.leave();
}

#[test]
fn multiple_lines_are_one_message() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    for keys in [
        "\"\"\"\r  one\r two\\\r\"\"\"\r",
        // A block is never a command, also from history.
        "\"\"\"\r/clear\r\"\"\"\r",
        &format!("{UP}{ENTER}"),
        " /clear\r",
        "three\\\rfour\r",
        &format!("five{ALT_ENTER}six{ENTER}"),
        // Bracketed paste.
        "\x1b[200~seven\\\reight\x1b[201~\r",
    ] {
        terminal.ready();
        terminal.press(keys);
        terminal.wait("answer", |terminal| terminal.screen().contains("AAAA"));
        terminal.ready();
        // Clear the screen to distinguish the next answer.
        terminal.press("\x0c");
        terminal.wait("clean screen", |terminal| terminal.cursor().0 == 0);
    }
    let conversation = saved(&mut terminal, &files);
    let asked = [
        "  one\n two\\",
        "/clear",
        "/clear",
        " /clear",
        "three\nfour",
        "five\nsix",
        "seven\\\neight",
    ];
    assert_eq!(questions(&conversation), asked);
    terminal.leave();
}

#[test]
fn graphemes_are_edited_as_units() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    for typed in ["👩‍👧", "e\u{301}", "漢", "🇫🇷", "👍🏽"] {
        terminal.ready();
        terminal.press(&format!("a{typed}{BACKSPACE}b"));
        terminal.wait("what is left", |terminal| {
            terminal.line() == format!("{PROMPT}ab")
        });
        // Left over it, and back.
        terminal.press(&format!("{typed}\x1b[D{BACKSPACE}c\x05"));
        let line = format!("{PROMPT}ac{typed}");
        terminal.wait(&line, |terminal| terminal.line() == line);
        terminal.press(ENTER);
        terminal.expect("AAAA");
        terminal.ready();
        let conversation = saved(&mut terminal, &files);
        assert_eq!(questions(&conversation), [format!("ac{typed}")]);
        terminal.ask("/clear");
    }
    terminal.leave();
}

#[test]
fn resize_keeps_the_line() {
    let (cache, files) = (TempDir::new().unwrap(), Files::new());
    let mut terminal = chat(&cache);
    let line = "0123456789".repeat(12);
    let (first, second) = line.split_at(60);
    // The screen and the cursor.
    let shown = |terminal: &Terminal, line: &str, cursor: (u16, u16)| {
        let screen = terminal.screen().replace('\n', "");
        screen == format!("Chatting. /help for help, Ctrl-D to leave.{PROMPT}{line}")
            && terminal.cursor() == cursor
    };
    terminal.type_in(first);
    terminal.resize(60, 50);
    terminal.wait("half a line in two", |it| shown(it, first, (2, 14)));
    terminal.press(second);
    terminal.wait("a line in three", |it| shown(it, &line, (3, 24)));
    terminal.resize(60, 100);
    terminal.wait("a line in two", |it| shown(it, &line, (2, 24)));
    terminal.press(&format!("!{ENTER}"));
    terminal.expect("AAAA");
    terminal.ready();
    let conversation = saved(&mut terminal, &files);
    assert_eq!(questions(&conversation), [format!("{line}!")]);
    terminal.leave();
}
