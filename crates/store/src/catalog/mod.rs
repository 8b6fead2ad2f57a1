//! The models known by name, from `catalog.toml` and the user's own file, checked as they are
//! read.
//!
//! An [`Entry`] comes only from [`Catalog::parse`], so the rest of the crate may join its names
//! to paths and hand its packages to pip without looking again.

pub(crate) mod check;
pub(crate) mod entry;
mod search;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use entry::{Entry, Form, Kind, Kv, Part, Size, Source};

use crate::StoreError;
use check::Checker;

const EMBEDDED: &str = include_str!("../../catalog.toml");
const EMBEDDED_NAME: &str = "the catalog of this program";

#[derive(Debug, Clone)]
pub struct Catalog {
    entries: Vec<Entry>,
    default: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    default: Option<String>,
    #[serde(rename = "model", default)]
    entries: Vec<Entry>,
}

impl Catalog {
    /// The catalog this build carries.
    pub fn embedded() -> Result<Self, StoreError> {
        Self::parse(EMBEDDED_NAME, EMBEDDED)
    }

    /// A catalog by itself; `file` is what errors call it. Its first entry is the default where
    /// it names none.
    pub fn parse(file: &str, text: &str) -> Result<Self, StoreError> {
        let Document { default, entries } = read(file, text)?;
        let checker = Checker { file };
        let default = match default {
            Some(name) => position(&entries, &name)
                .ok_or_else(|| checker.wrong("default", format!("{name:?} is not an entry")))?,
            None if entries.is_empty() => {
                return Err(checker.wrong("model", "there is no entry"));
            }
            None => 0,
        };
        Ok(Self { entries, default })
    }

    /// With what a user's file adds: its entries come first, and stand in place of those of the
    /// same canonical name. It may choose another default.
    pub fn with(self, file: &str, text: &str) -> Result<Self, StoreError> {
        let Document { default, entries } = read(file, text)?;
        let default = default.unwrap_or_else(|| self.default_model().to_string());
        let key = |entry: &Entry| entry.key().to_ascii_lowercase();
        let added: HashSet<String> = entries.iter().map(key).collect();
        let kept = self.entries.into_iter();
        let kept = kept.filter(|entry| !added.contains(&key(entry)));
        let entries: Vec<Entry> = entries.into_iter().chain(kept).collect();
        let default = position(&entries, &default).ok_or_else(|| {
            Checker { file }.wrong("default", format!("{default:?} is not an entry"))
        })?;
        Ok(Self { entries, default })
    }

    /// The embedded catalog with the file at `user`, where there is one.
    pub(crate) fn load(user: Option<&UserFile>) -> Result<Self, StoreError> {
        let embedded = Self::embedded()?;
        let Some(UserFile { path, required }) = user else {
            return Ok(embedded);
        };
        match std::fs::read_to_string(path) {
            Ok(text) => embedded.with(&path.display().to_string(), &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => Ok(embedded),
            Err(cause) => Err(StoreError::CatalogUnreadable {
                path: path.clone(),
                cause,
            }),
        }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn default_model(&self) -> &Entry {
        &self.entries[self.default]
    }

    /// The entry called `name` or `name:tag`, in any case of letters.
    pub fn find(&self, reference: &str) -> Option<&Entry> {
        position(&self.entries, reference).map(|at| &self.entries[at])
    }
}

/// Where a user's own catalog is looked for.
#[derive(Debug, Clone)]
pub(crate) struct UserFile {
    pub path: PathBuf,
    /// Named by the user, so that its absence is a mistake.
    pub required: bool,
}

impl UserFile {
    pub(crate) fn named(path: PathBuf) -> Self {
        Self {
            path,
            required: true,
        }
    }

    pub(crate) fn in_config(dir: &Path) -> Self {
        Self {
            path: dir.join("loquat").join("catalog.toml"),
            required: false,
        }
    }
}

fn read(file: &str, text: &str) -> Result<Document, StoreError> {
    let checker = Checker { file };
    let document: Document = toml::from_str(text)
        .map_err(|error| checker.wrong("its syntax", error.to_string().trim_end()))?;
    let mut seen = HashSet::new();
    for entry in &document.entries {
        checker.entry(entry)?;
        for tag in &entry.tags {
            // Two names that a file system could take for one are one.
            if !seen.insert(format!("{}-{tag}", entry.name).to_ascii_lowercase()) {
                return Err(checker.wrong(entry, format!("{}:{tag} stands twice", entry.name)));
            }
        }
    }
    Ok(document)
}

fn position(entries: &[Entry], reference: &str) -> Option<usize> {
    let (name, tag) = match reference.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (reference, None),
    };
    let tagged = |entry: &Entry| match tag {
        Some(tag) => entry
            .tags
            .iter()
            .any(|known| known.eq_ignore_ascii_case(tag)),
        None => true,
    };
    entries
        .iter()
        .position(|entry| entry.name.eq_ignore_ascii_case(name) && tagged(entry))
}
