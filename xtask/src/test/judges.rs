//! References that nobody here wrote: the programs of `judges/`, each of which asks Loquat and a
//! Python package the same and compares, in a virtual environment of this checkout's own.

use std::fs;
use std::path::{Path, PathBuf};

use super::Note;
use super::tools::require_python;
use crate::command::program;
use crate::error::Error;

/// What each program judges, it says itself.
const JUDGES: &[&str] = &[
    "mistral_rendering",
    "mistral_parsing",
    "harmony_rendering",
    "harmony_parsing",
    "structured",
];

const REQUIREMENTS: &str = "judges/requirements.txt";
/// Relative to the root, as the rest.
const ENVIRONMENT: &str = "target/judges/python";
/// The requirements as they were when the environment was made, written when all are installed.
const INSTALLED: &str = "target/judges/installed.txt";
const VOCABULARIES: &str = "target/judges/vocabularies";
/// Where openai-harmony looks for vocabularies before it would download them.
const VOCABULARIES_VARIABLE: &str = "TIKTOKEN_ENCODINGS_BASE";

const CORPUS: &str = "../shared/templates";
const NO_CORPUS: &str = "real templates: NOT CHECKED (../shared is not there)";

/// Every judge is heard, even after one objects.
pub fn run(root: &Path) -> Result<Note, Error> {
    let python = environment(root)?;
    let vocabularies = root.join(VOCABULARIES);
    let judge = |name: &str| {
        program(root, &python, &[format!("judges/{name}.py")])
            .env(VOCABULARIES_VARIABLE, &vocabularies)
            .run()
    };
    program(root, &python, &["judges/vocabulary.py", VOCABULARIES]).run()?;
    let verdicts: Vec<_> = JUDGES.iter().map(|name| judge(name)).collect();
    verdicts.into_iter().collect::<Result<(), Error>>()?;
    let is_whole = root.join(CORPUS).is_dir();
    Ok((!is_whole).then(|| NO_CORPUS.to_string()))
}

/// The environment's Python, with everything installed; made anew when the requirements change.
fn environment(root: &Path) -> Result<PathBuf, Error> {
    let python = root.join(ENVIRONMENT).join("bin/python");
    if is_current(root)? && program(root, &python, &["--version"]).probe().is_some() {
        return Ok(python);
    }
    let base = require_python(root)?;
    println!("{REQUIREMENTS}: installing into {ENVIRONMENT}");
    program(root, base, &["-m", "venv", "--clear", ENVIRONMENT]).run()?;
    let install = ["-m", "pip", "install", "--requirement", REQUIREMENTS];
    let quietly = ["--quiet", "--disable-pip-version-check", "--no-input"];
    program(root, &python, &[&install[..], &quietly].concat()).run()?;
    copy(&root.join(REQUIREMENTS), &root.join(INSTALLED))?;
    Ok(python)
}

fn is_current(root: &Path) -> Result<bool, Error> {
    let wanted = root.join(REQUIREMENTS);
    let wanted = fs::read(&wanted).map_err(|source| Error::Io {
        path: wanted,
        source,
    })?;
    let installed = fs::read(root.join(INSTALLED));
    Ok(installed.is_ok_and(|installed| installed == wanted))
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::copy(from, to).map(drop).map_err(|source| Error::Io {
        path: to.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_current_for_the_very_requirements_it_was_made_from() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(matches!(is_current(root), Err(Error::Io { .. })));

        for folder in ["judges", "target/judges"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join(REQUIREMENTS), "some==1\n").unwrap();
        assert!(!is_current(root).unwrap());

        copy(&root.join(REQUIREMENTS), &root.join(INSTALLED)).unwrap();
        assert!(is_current(root).unwrap());

        fs::write(root.join(REQUIREMENTS), "some==2\n").unwrap();
        assert!(!is_current(root).unwrap());
    }

    #[test]
    fn every_judge_has_its_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../judges");
        for name in JUDGES {
            assert!(folder.join(format!("{name}.py")).is_file(), "{name}");
        }
    }
}
