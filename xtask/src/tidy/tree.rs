//! The repository's paths, and the text of its source and documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::error::Error;

/// Directories without our sources, at any depth.
const SKIPPED_NAMES: &[&str] = &[".git", "target", "node_modules"];
/// The fuzzer's output, also listed in `.gitignore`.
const SKIPPED_PATHS: &[&str] = &["fuzz/corpus", "fuzz/artifacts"];
const READ_EXTENSIONS: &[&str] = &["rs", "toml", "md"];

/// Paths are relative to the repository root and use `/`.
#[derive(Default)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    paths: BTreeSet<String>,
}

impl Tree {
    pub fn read(root: &Path) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        tree.read_directory(root, "")?;
        Ok(tree)
    }

    /// The files whose path ends in `suffix`, with their text, in path order.
    pub fn files<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts
            .iter()
            .filter(move |(path, _)| path.ends_with(suffix))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Whether a file or directory exists at `path`; the root is the empty path.
    pub fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    fn read_directory(&mut self, directory: &Path, prefix: &str) -> Result<(), Error> {
        let io = |source| Error::Io {
            path: directory.to_path_buf(),
            source,
        };
        for entry in fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = match prefix {
                "" => name.clone(),
                _ => format!("{prefix}/{name}"),
            };
            if SKIPPED_NAMES.contains(&name.as_str()) || SKIPPED_PATHS.contains(&path.as_str()) {
                continue;
            }
            self.paths.insert(path.clone());
            // Symbolic links exist but are not followed: they may lead outside.
            let kind = entry.file_type().map_err(io)?;
            if kind.is_dir() {
                self.read_directory(&entry.path(), &path)?;
            } else if kind.is_file() && has_read_extension(&name) {
                let text = fs::read_to_string(entry.path()).map_err(|source| Error::Io {
                    path: entry.path(),
                    source,
                })?;
                self.texts.insert(path, text);
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn from_files(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.texts.insert(path.to_string(), text.to_string());
            let ancestors = Path::new(path).ancestors().map(Path::to_string_lossy);
            tree.paths
                .extend(ancestors.map(|ancestor| ancestor.into_owned()));
        }
        tree
    }
}

fn has_read_extension(name: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, extension)| READ_EXTENSIONS.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sources_and_skips_build_output() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("a/src/lib.rs", "//! A"),
            ("a/data.bin", "\u{0}"),
            ("target/debug/x.rs", "x"),
            ("fuzz/corpus/x.md", "x"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::read(dir.path()).unwrap();
        assert_eq!(tree.text("a/src/lib.rs"), Some("//! A"));
        assert!(tree.exists("a/src") && tree.exists("a/data.bin"));
        assert_eq!(tree.text("a/data.bin"), None);
        assert!(!tree.exists("target") && !tree.exists("fuzz/corpus"));
    }
}
