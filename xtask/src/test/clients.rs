//! The programs that people already have: the tests of `clients/`, against a real server.

use std::path::Path;

use super::Note;
use crate::command::program;
use crate::error::Error;
use crate::installed::{Python, install_npm};
use crate::tools::require_browser_libraries;

const PYTHON: Python = Python {
    requirements: "clients/requirements.txt",
    folder: "target/clients",
    variables: &[],
};
const NPM: &[&str] = &["clients/node", "clients/page"];
/// Where the browser's tests leave what they saw, relative to the root.
const ARTEFACTS: &str = "target/clients/page";

pub fn run(root: &Path) -> Result<Note, Error> {
    let python = PYTHON.install(root)?;
    require_browser_libraries(root)?;
    for folder in NPM {
        install_npm(root, folder)?;
    }
    let cache = format!("cache_dir={}", root.join("target/clients/pytest").display());
    let args = ["-m", "pytest", "clients", "--quiet", "-o", &cache];
    program(root, &python, &args)
        .env("LOQUAT_ARTEFACTS", root.join(ARTEFACTS))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()?;
    Ok(None)
}
