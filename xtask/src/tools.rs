//! Finds or installs the tools that the commands need besides cargo.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::command::{cargo, program};
use crate::error::Error;

/// Where tools of this checkout are installed, relative to its root.
const TOOLS: &str = "target/tools";

/// A cargo subcommand at the version whose behaviour the stages rely on.
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
}

impl Tool {
    /// The tool's path: from `PATH` if that is the pinned version, else from [`TOOLS`], installed
    /// there on first use.
    pub fn find_or_install(&self, root: &Path) -> Result<PathBuf, Error> {
        let private = root.join(TOOLS).join("bin").join(self.name);
        for candidate in [PathBuf::from(self.name), private.clone()] {
            if self.is_pinned_version(root, &candidate) {
                return Ok(candidate);
            }
        }
        let Tool { name, version } = self;
        println!("{name} {version}: installing into {TOOLS}");
        let source = ["install", name, "--version", version, "--locked", "--force"];
        // Unoptimized: building takes longer than the tool's work.
        let build = ["--profile", "dev", "--root", TOOLS];
        cargo(root, &[&source[..], &build].concat())
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .run()?;
        Ok(private)
    }

    fn is_pinned_version(&self, root: &Path, candidate: &Path) -> bool {
        let version = program(root, candidate, &["--version"]).probe();
        version.is_some_and(|output| self.has_pinned_version(&output))
    }

    fn has_pinned_version(&self, output: &str) -> bool {
        output.split_whitespace().any(|word| word == self.version)
    }
}

/// Fails with the remedy unless `cargo <subcommand>` is installed.
pub fn require_component(subcommand: &str, component: &str, package: &str) -> Result<(), Error> {
    let here = Path::new(".");
    match cargo(here, &[subcommand, "--version"]).probe() {
        Some(_) => Ok(()),
        None => Err(Error::Missing {
            what: format!("`cargo {subcommand}`"),
            remedy: format!(
                "run `rustup component add {component}`, \
                 or `apt-get install {package}` if Rust came from the distribution"
            ),
        }),
    }
}

/// A C++ compiler. Installed with apt if run as root, otherwise an error names the remedy.
pub fn require_cxx_compiler(root: &Path) -> Result<(), Error> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| OsString::from("c++"));
    if program(root, &compiler, &["--version"]).probe().is_some() {
        return Ok(());
    }
    if std::env::var_os("CXX").is_none() && can_install_packages(root) {
        return install_packages(root, &["g++"]);
    }
    Err(Error::Missing {
        what: format!("a C++ compiler (`{}`)", compiler.to_string_lossy()),
        remedy: "install g++ or clang, or set CXX".to_string(),
    })
}

/// The Python interpreter to use; the model store reads the same variable.
const PYTHON: &str = "LOQUAT_PYTHON";

/// A Python that can create virtual environments, which some distributions package separately.
/// Installed with apt if run as root, otherwise an error names the remedy.
pub fn require_python(root: &Path) -> Result<OsString, Error> {
    let named = std::env::var_os(PYTHON).filter(|value| !value.is_empty());
    let candidates = match &named {
        Some(python) => vec![python.clone()],
        None => vec!["python3".into(), "python".into()],
    };
    let has_venv = |python: &OsString| {
        let imports = program(root, python, &["-c", "import ensurepip, venv"]);
        imports.probe().is_some()
    };
    if let Some(python) = candidates.iter().find(|python| has_venv(python)) {
        return Ok(python.clone());
    }
    if named.is_none() && can_install_packages(root) {
        install_packages(root, &["python3", "python3-venv"])?;
        return Ok("python3".into());
    }
    Err(Error::Missing {
        what: "a Python 3 with the modules `venv` and `ensurepip`".to_string(),
        remedy: format!("install python3 and python3-venv, or set {PYTHON} to such a Python"),
    })
}

