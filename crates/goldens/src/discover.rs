//! Finds the checkpoints to judge by looking into folders; there is no list of them.

use std::path::{Path, PathBuf};

use crate::args::Args;
use crate::error::Error;

/// The reference file of a golden.
pub const GOLDEN: &str = "golden.safetensors";

/// Checkpoints from one folder.
#[derive(Debug, PartialEq, Eq)]
pub struct Set {
    /// The folder, for display.
    pub title: String,
    pub origin: Origin,
    pub cases: Vec<Case>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// In the repository: the support matrix shows these.
    Committed,
    /// Next to the repository; it has families that are not supported yet.
    Shared,
    /// Named on the command line.
    CommandLine,
}

/// One checkpoint, and the folder of its reference if it has one.
#[derive(Debug, PartialEq, Eq)]
pub struct Case {
    pub name: String,
    /// A folder or a `.gguf` file.
    pub model: PathBuf,
    pub golden: Option<PathBuf>,
}

/// The sets that `args` select.
pub fn sets(args: &Args) -> Result<Vec<Set>, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sets = committed(&root)?;
    if sets.is_empty() {
        return Err(Error::NoCommittedGoldens);
    }
    if !args.committed {
        sets.extend(shared(&root)?);
        for path in &args.paths {
            sets.push(set_at_path(path, args.logits.as_deref())?);
        }
    }
    if let Some(name) = &args.only {
        filter_by_name(&mut sets, name)?;
    }
    Ok(sets)
}

fn committed(root: &Path) -> Result<Vec<Set>, Error> {
    let kit = root.join("crates/testkit");
    let folders = |names: &[&str]| -> Vec<String> {
        let names = names.iter();
        names.map(|name| format!("crates/testkit/{name}")).collect()
    };
    let text = folders(&["goldens", "goldens-mlx", "goldens-gguf"]);
    let vision = folders(&[
        "goldens-vision",
        "goldens-vision-mlx",
        "goldens-vision-gguf",
    ]);
    let committed = |folders, logits: &str| {
        existing_sets(root, folders, Origin::Committed, Some(&kit.join(logits)))
    };
    let mut sets = committed(text, "goldens")?;
    sets.extend(committed(vision, "goldens-vision")?);
    Ok(sets)
}

fn shared(root: &Path) -> Result<Vec<Set>, Error> {
    let folders = ["../shared/goldens", "../shared/goldens-mlx"].map(str::to_owned);
    existing_sets(root, folders.into(), Origin::Shared, None)
}

/// The sets of those `folders` that exist and contain checkpoints.
fn existing_sets(
    root: &Path,
    folders: Vec<String>,
    origin: Origin,
    logits: Option<&Path>,
) -> Result<Vec<Set>, Error> {
    let mut sets = Vec::new();
    for title in folders {
        let folder = root.join(&title);
        if !folder.is_dir() {
            continue;
        }
        let cases = cases(&folder, logits)?;
        if !cases.is_empty() {
            sets.push(Set {
                title,
                origin,
                cases,
            });
        }
    }
    Ok(sets)
}

/// The set of a path from the command line.
fn set_at_path(path: &Path, logits: Option<&Path>) -> Result<Set, Error> {
    // A mistyped folder is an error: without it every file would lack a reference.
    let logits = logits.map(canonicalize).transpose()?;
    let cases = cases(&canonicalize(path)?, logits.as_deref())?;
    if cases.is_empty() {
        return Err(Error::NoCheckpoint {
            path: path.to_owned(),
        });
    }
    Ok(Set {
        title: path.display().to_string(),
        origin: Origin::CommandLine,
        cases,
    })
}

