//! Packages that a folder of ours lists, installed for this checkout alone and anew whenever the
//! list has changed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::program;
use crate::error::Error;
use crate::tools::{require_node, require_python};

/// A Python environment. Paths are relative to the root.
pub struct Python {
    pub requirements: &'static str,
    /// Where the environment and a copy of what it was made from are kept.
    pub folder: &'static str,
    /// What packages that are built here are to be told.
    pub variables: &'static [(&'static str, &'static str)],
}

impl Python {
    /// The environment's interpreter, with everything installed.
    pub fn install(&self, root: &Path) -> Result<PathBuf, Error> {
        let Self {
            requirements,
            folder,
            variables,
        } = self;
        let environment = format!("{folder}/python");
        let python = root.join(&environment).join("bin/python");
        let record = Record {
            wanted: root.join(requirements),
            installed: root.join(folder).join("installed.txt"),
        };
        if record.is_current()? && program(root, &python, &["--version"]).probe().is_some() {
            return Ok(python);
        }
        let base = require_python(root)?;
        println!("{requirements}: installing into {environment}");
        program(root, base, &["-m", "venv", "--clear", &environment]).run()?;
        let install = ["-m", "pip", "install", "--requirement", requirements];
        let quietly = ["--quiet", "--disable-pip-version-check", "--no-input"];
        let pip = program(root, &python, &[&install[..], &quietly].concat());
        let told = variables.iter();
        told.fold(pip, |pip, (key, value)| pip.env(key, value))
            .run()?;
        record.write()?;
        Ok(python)
    }
}

/// The packages of a folder that has a `package.json` and its lock file, beside them.
pub fn install_npm(root: &Path, folder: &str) -> Result<(), Error> {
    let directory = root.join(folder);
    let record = Record {
        wanted: directory.join("package-lock.json"),
        installed: directory.join("node_modules/installed.json"),
    };
    if record.is_current()? {
        return Ok(());
    }
    require_node(root)?;
    println!("{folder}: installing");
    let quietly = ["--no-audit", "--no-fund", "--loglevel", "error"];
    program(&directory, "npm", &[&["ci"][..], &quietly].concat()).run()?;
    record.write()
}

/// What an installation was made from, written when it is whole.
struct Record {
    wanted: PathBuf,
    installed: PathBuf,
}

impl Record {
    fn is_current(&self) -> Result<bool, Error> {
        let wanted = fs::read(&self.wanted).map_err(|source| Error::Io {
            path: self.wanted.clone(),
            source,
        })?;
        let installed = fs::read(&self.installed);
        Ok(installed.is_ok_and(|installed| installed == wanted))
    }

    fn write(&self) -> Result<(), Error> {
        let copied = fs::copy(&self.wanted, &self.installed);
        copied.map(drop).map_err(|source| Error::Io {
            path: self.installed.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_current_for_the_very_list_it_was_made_from() {
        let root = tempfile::tempdir().unwrap();
        let record = Record {
            wanted: root.path().join("wanted"),
            installed: root.path().join("installed"),
        };
        assert!(matches!(record.is_current(), Err(Error::Io { .. })));

        fs::write(&record.wanted, "some==1\n").unwrap();
        assert!(!record.is_current().unwrap());

        record.write().unwrap();
        assert!(record.is_current().unwrap());

        fs::write(&record.wanted, "some==2\n").unwrap();
        assert!(!record.is_current().unwrap());
    }
}
