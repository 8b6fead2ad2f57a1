//! The options of `cargo xtask compare`.

use std::path::{Path, PathBuf};

use super::instructions::{INSTRUCTION_SETS, InstructionSet, NATIVE};
use super::workloads::{FULL, QUICK, Workload};
use crate::error::Error;

const KNOWN: &str = "--threads, --rounds, --isa, --ik-llama-bench, --json, --svg, --quick";

#[derive(Debug, PartialEq)]
pub struct Options {
    pub model: PathBuf,
    pub threads: usize,
    pub rounds: usize,
    /// What both engines may use.
    pub instruction_set: &'static InstructionSet,
    /// ik_llama.cpp's `llama-bench`, built with the same instructions.
    pub ik_llama_bench: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub svg: Option<PathBuf>,
    pub quick: bool,
}

impl Options {
    /// Checks paths too, so that a bad one fails before the measurements.
    pub fn parse(args: &[String]) -> Result<Self, Error> {
        let (mut model, mut threads, mut rounds) = (None, None, None);
        let (mut json, mut svg, mut quick) = (None, None, false);
        let (mut instruction_set, mut ik_llama_bench) = (&NATIVE, None);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                let value = args.next();
                value.ok_or_else(|| usage(format!("{arg} needs a value")))
            };
            match arg.as_str() {
                "--threads" => threads = Some(count(arg, value()?)?),
                "--rounds" => rounds = Some(count(arg, value()?)?),
                "--isa" => instruction_set = parse_instruction_set(value()?)?,
                "--ik-llama-bench" => ik_llama_bench = Some(program_path(arg, value()?)?),
                "--json" => json = Some(output_path(arg, value()?)?),
                "--svg" => svg = Some(output_path(arg, value()?)?),
                "--quick" => quick = true,
                option if option.starts_with('-') => {
                    return Err(usage(format!(
                        "unknown option `{option}`; the options are {KNOWN}"
                    )));
                }
                path if model.is_none() => model = Some(PathBuf::from(path)),
                extra => {
                    return Err(usage(format!("takes one model, got `{extra}` too")));
                }
            }
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            model: model.ok_or_else(|| usage("needs a GGUF file".to_owned()))?,
            threads: threads.unwrap_or_else(cores),
            rounds: rounds.unwrap_or(if quick { 2 } else { 5 }),
            instruction_set,
            ik_llama_bench,
            json,
            svg,
            quick,
        })
    }

    pub fn workloads(&self) -> &'static [Workload] {
        if self.quick { QUICK } else { FULL }
    }
}

fn usage(problem: String) -> Error {
    Error::Usage {
        message: format!("compare: {problem}"),
    }
}

fn count(option: &str, value: &str) -> Result<usize, Error> {
    let count = value.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| {
        usage(format!(
            "{option} must be a whole number of at least 1, not `{value}`"
        ))
    })
}

fn parse_instruction_set(name: &str) -> Result<&'static InstructionSet, Error> {
    let found = INSTRUCTION_SETS.iter().find(|set| set.name == name);
    found.ok_or_else(|| {
        let names = INSTRUCTION_SETS.each_ref().map(|set| set.name);
        usage(format!(
            "--isa must be one of {}, not `{name}`",
            names.join(", ")
        ))
    })
}

/// The absolute path of a program.
fn program_path(option: &str, value: &str) -> Result<PathBuf, Error> {
    let path = std::fs::canonicalize(value)
        .ok()
        .filter(|path| path.is_file());
    path.ok_or_else(|| usage(format!("{option}: `{value}` is not a program")))
}

/// The absolute path of a file to write, in an existing folder.
fn output_path(option: &str, value: &str) -> Result<PathBuf, Error> {
    let invalid = || {
        usage(format!(
            "{option}: `{value}` is not a file in an existing folder"
        ))
    };
    let path = std::path::absolute(value).map_err(|_| invalid())?;
    let is_writable = path.parent().is_some_and(Path::is_dir) && !path.is_dir();
    is_writable.then_some(path).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_in_any_order() {
        let options = parse("--rounds 3 m.gguf --threads 4 --json out.json --svg out.svg").unwrap();
        let absolute = |name| Some(std::path::absolute(name).unwrap());
        let expected = Options {
            model: "m.gguf".into(),
            threads: 4,
            rounds: 3,
            instruction_set: &NATIVE,
            ik_llama_bench: None,
            json: absolute("out.json"),
            svg: absolute("out.svg"),
            quick: false,
        };
        assert_eq!(options, expected);
        let (full, quick) = (parse("m.gguf").unwrap(), parse("m.gguf --quick").unwrap());
        assert!(full.threads > 0 && full.json.is_none() && full.svg.is_none());
        assert_eq!((full.rounds, quick.rounds), (5, 2));
        assert!(full.workloads().len() > quick.workloads().len());
        assert_eq!(parse("--quick --rounds 7 m.gguf").unwrap().rounds, 7);
        let avx2 = parse("m.gguf --isa avx2").unwrap().instruction_set;
        assert!(avx2.name == "avx2" && avx2.cmake_args.contains("-DGGML_AVX2=ON"));
        assert!(avx2.cmake_args.contains("-DGGML_NATIVE=OFF") && avx2.folder != NATIVE.folder);
    }

    #[test]
    fn bad_options_are_refused_by_name() {
        for (line, named) in [
            ("", "needs a GGUF file"),
            ("a.gguf b.gguf", "`b.gguf`"),
            ("a.gguf --rounds", "--rounds needs a value"),
            ("a.gguf --rounds 0", "at least 1, not `0`"),
            ("a.gguf --threads two", "--threads must be"),
            ("a.gguf --fast", "`--fast`"),
            (
                "a.gguf --isa avx9",
                "one of portable, avx2, avxvnni, avx512, not `avx9`",
            ),
            (
                "a.gguf --ik-llama-bench no-such-program",
                "`no-such-program`",
            ),
            ("a.gguf --json no-such-folder/x.json", "no-such-folder"),
            ("a.gguf --svg /", "--svg"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(message.contains(named), "{line}: {message}");
        }
    }
}