/// The absolute path, so that `.` has a name.
fn canonicalize(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// The checkpoint at `path`, or those directly in it, sorted by name.
fn cases(path: &Path, logits: Option<&Path>) -> Result<Vec<Case>, Error> {
    if let Some(case) = case(path, logits) {
        return Ok(vec![case]);
    }
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        found.extend(case(&entry.map_err(failed)?.path(), logits));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn case(path: &Path, logits: Option<&Path>) -> Option<Case> {
    let text = |part: Option<&std::ffi::OsStr>| Some(part?.to_string_lossy().into_owned());
    let has_golden = |folder: &PathBuf| folder.join(GOLDEN).is_file();
    let (name, golden) = if path.is_dir() {
        let name = text(path.file_name())?;
        let golden = Some(path.to_owned()).filter(has_golden);
        let is_model = golden.is_some() || path.join("config.json").is_file();
        // A GGUF model and its image projector are a folder.
        let reference = || logits.map(|logits| logits.join(&name)).filter(has_golden);
        let has_projector = || path.join(format!("{name}.gguf")).is_file();
        if !is_model && !has_projector() {
            return None;
        }
        let golden = golden.or_else(reference);
        (name, golden)
    } else if path
        .extension()
        .is_some_and(|extension| extension == "gguf")
        && path.is_file()
    {
        let stem = text(path.file_stem())?;
        let golden = logits.map(|logits| logits.join(&stem)).filter(has_golden);
        (stem, golden)
    } else {
        return None;
    };
    Some(Case {
        name,
        model: path.to_owned(),
        golden,
    })
}

fn filter_by_name(sets: &mut Vec<Set>, name: &str) -> Result<(), Error> {
    for set in sets.iter_mut() {
        set.cases.retain(|case| case.name.contains(name));
    }
    sets.retain(|set| !set.cases.is_empty());
    if sets.is_empty() {
        Err(Error::NoMatch {
            name: name.to_owned(),
        })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these empty files.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        root
    }

    /// `name` or `name: golden folder`, with paths relative to `root`.
    fn describe(root: &Path, cases: &[Case]) -> Vec<String> {
        let relative = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
        let lines = cases.iter().map(|case| match &case.golden {
            Some(golden) => format!("{}: {}", case.name, relative(golden)),
            None => case.name.clone(),
        });
        lines.collect()
    }

    #[test]
    fn folder_kinds_are_detected_by_contents() {
        let table: &[(&[&str], &str, &[&str])] = &[
            (&["a/golden.safetensors"], "a", &["a: a"]),
            (
                &["s/b/golden.safetensors", "s/a/golden.safetensors"],
                "s",
                &["a: s/a", "b: s/b"],
            ),
            (&["s/a/config.json"], "s", &["a"]),
            (
                &["s/a/config.json", "l/a/golden.safetensors"],
                "s",
                &["a: l/a"],
            ),
            (&["s/a/README.md", "s/README.md"], "s", &[]),
            (
                &["s/x.gguf", "s/y.gguf", "l/x/golden.safetensors"],
                "s",
                &["x: l/x", "y"],
            ),
            (
                &["s/x.gguf", "l/x/golden.safetensors"],
                "s/x.gguf",
                &["x: l/x"],
            ),
            (&["s/x.gguf", "l/x/config.json"], "s", &["x"]),
            (&["s/x.bin"], "s/x.bin", &[]),
            (
                &["s/x/x.gguf", "s/y/x.gguf", "l/x/golden.safetensors"],
                "s",
                &["x: l/x"],
            ),
        ];
        for (files, path, expected) in table {
            let root = folder(files);
            let path = root.path().join(path);
            let found = cases(&path, Some(&root.path().join("l"))).unwrap();
            assert_eq!(describe(root.path(), &found), *expected, "{files:?}");
        }
    }

    #[test]
    fn committed_gguf_files_use_committed_goldens() {
        let root = folder(&[
            "crates/testkit/goldens/llama/golden.safetensors",
            "crates/testkit/goldens/README.md",
            "crates/testkit/goldens-gguf/llama.gguf",
            "crates/testkit/goldens-mlx/README.md",
            "crates/testkit/goldens-vision/llava/golden.safetensors",
            "crates/testkit/goldens-vision/images/one.png",
            "crates/testkit/goldens-vision-mlx/llava/config.json",
            "crates/testkit/goldens-vision-gguf/llava/llava.gguf",
        ]);
        let sets = committed(root.path()).unwrap();
        let titles: Vec<&str> = sets.iter().map(|set| set.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "crates/testkit/goldens",
                "crates/testkit/goldens-gguf",
                "crates/testkit/goldens-vision",
                "crates/testkit/goldens-vision-mlx",
                "crates/testkit/goldens-vision-gguf",
            ]
        );
        let expected = [
            "llama: goldens/llama",
            "llama: goldens/llama",
            "llava: goldens-vision/llava",
            "llava: goldens-vision/llava",
            "llava: goldens-vision/llava",
        ];
        for (set, expected) in sets.iter().zip(expected) {
            let lines = describe(&root.path().join("crates/testkit"), &set.cases);
            assert_eq!(lines, [expected]);
        }
    }

    #[test]
    fn missing_path_is_named() {
        let root = folder(&["empty/README.md", "s/x.gguf"]);
        let [empty, missing, gguf] = ["empty", "missing", "s"].map(|name| root.path().join(name));
        let errors = [
            set_at_path(&empty, None).unwrap_err(),
            set_at_path(&missing, None).unwrap_err(),
            set_at_path(&gguf, Some(&missing)).unwrap_err(),
        ];
        for (error, name) in errors.iter().zip(["empty", "missing", "missing"]) {
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn filter_without_match_is_an_error() {
        let root = folder(&[
            "llama/config.json",
            "llama_tied/config.json",
            "qwen2/config.json",
        ]);
        let names = |name: &str| {
            let mut sets = vec![set_at_path(root.path(), None).unwrap()];
            filter_by_name(&mut sets, name)?;
            let cases = sets.iter().flat_map(|set| &set.cases);
            Ok::<_, Error>(cases.map(|case| case.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names("llama").unwrap(), ["llama", "llama_tied"]);
        assert!(matches!(names("bert"), Err(Error::NoMatch { .. })));
    }
}
