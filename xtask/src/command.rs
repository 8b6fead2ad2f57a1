//! Running other programs, with their output left on the terminal.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// A command that knows how to show itself in an error.
pub struct Run {
    command: Command,
}

/// A program by name or path, run in `directory`.
pub fn program<S: AsRef<OsStr>>(directory: &Path, program: impl AsRef<OsStr>, args: &[S]) -> Run {
    let mut command = Command::new(program);
    command.current_dir(directory).args(args);
    Run { command }
}

/// The cargo that started this program.
pub fn cargo<S: AsRef<OsStr>>(directory: &Path, args: &[S]) -> Run {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    program(directory, cargo, args)
}

impl Run {
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(key, value);
        self
    }

    /// Prints the command, runs it to its end and fails unless it succeeds.
    pub fn run(self) -> Result<(), Error> {
        println!("$ {}", self.shown());
        self.finish()
    }

    /// The same, leaving stdout to the command alone.
    pub fn finish(mut self) -> Result<(), Error> {
        let shown = self.shown();
        let status = self.command.status().map_err(|source| Error::Start {
            command: shown.clone(),
            source,
        })?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Command {
                command: shown,
                status,
            })
        }
    }

    /// Runs it to its end and returns what it printed; its stderr stays on the terminal.
    pub fn output(mut self) -> Result<String, Error> {
        let shown = self.shown();
        let output = self.command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|source| Error::Start {
            command: shown.clone(),
            source,
        })?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(Error::Command {
                command: shown,
                status: output.status,
            })
        }
    }

    /// What the command prints, or `None` if it is not there or fails: a quiet look around.
    pub fn probe(mut self) -> Option<String> {
        let output = self.command.stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    pub fn shown(&self) -> String {
        let program = Path::new(self.command.get_program());
        let name = program.file_name().unwrap_or(program.as_os_str());
        std::iter::once(name)
            .chain(self.command.get_args())
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_failure_and_absence_are_told_apart() {
        let root = std::env::temp_dir();
        assert!(program(&root, "true", &[""; 0]).run().is_ok());
        assert!(matches!(
            program(&root, "false", &["x"]).run(),
            Err(Error::Command { command, .. }) if command == "false x"
        ));
        assert!(matches!(
            program(&root, "no-such-program", &[""; 0]).run(),
            Err(Error::Start { .. })
        ));
    }

    #[test]
    fn output_is_returned_only_on_success() {
        let root = std::env::temp_dir();
        let answer = program(&root, "echo", &["hi"]).output();
        assert_eq!(answer.unwrap(), "hi\n");
        let failed = program(&root, "false", &[""; 0]).output();
        assert!(matches!(failed, Err(Error::Command { .. })));
    }

    #[test]
    fn a_probe_answers_with_output_only_on_success() {
        let root = std::env::temp_dir();
        assert_eq!(
            program(&root, "echo", &["hi"]).probe().as_deref(),
            Some("hi\n")
        );
        assert_eq!(program(&root, "false", &[""; 0]).probe(), None);
        assert_eq!(program(&root, "no-such-program", &[""; 0]).probe(), None);
    }
}