/// Node.js with npm. Installed with apt if run as root, otherwise an error names the remedy.
pub fn require_node(root: &Path) -> Result<(), Error> {
    let is_installed = |name| program(root, name, &["--version"]).probe().is_some();
    if is_installed("node") && is_installed("npm") {
        return Ok(());
    }
    if can_install_packages(root) {
        return install_packages(root, &["nodejs", "npm"]);
    }
    Err(Error::Missing {
        what: "Node.js with npm".to_string(),
        remedy: "install nodejs and npm".to_string(),
    })
}

/// System libraries that npm's Chromium links, and their packages.
const BROWSER_LIBRARIES: &[(&str, &str)] = &[
    ("libexpat.so.1", "libexpat1"),
    ("libnspr4.so", "libnspr4"),
    ("libnss3.so", "libnss3"),
];

/// Installed with apt if run as root, otherwise an error names the remedy.
pub fn require_browser_libraries(root: &Path) -> Result<(), Error> {
    // Without ldconfig, the browser reports what is missing.
    let Some(known) = program(root, "/sbin/ldconfig", &["-p"]).probe() else {
        return Ok(());
    };
    let is_missing = |(library, _): &&(&str, &str)| !known.contains(library);
    let missing = BROWSER_LIBRARIES.iter().filter(is_missing);
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    if can_install_packages(root) {
        return install_packages(root, &packages);
    }
    Err(Error::Missing {
        what: "a system library of Chromium".to_string(),
        remedy: format!("install {}", packages.join(", ")),
    })
}

/// The program that decodes videos. Installed with apt if run as root; without it, its tests are
/// skipped.
pub fn install_ffmpeg(root: &Path) -> Result<(), Error> {
    if has_ffmpeg(root) || !can_install_packages(root) {
        return Ok(());
    }
    install_packages(root, &["ffmpeg"])
}

pub fn has_ffmpeg(root: &Path) -> bool {
    let is_installed = |name| program(root, name, &["-version"]).probe().is_some();
    is_installed("ffmpeg") && is_installed("ffprobe")
}

/// What `arm64` needs of the system: root on Debian, and these programs, which are installed with
/// apt.
pub fn require_arm64_emulation(root: &Path) -> Result<(), Error> {
    if !can_install_packages(root) {
        return Err(Error::Missing {
            what: "root on a Debian machine, for a system of its own".to_owned(),
            remedy: "run this in a container or a virtual machine as root".to_owned(),
        });
    }
    let programs = [
        ("debootstrap", "debootstrap"),
        ("qemu-aarch64-static", "qemu-user-static"),
    ];
    let is_missing =
        |(name, _): &&(&str, &str)| program(root, name, &["--version"]).probe().is_none();
    let missing = programs.iter().filter(is_missing);
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    install_packages(root, &packages)
}

fn can_install_packages(root: &Path) -> bool {
    let is_root = program(root, "id", &["-u"]).probe().as_deref() == Some("0\n");
    is_root && program(root, "apt-get", &["--version"]).probe().is_some()
}

fn install_packages(root: &Path, packages: &[&str]) -> Result<(), Error> {
    // Stages install in the background too, and apt allows one process at a time.
    static APT: Mutex<()> = Mutex::new(());
    let _guard = APT.lock().unwrap_or_else(PoisonError::into_inner);
    let apt = |args: &[&str]| {
        program(root, "apt-get", args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .run()
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_is_found() {
        let tool = Tool {
            name: "cargo-some",
            version: "0.20.2",
        };
        for (output, found) in [
            ("cargo-some 0.20.2\n", true),
            ("cargo-some 0.20.2 (abc 2026-01-01)\n", true),
            ("cargo-some 0.20.20\n", false),
            ("cargo-some 0.14.2\n", false),
            ("", false),
        ] {
            assert_eq!(tool.has_pinned_version(output), found, "{output}");
        }
        let absent = Path::new("no-such-program");
        assert!(!tool.is_pinned_version(&std::env::temp_dir(), absent));
    }

    #[test]
    fn missing_component_names_remedy() {
        let error = require_component("no-such-subcommand", "some-component", "a-package");
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains("rustup component add some-component"),
            "{message}"
        );
    }
}
