//! The examples, run on a tiny checkpoint.

use std::env;
use std::process::Command;

use crate::golden;

/// `cargo test` builds them beside this program.
fn run(example: &str) -> String {
    let program = env::current_exe().unwrap();
    let program = program.ancestors().nth(2).unwrap().join("examples");
    let model = golden();
    let ran = Command::new(program.join(format!("{example}{}", env::consts::EXE_SUFFIX)))
        .arg(model)
        .env("LOQUAT_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap_or_else(|error| {
            panic!("{example}: {error}; `cargo test --test it` does not build examples")
        });
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{example}: {stderr}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn chat_prints_an_answer() {
    assert!(!run("chat").trim().is_empty());
}

#[test]
fn conversation_has_two_answers() {
    let printed = run("conversation");
    let (planet, size) = printed.split_once("\n\n").unwrap();
    assert!(!planet.is_empty() && !size.trim().is_empty(), "{printed}");
}

#[test]
fn constraint_prints_parsed_answers() {
    let printed = run("constraint");
    let (city, mood) = printed.split_once('\n').unwrap();
    assert!(city.ends_with(" people"), "{city}");
    assert!(["sad", "glad"].contains(&mood.trim()), "{mood}");
}

#[test]
fn cancel_prints_text_so_far() {
    // The answer may end before the cancellation.
    assert!(!run("cancel").trim().is_empty());
}
