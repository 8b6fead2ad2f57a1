//! Loquat beside llama.cpp: the same file, the same works, the same threads, in one run.
//!
//! Each round is one process of each engine, in alternating order, so that neither holds memory
//! or cores while the other is measured, and the machine's own limits, which change from hour to
//! hour where machines are shared. What is said of the two are medians over rounds, and medians
//! of the rounds' own ratios.

mod options;
mod report;
mod rounds;
mod works;

use std::env::consts::EXE_SUFFIX;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::command::{Run, cargo, program};
use crate::error::Error;
use crate::installed::Python;
use crate::tools::require_cxx_compiler;
use options::Options;
use report::Comparison;
use rounds::{Machine, Measured, Round};

const LLAMA_CPP: Python = Python {
    requirements: "judges/speed/requirements.txt",
    folder: "target/compare",
    variables: &[
        ("CMAKE_ARGS", "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release"),
        // A build for another machine may lie there.
        ("PIP_NO_CACHE_DIR", "1"),
    ],
};
const PROGRAM: &str = "judges/speed/llama_cpp_works.py";
/// The first bytes of every GGUF file.
const MAGIC: &[u8; 4] = b"GGUF";

pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    let options = Options::parse(args)?;
    let model = checked_model(&options.model)?;
    let engines = Engines {
        root,
        python: llama_cpp(root)?,
        loquat: loquat(root)?,
        model: &model,
        options: &options,
    };
    // Both find the file in the page cache, as they do when a model is started again.
    let file_bytes = read_through(&model)?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let started = Instant::now();
        rounds.push(engines.round(round)?);
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("round {} of {}: {seconds:.0} s", round + 1, options.rounds);
    }
    let comparison = Comparison {
        model: file_name(&model),
        file_bytes,
        threads: options.threads,
        works: options.works(),
        rounds,
    };
    print!("{}", comparison.markdown());
    if let Some(path) = &options.json {
        write(path, &comparison.json())?;
    }
    match &options.svg {
        Some(path) => engines.draw(&comparison.figure(), path),
        None => Ok(()),
    }
}

/// The file's full path, if it is one that both engines can be asked to load.
fn checked_model(path: &Path) -> Result<PathBuf, Error> {
    let refused = |why: String| Error::Model {
        path: path.to_owned(),
        why,
    };
    let mut magic = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(refused(error.to_string())),
        Ok(()) if &magic == MAGIC => {
            return fs::canonicalize(path).map_err(|error| refused(error.to_string()));
        }
        Ok(()) => {}
    }
    Err(refused(
        "is not a GGUF file, which is what both engines read".to_owned(),
    ))
}

fn read_through(model: &Path) -> Result<u64, Error> {
    let read = File::open(model).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    read.map_err(|source| Error::Io {
        path: model.to_owned(),
        source,
    })
}

/// The interpreter that has llama.cpp, which is built the first time.
fn llama_cpp(root: &Path) -> Result<PathBuf, Error> {
    require_cxx_compiler(root)?;
    eprintln!("llama.cpp: in target/compare; the first time it is built, which takes some minutes");
    LLAMA_CPP.install(root).map_err(|error| match error {
        Error::Command { .. } => Error::LlamaCpp {
            source: Box::new(error),
        },
        error => error,
    })
}

fn loquat(root: &Path) -> Result<PathBuf, Error> {
    cargo(root, &["build", "--release", "--package", "loquat-cli"]).run()?;
    Ok(root.join(format!("target/release/loquat{EXE_SUFFIX}")))
}

struct Engines<'a> {
    root: &'a Path,
    python: PathBuf,
    loquat: PathBuf,
    model: &'a Path,
    options: &'a Options,
}

impl Engines<'_> {
    fn round(&self, round: usize) -> Result<Round, Error> {
        let machine = self.machine()?;
        let works = self.options.works();
        let measured = |run: Run| Measured::read(&answer(run)?, works);
        // Whoever is first finds a machine that has rested.
        let (theirs, ours) = if round.is_multiple_of(2) {
            let theirs = measured(self.theirs())?;
            (theirs, measured(self.ours())?)
        } else {
            let ours = measured(self.ours())?;
            (measured(self.theirs())?, ours)
        };
        Ok(Round {
            machine,
            theirs,
            ours,
        })
    }

    fn machine(&self) -> Result<Machine, Error> {
        let threads = self.options.threads.to_string();
        let args = ["bench", "--machine", "--json", "--threads", &threads];
        Machine::read(&answer(program(self.root, &self.loquat, &args))?)
    }

    fn ours(&self) -> Run {
        let mut args = vec!["bench".to_owned()];
        args.extend(self.work());
        args.extend(["--backend", "cpu", "--json"].map(str::to_owned));
        program(self.root, &self.loquat, &args)
    }

    fn theirs(&self) -> Run {
        let mut args = vec![PROGRAM.to_owned()];
        args.extend(self.work());
        program(self.root, &self.python, &args)
    }

    /// What both are asked, in the same words.
    fn work(&self) -> Vec<String> {
        let works: Vec<&str> = self.options.works().iter().map(|work| work.name).collect();
        vec![
            self.model.to_string_lossy().into_owned(),
            "--threads".to_owned(),
            self.options.threads.to_string(),
            "--work".to_owned(),
            works.join(","),
        ]
    }

    /// By the drawing of `loquat bench`, which has it for its own scenarios.
    fn draw(&self, figure: &Value, path: &Path) -> Result<(), Error> {
        let folder = tempfile::tempdir().map_err(|source| Error::Io {
            path: std::env::temp_dir(),
            source,
        })?;
        let description = folder.path().join("figure.json");
        write(&description, figure)?;
        let args = [
            "bench".as_ref(),
            "--draw".as_ref(),
            description.as_os_str(),
            "--svg".as_ref(),
            path.as_os_str(),
        ];
        program(self.root, &self.loquat, &args).finish()
    }
}

/// What a program answers, as JSON.
fn answer(run: Run) -> Result<Value, Error> {
    let command = run.shown();
    let text = run.output()?;
    serde_json::from_str(&text).map_err(|error| Error::Answer {
        command,
        what: format!("no JSON: {error}"),
    })
}

fn write(path: &Path, value: &Value) -> Result<(), Error> {
    fs::write(path, format!("{value:#}\n")).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_gguf_file_is_refused_by_name_before_anything_is_built() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        for (path, why) in [
            (folder.path().join("absent.gguf"), "No such file"),
            (folder.path().to_owned(), "directory"),
            (file("empty.gguf", b""), "is not a GGUF file"),
            (file("short.gguf", b"GGU"), "is not a GGUF file"),
            (
                file("other.gguf", b"{\"model_type\": 1}"),
                "is not a GGUF file",
            ),
        ] {
            let args = [path.to_string_lossy().into_owned()];
            let message = run(folder.path(), &args).unwrap_err().to_string();
            let shown = path.display().to_string();
            assert!(
                message.contains(why) && message.contains(&shown),
                "{message}"
            );
        }
        let sound = file("sound.gguf", b"GGUF\x03\0\0\0");
        assert_eq!(read_through(&sound).unwrap(), 8);
        assert!(checked_model(&sound).unwrap().is_absolute());
    }

    #[test]
    fn an_engine_that_fails_or_answers_otherwise_is_named() {
        let root = std::env::temp_dir();
        let failed = answer(program(&root, "false", &["x"])).unwrap_err();
        assert!(failed.to_string().contains("`false x` failed"), "{failed}");
        let text = answer(program(&root, "echo", &["hello"])).unwrap_err();
        assert!(text.to_string().contains("no JSON"), "{text}");
    }
}
