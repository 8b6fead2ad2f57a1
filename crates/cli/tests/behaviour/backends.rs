//! Backend selection.

use tempfile::TempDir;

use crate::support::{Outcome, command, golden, loquat};

#[test]
fn unknown_backend_is_refused_first() {
    let model = golden("llama");
    let words = ["`nope`", "auto, cpu, cuda, mlx"];
    for command in ["run", "generate", "inspect", "bench"] {
        loquat([command, &model, "--backend", "nope"]).refused(2, &words);
        // The default model would have to be downloaded first.
        loquat([command, "--backend", "nope"]).refused(2, &words);
    }
}

#[test]
fn backends_are_listed() {
    let list = loquat(["backends"]).quiet();
    let cpu = list.lines().find(|line| line.starts_with("cpu ")).unwrap();
    assert!(cpu.contains(" available "), "{cpu}");
}

#[test]
fn instruction_set_can_be_limited() {
    let (cache, model) = (TempDir::new().unwrap(), golden("llama"));
    let run = |set: &str, args: &[&str]| {
        let mut command = command(cache.path());
        Outcome::from(command.env("LOQUAT_ISA", set).args(args).output().unwrap())
    };
    let list = run("portable", &["backends"]).quiet();
    let cpu = list.lines().find(|line| line.starts_with("cpu ")).unwrap();
    assert!(cpu.contains("portable"), "{cpu}");

    let list = run("avx9", &["backends"]).quiet();
    let cpu = list.lines().find(|line| line.starts_with("cpu ")).unwrap();
    assert!(
        cpu.contains("unavailable") && cpu.contains("LOQUAT_ISA"),
        "{cpu}"
    );
    for args in [
        &["generate", &model, "hi", "-n2", "--backend", "cpu"][..],
        &["bench", "--machine"],
    ] {
        let outcome = run("avx9", args);
        assert_ne!(outcome.code, 0, "{args:?}");
        for part in ["LOQUAT_ISA", "avx9", "portable"] {
            assert!(
                outcome.stderr.contains(part),
                "{args:?}: {}",
                outcome.stderr
            );
        }
    }
}

/// A build without MLX refuses it with the reason; one with it runs and warns once that it is
/// experimental.
#[test]
fn mlx_runs_or_reports_why_not() {
    let list = loquat(["backends"]).quiet();
    let mlx = list.lines().find(|line| line.starts_with("mlx ")).unwrap();
    let (cache, model) = (TempDir::new().unwrap(), golden("llama"));
    let ask = || {
        let mut command = command(cache.path());
        let command = command.args(["run", &model, "hi", "-n2", "--backend=mlx"]);
        Outcome::from(command.output().unwrap())
    };
    let [first, second] = [ask(), ask()];
    if mlx.contains(" unavailable ") {
        let (_, reason) = mlx.split_once("unavailable").unwrap();
        first.refused(3, &["`mlx` cannot run on this machine", reason.trim()]);
        return;
    }
    assert_eq!(first.code, 0, "{}", first.stderr);
    let warning = "`mlx` is experimental";
    assert!(first.stderr.contains(warning), "{}", first.stderr);
    second.quiet();
}
