//! The layout of the cache, which other tools share.
//!
//! ```text
//! models--owner--name/
//!   blobs/<etag>                      content, named by its hash
//!   blobs/<etag>.loquat.incomplete    our unfinished download
//!   blobs/<etag>.loquat.journal       the bytes of it that are on disk
//!   snapshots/<commit>/<path>         a relative link to a blob
//!   refs/<revision>                   the commit of a branch or tag
//! .locks/models--owner--name/<etag>.lock
//! ```
//!
//! Everything but the two `.loquat` files follows Python's `huggingface_hub`. Its older versions
//! read `<etag>.incomplete` as the beginning of a file; Loquat's partial files have gaps, so they
//! need another name.

use std::path::{Component, Path, PathBuf};

/// A repository's paths in a cache.
#[derive(Debug, Clone)]
pub(crate) struct RepoDir {
    root: PathBuf,
    locks: PathBuf,
}

const PREFIX: &str = "models--";

impl RepoDir {
    pub(crate) fn for_repo(cache: &Path, id: &str) -> Self {
        Self::for_folder(cache, &format!("{PREFIX}{}", id.replace('/', "--")))
    }

    pub(crate) fn for_folder(cache: &Path, folder: &str) -> Self {
        Self {
            root: cache.join(folder),
            locks: cache.join(".locks").join(folder),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    pub(crate) fn part(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.loquat.incomplete"))
    }

    pub(crate) fn journal(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.loquat.journal"))
    }

    /// The partial file of older versions of Python's client.
    pub(crate) fn foreign_part(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.incomplete"))
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    pub(crate) fn refs(&self) -> PathBuf {
        self.root.join("refs")
    }

    pub(crate) fn reference(&self, revision: &str) -> PathBuf {
        self.refs().join(revision)
    }

    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }
}

/// The repository id for a folder of the cache.
pub(crate) fn repo_in_folder(folder: &str) -> Option<String> {
    // A repository name may contain two dashes; an owner may not.
    let id = folder.strip_prefix(PREFIX)?.replacen("--", "/", 1);
    is_repo_id(&id).then_some(id)
}

/// The link target at `path` in a snapshot.
pub(crate) fn link_to_blob(path: &str, etag: &str) -> PathBuf {
    let up = 2 + path.matches('/').count();
    let mut link: PathBuf = std::iter::repeat_n("..", up).collect();
    link.push("blobs");
    link.push(etag);
    link
}

/// `owner/name`, or the bare name of the hub's oldest repositories.
pub(crate) fn is_repo_id(id: &str) -> bool {
    let mut words = id.split('/');
    words.by_ref().take(2).all(is_word) && words.next().is_none()
}

/// A branch, tag or commit that is safe to join to a path.
pub(crate) fn is_revision(revision: &str) -> bool {
    is_inner_path(revision)
}

/// Whether a path from a server stays inside its directory, on every system.
pub(crate) fn is_inner_path(path: &str) -> bool {
    let strange = |c: char| c.is_control() || matches!(c, '\\' | ':');
    !path.contains(strange)
        && !path.is_empty()
        && path.split('/').all(|name| !matches!(name, "" | "." | ".."))
        && Path::new(path)
            .components()
            .all(|component| matches!(component, Component::Normal(_)))
}

/// Safe as a file name and in an address.
pub(crate) fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_paths_stay_inside() {
        for (path, inside) in [
            ("config.json", true),
            ("a/b/model-00001-of-00002.safetensors", true),
            ("with space/ünïcode.txt", true),
            (".gitattributes", true),
            ("", false),
            ("/etc/passwd", false),
            ("../up", false),
            ("a/../../up", false),
            ("a/./b", false),
            ("a//b", false),
            ("a/", false),
            ("..\\up", false),
            ("C:\\up", false),
            ("C:up", false),
            ("a\0b", false),
            ("a\nb", false),
        ] {
            assert_eq!(is_inner_path(path), inside, "{path:?}");
        }
    }

    #[test]
    fn repo_ids_and_folders_round_trip() {
        for (id, folder) in [
            ("owner/name", "models--owner--name"),
            ("owner/na--me", "models--owner--na--me"),
            ("gpt2", "models--gpt2"),
        ] {
            assert_eq!(
                RepoDir::for_repo(Path::new(""), id).root(),
                Path::new(folder)
            );
            assert_eq!(repo_in_folder(folder).as_deref(), Some(id));
        }
        for folder in [
            "datasets--owner--name",
            ".locks",
            "models--",
            "models--a--b/c",
        ] {
            assert_eq!(repo_in_folder(folder), None, "{folder}");
        }
        for id in ["a/b/c", "../b", "a/..", "a/", "/b", "", "a b/c", "a/b:c"] {
            assert!(!is_repo_id(id), "{id:?}");
        }
    }

    #[test]
    fn links_reach_blobs_from_any_depth() {
        for (path, link) in [
            ("config.json", "../../blobs/e"),
            ("a/b/config.json", "../../../../blobs/e"),
        ] {
            assert_eq!(link_to_blob(path, "e"), Path::new(link));
        }
    }
}
