//! Compares Loquat with llama.cpp: the same file, workloads and threads, in one run.
//!
//! A round measures the machine's limits, which vary over time on shared machines, and then runs
//! one process of each engine, in alternating order, so that neither engine holds memory or cores
//! while the other is measured. Results are medians over rounds; ratios are computed per round.

mod instructions;
mod options;
mod report;
mod rounds;
mod workloads;

use std::env::consts::EXE_SUFFIX;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::command::{Cmd, cargo, program};
use crate::error::Error;
use crate::packages::Python;
use crate::tools::require_cxx_compiler;
use instructions::InstructionSet;
use options::Options;
use report::Comparison;
use rounds::{MachineLimits, Measurement, Round};
use workloads::Workload;

const REQUIREMENTS: &str = "judges/speed/requirements.txt";
const SCRIPT: &str = "judges/speed/llama_cpp_workloads.py";
/// The magic bytes of GGUF files.
const MAGIC: &[u8; 4] = b"GGUF";

pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    let options = Options::parse(args)?;
    let model = validate_model(&options.model)?;
    let engines = Engines {
        root,
        python: install_llama_cpp(root, options.instruction_set)?,
        loquat: build_loquat(root)?,
        model: &model,
        options: &options,
    };
    let file_bytes = warm_page_cache(&model)?;
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
        instruction_set: options.instruction_set.name,
        workloads: options.workloads(),
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

/// The absolute path of a GGUF file.
fn validate_model(path: &Path) -> Result<PathBuf, Error> {
    let invalid = |problem: String| Error::Model {
        path: path.to_owned(),
        problem,
    };
    let mut magic = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(invalid(error.to_string())),
        Ok(()) if &magic == MAGIC => {
            return fs::canonicalize(path).map_err(|error| invalid(error.to_string()));
        }
        Ok(()) => {}
    }
    Err(invalid(
        "not a GGUF file, which both engines need".to_owned(),
    ))
}

/// Reads the whole file, so that both engines load it from memory, and returns its size.
fn warm_page_cache(model: &Path) -> Result<u64, Error> {
    let read = File::open(model).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    read.map_err(|source| Error::Io {
        path: model.to_owned(),
        source,
    })
}

/// The Python interpreter with llama.cpp, which is built on first use.
fn install_llama_cpp(root: &Path, set: &InstructionSet) -> Result<PathBuf, Error> {
    require_cxx_compiler(root)?;
    let folder = set.folder;
    eprintln!("llama.cpp: installing in {folder}; the first build takes some minutes");
    let llama_cpp = Python {
        requirements: REQUIREMENTS,
        folder,
        variables: &[
            ("CMAKE_ARGS", set.cmake_args),
            // The cache may hold a build for another machine.
            ("PIP_NO_CACHE_DIR", "1"),
        ],
    };
    llama_cpp.install(root).map_err(|error| match error {
        Error::Command { .. } => Error::LlamaCpp {
            source: Box::new(error),
        },
        error => error,
    })
}

