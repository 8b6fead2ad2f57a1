//! Where the build script looks for nvcc. A unit test of the crate includes this file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// nvcc where `cargo xtask cuda` installs it, relative to the repository's root.
const INSTALLED: &str = "target/cuda/nvidia/cu13/bin/nvcc";
const NAMED: &str = "LOQUAT_NVCC";
const TOOLKIT: &str = "CUDA_HOME";
/// Variables that decide where nvcc is found.
pub const VARIABLES: [&str; 3] = [NAMED, TOOLKIT, "PATH"];

/// The compiler, or `None` if there is none. A variable that names a file which does not exist is
/// an error.
pub fn find(
    variable: impl Fn(&str) -> Option<OsString>,
    repository: &Path,
) -> Result<Option<PathBuf>, String> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(named) = set(NAMED).map(PathBuf::from) {
        return if named.is_file() {
            Ok(Some(named))
        } else {
            Err(format!(
                "{NAMED} is {}, which does not exist",
                named.display()
            ))
        };
    }
    let installed = repository.join(INSTALLED);
    let toolkit = set(TOOLKIT).map(|folder| Path::new(&folder).join("bin/nvcc"));
    let path = set("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
    let mut candidates = std::iter::once(installed).chain(toolkit).chain(on_path);
    Ok(candidates.find(|candidate| candidate.is_file()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nvcc_is_found_in_order() {
        let root = tempfile::tempdir().unwrap();
        let folder = |name: &str| root.path().join(name);
        let file = |path: PathBuf| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let variable = |name: &str| match name {
            "CUDA_HOME" => Some(folder("toolkit").into_os_string()),
            "PATH" => Some(std::env::join_paths([folder("empty"), folder("path")]).unwrap()),
            _ => None,
        };
        let found = || find(variable, root.path());
        assert_eq!(found(), Ok(None));
        // Each is preferred to those before it.
        for path in ["path/nvcc", "toolkit/bin/nvcc", INSTALLED] {
            let expected = file(folder(path));
            assert_eq!(found(), Ok(Some(expected)), "{path}");
        }
        let named = file(folder("named"));
        let with_name = |path: &Path| {
            let path = path.to_owned();
            move |name: &str| match name {
                "LOQUAT_NVCC" => Some(path.clone().into_os_string()),
                _ => variable(name),
            }
        };
        let found = find(with_name(&named), root.path());
        assert_eq!(found, Ok(Some(named)));
        let error = find(with_name(&folder("absent")), root.path()).unwrap_err();
        assert!(error.starts_with("LOQUAT_NVCC is "), "{error}");
        // An empty variable counts as unset.
        let empty = |name: &str| match name {
            "LOQUAT_NVCC" => Some(OsString::new()),
            _ => None,
        };
        assert_eq!(find(empty, &folder("elsewhere")), Ok(None));
    }
}
