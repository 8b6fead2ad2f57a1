//! The examples do what they say, on a tiny checkpoint.

use std::path::Path;
use std::process::Command;

fn run(example: &str) -> String {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--example", example, "--"])
        .arg(manifest.join("../testkit/goldens/llama"))
        .current_dir(manifest)
        .env("LOQUAT_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
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
    assert!(run("conversation").matches('\n').count() >= 2);
}

#[test]
fn form_prints_what_it_parsed() {
    let printed = run("form");
    let (city, mood) = printed.split_once('\n').unwrap();
    assert!(city.ends_with(" people"), "{city}");
    assert!(["sad", "glad"].contains(&mood.trim()), "{mood}");
}

#[test]
fn cancel_ends() {
    // The checkpoint may reach the end of its context first.
    run("cancel");
}
