//! The grammar of model references:
//!
//! ```text
//! reference = path | url | name [":" tag] | owner "/" name ["@" revision] [":" (quant | file)]
//! ```
//!
//! A path is recognised by its shape: it begins with a separator, `.` or `~`, has a drive or more
//! folders than a repository, or ends like a model file. Whether it exists is up to the resolver.
//! A `file:///` URL names a path that is not valid UTF-8, and so cannot be written as text.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use loquat_weights::path_from_bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::StoreError;
use crate::catalog::check::{is_name, is_path, is_repo, is_revision};

/// Extensions of files that a reference may name.
pub(crate) const FILE_ENDINGS: [&str; 3] = [".gguf", ".safetensors", ".safetensors.index.json"];

/// Precedes the root of a percent-encoded path.
const FILE_URL: &str = "file://";
/// What such a path does not need to encode.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A reference that [`reference_path`] turns into this path: its text, or a `file:///` URL if it is
/// not valid UTF-8.
pub fn path_reference(path: &Path) -> String {
    if let Some(text) = path.to_str() {
        return text.to_owned();
    }
    // Fails only without a current folder.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let bytes = absolute.as_os_str().as_encoded_bytes();
    format!("{FILE_URL}{}", percent_encode(bytes, ENCODED))
}

/// The path that a reference is, if it is one. Expands `~`, which no shell does in configuration
/// files.
pub fn reference_path(reference: &str) -> Cow<'_, Path> {
    if let Some(path) = url_path(reference) {
        return Cow::Owned(path);
    }
    let in_home = reference.strip_prefix("~/");
    match (in_home, etcetera::home_dir()) {
        (Some(rest), Ok(home)) => Cow::Owned(home.join(rest)),
        _ => Cow::Borrowed(Path::new(reference)),
    }
}

fn url_path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix(FILE_URL)?;
    let bytes = percent_decode_str(path).collect();
    let rooted = path.starts_with('/');
    rooted.then(|| path_from_bytes(bytes)).flatten()
}

/// A parsed reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelReference {
    /// A file or directory on this machine.
    Path(PathBuf),
    /// `name` or `name:tag` in the catalog.
    Name(String),
    /// A repository of the model hub.
    Hub(HubReference),
}

/// A repository of the model hub, with an optional revision and part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubReference {
    /// `owner/name`.
    pub repo: String,
    /// A branch, tag or commit.
    pub revision: Option<String>,
    /// Selects one of several models in the repository.
    pub part: Option<RepoPart>,
}

/// One of several models in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepoPart {
    /// The path of a file.
    File(String),
    /// A quant such as `Q4_K_M`, in any case.
    Quant(String),
}

impl ModelReference {
    /// Parses `text`; does not check that the model exists.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(hub) = HubReference::parse(text) {
            return Ok(Self::Hub(hub));
        }
        if is_path_like(text) {
            return Ok(Self::Path(url_path(text).unwrap_or_else(|| text.into())));
        }
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (text, None),
        };
        if is_name(name) && tag.is_none_or(is_name) {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err(StoreError::NotAReference {
                reference: text.to_owned(),
            })
        }
    }
}

impl HubReference {
    fn parse(text: &str) -> Option<Self> {
        let end = text.find(['@', ':']).unwrap_or(text.len());
        let (repo, rest) = text.split_at(end);
        if !is_repo(repo) || (rest.is_empty() && ends_like_a_file(repo)) {
            return None;
        }
        let (revision, part) = match rest.strip_prefix('@') {
            Some(rest) => match rest.split_once(':') {
                Some((revision, part)) => (Some(revision), Some(part)),
                None => (Some(rest), None),
            },
            None => (None, rest.strip_prefix(':')),
        };
        if !revision.is_none_or(is_revision) || !part.is_none_or(is_path) {
            return None;
        }
        Some(Self {
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            part: part.map(RepoPart::parse),
        })
    }
}

