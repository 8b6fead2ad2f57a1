//! Downloads Python wheels for the files in them, without installing them: pip finds them and checks
//! their hashes, and the unpacked folder appears complete or not at all.

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

/// Wheels that are unpacked into one folder.
pub struct Wheels<'a> {
    pub wheels: &'a [Wheel],
    /// How to get the files without pip, for display: "or …".
    pub other_source: &'static str,
}

impl Wheels<'_> {
    /// Downloads the wheels and unpacks them as `folder`, replacing an existing one.
    pub fn fetch(&self, root: &Path, folder: &Path) -> Result<(), Error> {
        let cache = folder.parent().unwrap_or(folder);
        fs::create_dir_all(cache).map_err(io_error(cache))?;
        let scratch = tempfile::Builder::new()
            .prefix(".fetching-")
            .tempdir_in(cache);
        let scratch = scratch.map_err(io_error(cache))?;
        let python = create_environment(root, &scratch.path().join("python"))?;
        let files = self.download(&python, scratch.path())?;
        let unpacked = scratch.path().join("unpacked");
        for file in files {
            let unzip = [OsString::from("-m"), "zipfile".into(), "-e".into()];
            let paths = [file.into_os_string(), unpacked.clone().into_os_string()];
            program(root, &python, &[&unzip[..], &paths].concat()).run_quiet()?;
        }
        if !self.are_complete(&unpacked) {
            return Err(Error::Missing {
                what: format!("a file of the wheels of {}", self.names()),
                remedy: "check that the disk is not full and try again".to_string(),
            });
        }
        self.replace_folder(&unpacked, folder)
    }

    /// Whether `folder` has all files of all wheels, with the right sizes.
    pub fn are_complete(&self, folder: &Path) -> bool {
        self.wheels.iter().all(|wheel| wheel.is_complete(folder))
    }

    fn download(&self, python: &Path, scratch: &Path) -> Result<Vec<PathBuf>, Error> {
        let list = scratch.join("requirements.txt");
        let requirements: String = self.wheels.iter().map(Wheel::requirement).collect();
        fs::write(&list, requirements).map_err(io_error(&list))?;
        println!("downloading {}", self.names());
        let fetched = program(scratch, python, &self.download_args()).run_quiet();
        fetched.map_err(|error| match error {
            Error::Command { .. } => self.download_error(),
            other => other,
        })?;
        let entries = fs::read_dir(scratch).map_err(io_error(scratch))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let found = paths.filter(|path| path.extension().is_some_and(|end| end == "whl"));
        let found: Vec<PathBuf> = found.collect();
        if found.len() != self.wheels.len() {
            return Err(Error::Missing {
                what: format!("a wheel of {}", self.names()),
                remedy: "pip reported success but did not write it; try again".to_string(),
            });
        }
        Ok(found)
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
        let foreign = self.wheels.iter().find(|wheel| wheel.platforms.is_empty());
        if let Some(other) = foreign.and_then(|wheel| wheel.fallback) {
            args.extend(["--platform", other.tag]);
        }
        args
    }

    /// The packages and versions, for display.
    fn names(&self) -> String {
        let wheels = self.wheels.iter();
        let names = wheels.map(|wheel| format!("{} {}", wheel.package, wheel.version));
        names.collect::<Vec<_>>().join(", ")
    }

    fn download_error(&self) -> Error {
        Error::Missing {
            what: format!("a wheel of {}", self.names()),
            remedy: format!(
                "pip could not download it (see above); connect to the network, set PIP_INDEX_URL \
                 to another package index or PIP_FIND_LINKS to a folder with the wheel, {}",
                self.other_source
            ),
        }
    }

    /// Moves the unpacked wheels to `folder`, unless another run has already done so.
    fn replace_folder(&self, unpacked: &Path, folder: &Path) -> Result<(), Error> {
        if self.are_complete(folder) {
            return Ok(());
        }
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::rename(unpacked, folder),
        }
        .map_err(io_error(folder))
    }
}

impl Wheel {
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

    /// Whether all files of the wheel's RECORD exist with the right size.
    fn is_complete(&self, folder: &Path) -> bool {
        let Ok(record) = fs::read_to_string(folder.join(self.dist_info()).join("RECORD")) else {
            return false;
        };
        let mut sizes = record.lines().filter_map(parse_record_line).peekable();
        sizes.peek().is_some()
            && sizes.all(|(name, size)| {
                let found = fs::metadata(folder.join(name));
                found.is_ok_and(|found| found.len() == size)
            })
    }

    /// The folder of the wheel's metadata.
    fn dist_info(&self) -> String {
        let package = self.package.replace('-', "_");
        format!("{package}-{}.dist-info", self.version)
    }

    /// The requirements of the unpacked wheel, in pip's syntax.
    pub fn requirements(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let metadata = folder.join(self.dist_info()).join("METADATA");
        let metadata = fs::read_to_string(&metadata).map_err(io_error(&metadata))?;
        let lines = metadata.lines();
        let required = lines.filter_map(|line| line.strip_prefix("Requires-Dist: "));
        Ok(required.map(str::to_owned).collect())
    }
}

/// Creates a virtual environment, because the system's Python may lack pip.
fn create_environment(root: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let base = require_python(root)?;
    let args = [OsString::from("-m"), "venv".into(), folder.into()];
    program(root, base, &args).run_quiet()?;
    Ok(folder.join("bin/python"))
}

/// The name and size of a RECORD line; RECORD's own line has no size.
fn parse_record_line(line: &str) -> Option<(&str, u64)> {
    let (rest, size) = line.rsplit_once(',')?;
    let (name, _) = rest.rsplit_once(',')?;
    Some((name, size.trim().parse().ok()?))
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

    fn wheels(wheels: &[Wheel]) -> Wheels<'_> {
        Wheels {
            wheels,
            other_source: "or set SOME_ROOT",
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
            let args = wheels(&[wheel]).download_args();
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
            let found = wheel(vec![]).is_complete(unpacked(line).path());
            assert_eq!(found, complete, "{line:?}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(!wheel(vec![]).is_complete(empty.path()));
        assert!(!wheel(vec![]).is_complete(&empty.path().join("missing")));
        let newer = Wheel {
            version: "1.3",
            ..wheel(vec![])
        };
        let both = [wheel(vec![]), newer];
        assert!(!wheels(&both).are_complete(unpacked("").path()));
    }

    #[test]
    fn complete_wheel_replaces_incomplete_one() {
        let (complete, cache) = (unpacked(""), tempfile::tempdir().unwrap());
        let target = cache.path().join("some-1.2");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("half"), "").unwrap();
        let some = [wheel(vec![])];
        let wheels = wheels(&some);
        wheels.replace_folder(complete.path(), &target).unwrap();
        assert!(wheels.are_complete(&target) && !target.join("half").exists());
        assert_eq!(some[0].requirements(&target).unwrap(), ["other==2.*"]);
        let again = unpacked("");
        assert!(wheels.replace_folder(again.path(), &target).is_ok());
        assert!(wheels.are_complete(&target));
    }

    #[test]
    fn download_error_names_remedies() {
        let message = wheels(&[wheel(vec![&LINUX])]).download_error().to_string();
        for named in ["some 1.2", "network", "PIP_INDEX_URL", "SOME_ROOT"] {
            assert!(message.contains(named), "{named}: {message}");
        }
    }
}
