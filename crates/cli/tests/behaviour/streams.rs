//! Pipes and signals: plain output, closed pipes, and Ctrl-C.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Altered, LETTER_A, command, ends, golden, loquat};

/// Generates for minutes.
fn endlessly(name: &str, cache: &TempDir, model: &Altered) -> Command {
    let mut command = command(cache.path());
    command.args([name, model.path(), "hi", "-n", "150000"]);
    command.arg(format!("--logit-bias={LETTER_A}=100"));
    command
}

#[test]
fn pipes_get_no_escape_sequences() {
    let model = golden("llama");
    let speak = format!("--logit-bias={LETTER_A}=100");
    let commands: [&[&str]; 8] = [
        &["run", &model, "hi", "-n", "3", &speak],
        &["run", &model, "hi", "-n", "3", "-v", &speak],
        &["generate", &model, "hi", "-n", "3", "-v", &speak],
        &["inspect", &model, "-v"],
        &["backends", "-v"],
        &["run", "--help"],
        &["run", "--nope"],
        &["run", "/nope", "hi", "-v"],
    ];
    for args in commands {
        let outcome = loquat(args.iter().copied());
        assert!(!outcome.stdout.contains(&0x1b), "{args:?}");
        assert!(!outcome.stderr.contains('\x1b'), "{args:?}");
        assert!(!outcome.stderr.contains('\r'), "{args:?}");
    }
}

#[test]
fn statistics_line_needs_terminal_or_verbose() {
    let model = golden("llama");
    let letters = format!("--logit-bias={LETTER_A}=100");
    loquat(["run", &model, "hi", "-n", "3", &letters]).quiet();
    let verbose = loquat(["run", &model, "hi", "-n", "3", "-v", &letters]).stderr;
    assert!(verbose.contains("loaded llama on cpu"), "{verbose}");
    assert!(verbose.contains("3 tokens · first after"), "{verbose}");
}

#[test]
fn prompt_argument_leaves_stdin_unread() {
    let cache = TempDir::new().unwrap();
    for name in ["run", "generate"] {
        let mut command = command(cache.path());
        command.args([name, &golden("llama"), "hi", "-n", "3"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let open = child.stdin.take();
        assert_eq!(ends(&mut child), 0);
        drop(open);
    }
}

#[test]
fn closed_pipe_ends_run_silently() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    let mut child = endlessly("run", &cache, &model).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut start = [0; 3];
    stdout.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"AAA");
    drop(stdout);
    assert_eq!(ends(&mut child), 141);
    let mut stderr = String::new();
    child.stderr.unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
}

#[test]
#[cfg(target_os = "linux")]
fn full_disk_is_reported() {
    let cache = TempDir::new().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut inspect = command(cache.path());
    let inspect = inspect.args(["inspect", &golden("llama")]).stdout(full());
    let output = inspect.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot write the output"), "{stderr}");

    for args in [["inspect", "/nope", "-v"], ["run", "nope", "-v"]] {
        let mut command = command(cache.path());
        let status = command.args(args).stderr(full()).status().unwrap();
        assert!(matches!(status.code(), Some(2 | 3)), "{status}");
    }
    let mut run = command(cache.path());
    let run = run.args(["run", &golden("llama"), "hi", "-v", "-n", "3"]);
    assert_eq!(run.stderr(full()).status().unwrap().code(), Some(0));
}

#[test]
#[cfg(unix)]
fn ctrl_c_keeps_the_partial_answer() {
    let (cache, model) = (TempDir::new().unwrap(), Altered::endless());
    for name in ["run", "generate"] {
        let mut child = endlessly(name, &cache, &model).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut start = [0; 3];
        stdout.read_exact(&mut start).unwrap();
        let mut kill = Command::new("kill");
        kill.args(["-INT", &child.id().to_string()]);
        assert!(kill.status().unwrap().success());
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(ends(&mut child), 130);
        assert!(rest.ends_with("A\n") || rest == "\n", "{rest:?}");
        let mut stderr = String::new();
        child.stderr.unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(stderr, "");
    }
}