impl RepoPart {
    fn parse(text: &str) -> Self {
        if text.contains('/') || ends_like_a_file(text) {
            Self::File(text.to_owned())
        } else {
            Self::Quant(text.to_owned())
        }
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.part {
            Some(RepoPart::File(text) | RepoPart::Quant(text)) => write!(f, ":{text}"),
            None => Ok(()),
        }
    }
}

fn ends_like_a_file(text: &str) -> bool {
    FILE_ENDINGS.iter().any(|ending| text.ends_with(ending))
}

fn is_path_like(text: &str) -> bool {
    ends_like_a_file(text)
        || text.starts_with(['.', '~'])
        || text.contains(['/', '\\'])
        || text.contains(std::path::is_separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, revision: Option<&str>, part: Option<RepoPart>) -> Option<ModelReference> {
        Some(ModelReference::Hub(HubReference {
            repo: repo.to_owned(),
            revision: revision.map(str::to_owned),
            part,
        }))
    }

    #[test]
    fn references_are_parsed_by_shape() {
        let path = |text: &str| Some(ModelReference::Path(text.into()));
        let name = |text: &str| Some(ModelReference::Name(text.to_owned()));
        let quant = |text: &str| Some(RepoPart::Quant(text.to_owned()));
        let file = |text: &str| Some(RepoPart::File(text.to_owned()));
        for (text, expected) in [
            ("smollm2", name("smollm2")),
            ("qwen2.5:0.5b", name("qwen2.5:0.5b")),
            ("owner/name", hub("owner/name", None, None)),
            ("owner/name@main", hub("owner/name", Some("main"), None)),
            (
                "owner/name@refs/pr/1:Q8_0",
                hub("owner/name", Some("refs/pr/1"), quant("Q8_0")),
            ),
            (
                "owner/name:q4_k_m",
                hub("owner/name", None, quant("q4_k_m")),
            ),
            ("owner/name:a.gguf", hub("owner/name", None, file("a.gguf"))),
            (
                "owner/name:sub/dir/a b.gguf",
                hub("owner/name", None, file("sub/dir/a b.gguf")),
            ),
            ("owner/model.gguf", path("owner/model.gguf")),
            ("model.gguf", path("model.gguf")),
            ("model.safetensors", path("model.safetensors")),
            (
                "a/model.safetensors.index.json",
                path("a/model.safetensors.index.json"),
            ),
            ("./name", path("./name")),
            ("../name", path("../name")),
            (".", path(".")),
            ("/name", path("/name")),
            ("a/b/c", path("a/b/c")),
            ("~/name", path("~/name")),
            ("file:///a/b%20c", path("/a/b c")),
            ("file://host/a", path("file://host/a")),
            ("C:\\models\\a", path("C:\\models\\a")),
            ("owner/", path("owner/")),
            ("owner/.name", path("owner/.name")),
            ("owner/name:../a.gguf", path("owner/name:../a.gguf")),
            ("owner/name@", path("owner/name@")),
            ("my models/a.gguf", path("my models/a.gguf")),
            ("", None),
            ("two words", None),
            ("name:", None),
            (":tag", None),
            ("name@main", None),
        ] {
            assert_eq!(ModelReference::parse(text).ok(), expected, "{text:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn any_path_round_trips() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        for (bytes, reference) in [
            (&b"/models/a%20b"[..], "/models/a%20b"),
            (b"./a.gguf", "./a.gguf"),
            (b"/caf\xe9/a b%.gguf", "file:///caf%E9/a%20b%25.gguf"),
        ] {
            let path = Path::new(OsStr::from_bytes(bytes));
            assert_eq!(path_reference(path), reference);
            assert_eq!(reference_path(reference), path);
        }
        let relative = Path::new(OsStr::from_bytes(b"caf\xe9"));
        let absolute = std::path::absolute(relative).unwrap();
        assert_eq!(reference_path(&path_reference(relative)), absolute);
    }

    #[test]
    fn hub_reference_round_trips() {
        for text in [
            "owner/name",
            "owner/name@main",
            "owner/name@v1:Q8_0",
            "owner/name:sub/a.gguf",
        ] {
            match ModelReference::parse(text) {
                Ok(ModelReference::Hub(hub)) => assert_eq!(hub.to_string(), text),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
