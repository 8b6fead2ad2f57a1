//! Runs each fuzz target for a bounded time, starting from its seeds.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Context, Note};
use crate::command::program;
use crate::error::Error;
use crate::tools::{Tool, require_cxx_compiler};

const CARGO_FUZZ: Tool = Tool {
    name: "cargo-fuzz",
    version: "0.13.2",
};
const SECONDS_PER_TARGET: u32 = 20;
/// The time limit of one input, without which a hang would never end.
const SECONDS_PER_INPUT: u32 = 10;
/// The memory limit of one input: a template may write 256 MiB and hold a copy.
const MEGABYTES_PER_INPUT: u32 = 1024;

/// Where new inputs are written, relative to the root.
const CORPUS: &str = "target/fuzz-corpus";

pub fn run(context: &Context) -> Result<Note, Error> {
    let root = context.root;
    let targets = targets(&root.join("fuzz"))?;
    require_cxx_compiler(root)?;
    let cargo_fuzz = CARGO_FUZZ.find_or_install(root)?;
    for target in &targets {
        // libFuzzer writes new inputs to the first directory and only reads the second, so the
        // seeds in the tree do not change.
        let corpus = format!("{CORPUS}/{target}");
        empty_directory(&root.join(&corpus))?;
        let seeds = format!("fuzz/seeds/{target}");
        let total_time = format!("-max_total_time={SECONDS_PER_TARGET}");
        let timeout = format!("-timeout={SECONDS_PER_INPUT}");
        let memory = format!("-rss_limit_mb={MEGABYTES_PER_INPUT}");
        // The sanitizers need a nightly compiler; coverage and overflow checks do not.
        let target_args = ["run", "--sanitizer", "none", target, &corpus, &seeds, "--"];
        let fuzzer_args = [
            &total_time,
            &timeout,
            &memory,
            "-verbosity=0",
            "-print_final_stats=1",
        ];
        program(
            root,
            &cargo_fuzz,
            &[&target_args[..], &fuzzer_args].concat(),
        )
        .run()?;
    }
    let count = targets.len();
    Ok(Some(format!(
        "{count} targets, {SECONDS_PER_TARGET} s each"
    )))
}

/// The targets that `fuzz/Cargo.toml` declares. No targets, or a target without seeds, is an error:
/// the stage would pass without testing anything.
fn targets(fuzz: &Path) -> Result<Vec<String>, Error> {
    let targets = declared_binaries(&fuzz.join("Cargo.toml"))?;
    if targets.is_empty() {
        return Err(Error::Missing {
            what: "any fuzz target".to_string(),
            remedy: "declare one as [[bin]] in fuzz/Cargo.toml".to_string(),
        });
    }
    for name in &targets {
        if entries(&fuzz.join("seeds").join(name))?.is_empty() {
            return Err(Error::Missing {
                what: format!("a seed for the fuzz target `{name}`"),
                remedy: format!("put at least one valid input into fuzz/seeds/{name}/"),
            });
        }
    }
    Ok(targets)
}

fn declared_binaries(manifest: &Path) -> Result<Vec<String>, Error> {
    let text = fs::read_to_string(manifest).map_err(|source| Error::Io {
        path: manifest.to_path_buf(),
        source,
    })?;
    let table: toml::Table = toml::from_str(&text).map_err(|source| Error::Manifest {
        path: manifest.to_path_buf(),
        source,
    })?;
    let binaries = table.get("bin").and_then(toml::Value::as_array);
    let names = binaries
        .into_iter()
        .flatten()
        .filter_map(|binary| binary.get("name")?.as_str());
    Ok(names.map(str::to_string).collect())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect()
    };
    read().map_err(|source| Error::Io {
        path: directory.to_path_buf(),
        source,
    })
}

fn empty_directory(path: &Path) -> Result<(), Error> {
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    if path.exists() {
        fs::remove_dir_all(path).map_err(io)?;
    }
    fs::create_dir_all(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn target_without_seed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let fuzz = dir.path();
        let manifest = || fuzz.join("Cargo.toml");
        assert!(matches!(targets(fuzz), Err(Error::Io { .. })));

        write(manifest(), "[[bin");
        assert!(matches!(targets(fuzz), Err(Error::Manifest { .. })));

        write(manifest(), "[package]\nname = 'f'");
        assert!(matches!(targets(fuzz), Err(Error::Missing { .. })));

        write(
            manifest(),
            "[[bin]]\nname = 'gguf'\npath = 'targets/gguf.rs'",
        );
        assert!(matches!(targets(fuzz), Err(Error::Io { .. })));

        fs::create_dir_all(fuzz.join("seeds/gguf")).unwrap();
        let message = targets(fuzz).unwrap_err().to_string();
        assert!(message.contains("fuzz/seeds/gguf/"), "{message}");

        write(fuzz.join("seeds/gguf/one"), "x");
        assert_eq!(targets(fuzz).unwrap(), ["gguf"]);
    }

    #[test]
    fn empty_directory_removes_files() {
        let dir = tempfile::tempdir().unwrap();
        let corpus = dir.path().join("corpus");
        write(corpus.join("old"), "x");
        empty_directory(&corpus).unwrap();
        assert_eq!(entries(&corpus).unwrap(), Vec::<PathBuf>::new());
    }
}
