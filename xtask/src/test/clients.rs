//! Runs the tests of `clients/`: popular client programs against a real server.

use std::path::Path;

use super::{Context, FULL_VARIABLE, Note};
use crate::command::program;
use crate::error::Error;
use crate::packages::{Python, install_npm};
use crate::tools::require_browser_libraries;

const PYTHON: Python = Python {
    requirements: "clients/requirements.txt",
    folder: "target/clients",
    variables: &[],
};
/// Clients that are too large for every run.
const LARGE: Python = Python {
    requirements: "clients/full/requirements.txt",
    folder: "target/clients-full",
    variables: &[],
};
const LARGE_TESTS: &str = "clients/full";
const NPM: &[&str] = &["clients/node", "clients/agents", "clients/page"];
/// Where the browser tests write screenshots and logs, relative to the root.
const ARTEFACTS: &str = "target/clients/page";

pub fn install(root: &Path) -> Result<(), Error> {
    PYTHON.install(root)?;
    require_browser_libraries(root)?;
    NPM.iter().try_for_each(|folder| install_npm(root, folder))
}

pub fn run(context: &Context) -> Result<Note, Error> {
    let python = PYTHON.install(context.root)?;
    pytest(context, &python, &["clients", "--ignore", LARGE_TESTS])?;
    if context.is_full {
        let python = LARGE.install(context.root)?;
        pytest(context, &python, &[LARGE_TESTS])?;
    }
    Ok(None)
}

fn pytest(context: &Context, python: &Path, tests: &[&str]) -> Result<(), Error> {
    let root = context.root;
    let cache = format!("cache_dir={}", root.join("target/clients/pytest").display());
    let args = [&["-m", "pytest"], tests, &["--quiet", "-o", &cache]].concat();
    program(root, python, &args)
        .env("LOQUAT_BINARY", context.build.programs()?.join("loquat"))
        .env("LOQUAT_ARTEFACTS", root.join(ARTEFACTS))
        .env(FULL_VARIABLE, if context.is_full { "1" } else { "" })
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()
}
