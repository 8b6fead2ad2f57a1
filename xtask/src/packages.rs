//! Installs the Python and npm packages that a folder lists, for this checkout only. They are
//! installed again when the list changes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::program;
use crate::error::Error;
use crate::tools::{require_node, require_python};

/// A Python environment. Paths are relative to the root.
pub struct Python<'a> {
    pub requirements: &'a str,
    /// Holds the environment and a copy of the requirements it was installed from.
    pub folder: &'a str,
    /// Environment variables of the install.
    pub variables: &'a [(&'a str, &'a str)],
}

impl Python<'_> {
    /// Installs the requirements if needed and returns the environment's interpreter.
    pub fn install(&self, root: &Path) -> Result<PathBuf, Error> {
        let Self {
            requirements,
            folder,
            variables,
        } = self;
        let environment = format!("{folder}/python");
        let python = root.join(&environment).join("bin/python");
        let installed_list = InstalledList {
            listed: root.join(requirements),
            installed: root.join(folder).join("installed.txt"),
        };
        if installed_list.is_current()? && program(root, &python, &["--version"]).probe().is_some()
        {
            return Ok(python);
        }
        let base = require_python(root)?;
        println!("{requirements}: installing into {environment}");
        program(root, base, &["-m", "venv", "--clear", &environment]).run()?;
        let install = ["-m", "pip", "install", "--requirement", requirements];
        let quiet = ["--quiet", "--disable-pip-version-check", "--no-input"];
        let pip = program(root, &python, &[&install[..], &quiet].concat());
        let pip = variables
            .iter()
            .fold(pip, |pip, (key, value)| pip.env(key, value));
        pip.run()?;
        installed_list.write()?;
        Ok(python)
    }
}

/// Installs the packages of a folder with a `package.json` and a lock file.
pub fn install_npm(root: &Path, folder: &str) -> Result<(), Error> {
    let directory = root.join(folder);
    let installed_list = InstalledList {
        listed: directory.join("package-lock.json"),
        installed: directory.join("node_modules/installed.json"),
    };
    if installed_list.is_current()? {
        return Ok(());
    }
    require_node(root)?;
    println!("{folder}: installing");
    let quiet = ["--no-audit", "--no-fund", "--loglevel", "error"];
    program(&directory, "npm", &[&["ci"][..], &quiet].concat()).run()?;
    installed_list.write()
}

/// A copy of the package list, written when its installation is complete.
struct InstalledList {
    listed: PathBuf,
    installed: PathBuf,
}

impl InstalledList {
    fn is_current(&self) -> Result<bool, Error> {
        let listed = fs::read(&self.listed).map_err(|source| Error::Io {
            path: self.listed.clone(),
            source,
        })?;
        let installed = fs::read(&self.installed);
        Ok(installed.is_ok_and(|installed| installed == listed))
    }

    fn write(&self) -> Result<(), Error> {
        let copied = fs::copy(&self.listed, &self.installed);
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
    fn changed_package_list_is_not_current() {
        let root = tempfile::tempdir().unwrap();
        let installed_list = InstalledList {
            listed: root.path().join("listed"),
            installed: root.path().join("installed"),
        };
        assert!(matches!(installed_list.is_current(), Err(Error::Io { .. })));

        fs::write(&installed_list.listed, "some==1\n").unwrap();
        assert!(!installed_list.is_current().unwrap());

        installed_list.write().unwrap();
        assert!(installed_list.is_current().unwrap());

        fs::write(&installed_list.listed, "some==2\n").unwrap();
        assert!(!installed_list.is_current().unwrap());
    }
}