fn build_loquat(root: &Path) -> Result<PathBuf, Error> {
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
        let machine = self.machine_limits()?;
        let workloads = self.options.workloads();
        let measure = |cmd: Cmd| Measurement::from_json(&json_output(cmd)?, workloads);
        // The first engine runs on a cooler machine, so the order alternates.
        let (llama_cpp, loquat) = if round.is_multiple_of(2) {
            let llama_cpp = measure(self.llama_cpp_command())?;
            (llama_cpp, measure(self.loquat_command())?)
        } else {
            let loquat = measure(self.loquat_command())?;
            (measure(self.llama_cpp_command())?, loquat)
        };
        Ok(Round {
            machine,
            llama_cpp,
            loquat,
            ik_llama_cpp: self.ik_llama_cpp_speeds()?,
        })
    }

    fn machine_limits(&self) -> Result<MachineLimits, Error> {
        let threads = self.options.threads.to_string();
        let args = ["bench", "--machine", "--json", "--threads", &threads];
        MachineLimits::from_json(&json_output(self.loquat(&args))?)
    }

    fn loquat_command(&self) -> Cmd {
        let mut args = vec!["bench".to_owned()];
        args.extend(self.shared_args());
        args.extend(["--backend", "cpu", "--json"].map(str::to_owned));
        self.loquat(&args)
    }

    /// Our program, held to the instruction set.
    fn loquat<S: AsRef<OsStr>>(&self, args: &[S]) -> Cmd {
        let isa = self.options.instruction_set.name;
        program(self.root, &self.loquat, args).env("LOQUAT_ISA", isa)
    }

    /// Runs ik_llama.cpp with its own layout of weights (`-rtr 1`), if it is given.
    fn ik_llama_cpp_speeds(&self) -> Result<Option<Vec<Option<f64>>>, Error> {
        let Some(bench) = &self.options.ik_llama_bench else {
            return Ok(None);
        };
        let workloads = self.options.workloads();
        let tokens = workloads.iter().filter_map(Workload::llama_bench_tokens);
        let (prompts, replies): (Vec<_>, Vec<_>) = tokens.partition(|(_, reply)| *reply == 0);
        let list = |tokens: Vec<usize>| -> String {
            let tokens: Vec<String> = tokens.iter().map(usize::to_string).collect();
            tokens.join(",")
        };
        let args = [
            "-m".to_owned(),
            self.model.to_string_lossy().into_owned(),
            "-p".to_owned(),
            list(prompts.into_iter().map(|(prompt, _)| prompt).collect()),
            "-n".to_owned(),
            list(replies.into_iter().map(|(_, reply)| reply).collect()),
            "-t".to_owned(),
            self.options.threads.to_string(),
            "-rtr".to_owned(),
            "1".to_owned(),
            "-r".to_owned(),
            "1".to_owned(),
            "-o".to_owned(),
            "json".to_owned(),
        ];
        let report = json_output(program(self.root, bench, &args))?;
        rounds::llama_bench_speeds(&report, workloads).map(Some)
    }

    fn llama_cpp_command(&self) -> Cmd {
        let mut args = vec![SCRIPT.to_owned()];
        args.extend(self.shared_args());
        program(self.root, &self.python, &args)
    }

    /// The arguments that both programs take.
    fn shared_args(&self) -> Vec<String> {
        let workloads = self.options.workloads().iter();
        let names: Vec<&str> = workloads.map(|workload| workload.name).collect();
        vec![
            self.model.to_string_lossy().into_owned(),
            "--threads".to_owned(),
            self.options.threads.to_string(),
            "--work".to_owned(),
            names.join(","),
        ]
    }

    /// Draws with `loquat bench --draw`.
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
        program(self.root, &self.loquat, &args).run_quiet()
    }
}

/// Parses the output of a command as JSON.
fn json_output(cmd: Cmd) -> Result<Value, Error> {
    let command = cmd.command_line();
    let text = cmd.output()?;
    serde_json::from_str(&text).map_err(|error| Error::UnexpectedOutput {
        command,
        problem: format!("not JSON: {error}"),
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
    fn non_gguf_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        for (path, problem) in [
            (folder.path().join("absent.gguf"), "No such file"),
            (folder.path().to_owned(), "directory"),
            (file("empty.gguf", b""), "not a GGUF file"),
            (file("short.gguf", b"GGU"), "not a GGUF file"),
            (
                file("other.gguf", b"{\"model_type\": 1}"),
                "not a GGUF file",
            ),
        ] {
            let args = [path.to_string_lossy().into_owned()];
            let message = run(folder.path(), &args).unwrap_err().to_string();
            let path = path.display().to_string();
            assert!(
                message.contains(problem) && message.contains(&path),
                "{message}"
            );
        }
        let valid = file("valid.gguf", b"GGUF\x03\0\0\0");
        assert_eq!(warm_page_cache(&valid).unwrap(), 8);
        assert!(validate_model(&valid).unwrap().is_absolute());
    }

    #[test]
    fn failing_engine_is_named() {
        let root = std::env::temp_dir();
        let failed = json_output(program(&root, "false", &["x"])).unwrap_err();
        assert!(failed.to_string().contains("`false x` failed"), "{failed}");
        let text = json_output(program(&root, "echo", &["hello"])).unwrap_err();
        assert!(text.to_string().contains("not JSON"), "{text}");
    }
}
