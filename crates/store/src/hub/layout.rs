//! Where things stand in the cache, which other tools share.
//!
//! ```text
//! models--owner--name/
//!   blobs/<etag>                      content, named by its hash
//!   blobs/<etag>.loquat.incomplete    a download of ours that has not ended
//!   blobs/<etag>.loquat.journal       which of its bytes are there
//!   snapshots/<commit>/<path>         a relative link to a blob
//!   refs/<revision>                   the commit that a branch or tag stood at
//! .locks/models--owner--name/<etag>.lock
//! ```
//!
//! All but the two files that carry our name is the layout of Python's `huggingface_hub`. Its own
//! older versions take `<etag>.incomplete` for the beginning of a file; ours has gaps, so it must
//! not have that name.

use std::path::{Component, Path, PathBuf};

/// A repository's places in a cache.
#[derive(Debug, Clone)]
pub(crate) struct RepoDir {
    root: PathBuf,
    locks: PathBuf,
}

const PREFIX: &str = "models--";

impl RepoDir {
    pub(crate) fn of(cache: &Path, id: &str) -> Self {
        Self::named(cache, &format!("{PREFIX}{}", id.replace('/', "--")))
    }

    pub(crate) fn named(cache: &Path, folder: &str) -> Self {
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

    /// Where older versions of Python's client leave the beginning of a file.
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

/// The repository that a folder of the cache is of.
pub(crate) fn repo_of(folder: &str) -> Option<String> {
    // A name may itself hold two dashes; an owner may not.
    let id = folder.strip_prefix(PREFIX)?.replacen("--", "/", 1);
    is_repo_id(&id).then_some(id)
}

/// What a link at `path` in a snapshot must hold to lead to the blob.
pub(crate) fn link_to_blob(path: &str, etag: &str) -> PathBuf {
    let up = 2 + path.matches('/').count();
    let mut link: PathBuf = std::iter::repeat_n("..", up).collect();
    link.push("blobs");
    link.push(etag);
    link
}

/// `owner/name`, or the bare name that the hub's oldest repositories have.
pub(crate) fn is_repo_id(id: &str) -> bool {
    let mut words = id.split('/');
    words.by_ref().take(2).all(is_word) && words.next().is_none()
}

/// A branch, a tag, a commit: as a path it stays below where it is joined.
pub(crate) fn is_revision(revision: &str) -> bool {
    is_inner_path(revision)
}

/// Whether the path, which a server gave, stays below where it is joined, on every system.
pub(crate) fn is_inner_path(path: &str) -> bool {
    let strange = |c: char| c.is_control() || matches!(c, '\\' | ':');
    !path.contains(strange)
        && !path.is_empty()
        && path.split('/').all(|name| !matches!(name, "" | "." | ".."))
        && Path::new(path)
            .components()
            .all(|component| matches!(component, Component::Normal(_)))
}

/// Safe as a file's name and in an address.
pub(crate) fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_server_stays_inside() {
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
    fn repositories_and_folders_name_each_other() {
        for (id, folder) in [
            ("owner/name", "models--owner--name"),
            ("owner/na--me", "models--owner--na--me"),
            ("gpt2", "models--gpt2"),
        ] {
            assert_eq!(RepoDir::of(Path::new(""), id).root(), Path::new(folder));
            assert_eq!(repo_of(folder).as_deref(), Some(id));
        }
        for folder in [
            "datasets--owner--name",
            ".locks",
            "models--",
            "models--a--b/c",
        ] {
            assert_eq!(repo_of(folder), None, "{folder}");
        }
        for id in ["a/b/c", "../b", "a/..", "a/", "/b", "", "a b/c", "a/b:c"] {
            assert!(!is_repo_id(id), "{id:?}");
        }
    }

    #[test]
    fn a_link_leads_from_any_depth_to_the_blobs() {
        for (path, link) in [
            ("config.json", "../../blobs/e"),
            ("a/b/config.json", "../../../../blobs/e"),
        ] {
            assert_eq!(link_to_blob(path, "e"), Path::new(link));
        }
    }
}
