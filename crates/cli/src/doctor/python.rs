//! The Python whose pip downloads models from Python packages.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loquat_store::PYTHON_VARIABLE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Python {
    /// pip's version line.
    Pip(String),
    /// A Python without a working pip.
    NoPip(PathBuf),
    Missing(Vec<PathBuf>),
}

pub fn find() -> Python {
    let configured = std::env::var_os(PYTHON_VARIABLE).filter(|value| !value.is_empty());
    let names = match configured {
        Some(python) => vec![PathBuf::from(python)],
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
    let mut child = KillOnDrop(command.stdout(Stdio::piped()).spawn()?);
    child.wait()?;
    let mut text = String::new();
    if let Some(stdout) = &mut child.0.stdout {
        stdout.read_to_string(&mut text)?;
    }
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

/// A process that is killed when dropped.
struct KillOnDrop(Child);

impl KillOnDrop {
    /// Fails unless it succeeds within the timeout. Its output fits into the pipe.
    fn wait(&mut self) -> std::io::Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(5);
        const POLL: Duration = Duration::from_millis(10);
        let deadline = Instant::now() + TIMEOUT;
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

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
