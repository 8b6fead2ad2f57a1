//! The programs that people already have: the tests of `clients/`, against a real server.

use std::path::Path;

use super::{Context, Note};
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

pub fn install(root: &Path) -> Result<(), Error> {
    PYTHON.install(root)?;
    require_browser_libraries(root)?;
    NPM.iter().try_for_each(|folder| install_npm(root, folder))
}

pub fn run(context: &Context) -> Result<Note, Error> {
    let root = context.root;
    let python = PYTHON.install(root)?;
    let cache = format!("cache_dir={}", root.join("target/clients/pytest").display());
    let args = ["-m", "pytest", "clients", "--quiet", "-o", &cache];
    program(root, &python, &args)
        .env("LOQUAT_BINARY", context.build.programs()?.join("loquat"))
        .env("LOQUAT_ARTEFACTS", root.join(ARTEFACTS))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()?;
    Ok(None)
}
