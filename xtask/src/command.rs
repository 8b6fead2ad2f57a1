//! Runs other programs with their output on the terminal.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// A command whose errors name its command line.
pub struct Cmd {
    command: Command,
}

/// A program by name or path, run in `directory`.
pub fn program<S: AsRef<OsStr>>(directory: &Path, program: impl AsRef<OsStr>, args: &[S]) -> Cmd {
    let mut command = Command::new(program);
    command.current_dir(directory).args(args);
    Cmd { command }
}

/// The cargo that started this program.
pub fn cargo<S: AsRef<OsStr>>(directory: &Path, args: &[S]) -> Cmd {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    program(directory, cargo, args)
}

impl Cmd {
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.command.env(key, value);
        self
    }

    /// Prints the command and runs it to its end.
    pub fn run(self) -> Result<(), Error> {
        println!("$ {}", self.command_line());
        self.run_quiet()
    }

    /// Runs the command to its end without printing it.
    pub fn run_quiet(mut self) -> Result<(), Error> {
        let command = self.command_line();
        let status = self.command.status().map_err(|source| Error::Start {
            command: command.clone(),
            source,
        })?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Command { command, status })
        }
    }

    /// Runs the command to its end and returns its stdout; stderr goes to the terminal.
    pub fn output(mut self) -> Result<String, Error> {
        let command = self.command_line();
        let output = self.command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|source| Error::Start {
            command: command.clone(),
            source,
        })?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(Error::Command {
                command,
                status: output.status,
            })
        }
    }

    /// The stdout of the command, or `None` if it is missing or fails.
    pub fn probe(mut self) -> Option<String> {
        let output = self.command.stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    pub fn command_line(&self) -> String {
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
    fn failed_and_missing_programs_are_errors() {
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
        let output = program(&root, "echo", &["hi"]).output();
        assert_eq!(output.unwrap(), "hi\n");
        let failed = program(&root, "false", &[""; 0]).output();
        assert!(matches!(failed, Err(Error::Command { .. })));
    }

    #[test]
    fn probe_returns_output_only_on_success() {
        let root = std::env::temp_dir();
        assert_eq!(
            program(&root, "echo", &["hi"]).probe().as_deref(),
            Some("hi\n")
        );
        assert_eq!(program(&root, "false", &[""; 0]).probe(), None);
        assert_eq!(program(&root, "no-such-program", &[""; 0]).probe(), None);
    }
}
