//! Models known by name, from `catalog.toml` and the user's own file.
//!
//! Parsing validates every [`CatalogEntry`], so the rest of the crate may join its names to paths
//! and pass its packages to pip without further checks.

pub(crate) mod check;
pub(crate) mod entry;
mod search;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use entry::{
    CatalogEntry, DownloadSource, KvShape, ModelForm, ModelKind, ModelSize, PackagePart,
};

use crate::StoreError;
use check::Checker;

const EMBEDDED: &str = include_str!("../../catalog.toml");
const EMBEDDED_NAME: &str = "the embedded catalog";

/// The known models: the embedded catalog, extended by the user's.
#[derive(Debug, Clone)]
pub struct Catalog {
    entries: Vec<CatalogEntry>,
    default: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    default: Option<String>,
    #[serde(rename = "model", default)]
    entries: Vec<CatalogEntry>,
}

impl Catalog {
    /// The catalog embedded in this build.
    pub fn embedded() -> Result<Self, StoreError> {
        Self::parse(EMBEDDED_NAME, EMBEDDED)
    }

    /// Parses a catalog; errors call it `file`. If it names no default, the first entry is the
    /// default.
    pub fn parse(file: &str, text: &str) -> Result<Self, StoreError> {
        let Document { default, entries } = read(file, text)?;
        let checker = Checker { file };
        let default = match default {
            Some(name) => position(&entries, &name)
                .ok_or_else(|| checker.invalid("default", format!("{name:?} is not an entry")))?,
            None if entries.is_empty() => {
                return Err(checker.invalid("model", "it has no entries"));
            }
            None => 0,
        };
        Ok(Self { entries, default })
    }

    /// Adds a user's file. Its entries come first and replace those of the same canonical name. It
    /// may set another default.
    pub fn with(self, file: &str, text: &str) -> Result<Self, StoreError> {
        let Document { default, entries } = read(file, text)?;
        let default = default.unwrap_or_else(|| self.default_model().to_string());
        let key = |entry: &CatalogEntry| entry.key().to_ascii_lowercase();
        let added: HashSet<String> = entries.iter().map(key).collect();
        let kept = self.entries.into_iter();
        let kept = kept.filter(|entry| !added.contains(&key(entry)));
        let entries: Vec<CatalogEntry> = entries.into_iter().chain(kept).collect();
        let default = position(&entries, &default).ok_or_else(|| {
            Checker { file }.invalid("default", format!("{default:?} is not an entry"))
        })?;
        Ok(Self { entries, default })
    }

    /// The embedded catalog, extended by the user's file if it exists.
    pub(crate) fn load(user: Option<&UserCatalog>) -> Result<Self, StoreError> {
        let embedded = Self::embedded()?;
        let Some(UserCatalog { path, required }) = user else {
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

    /// Every entry, the user's first.
    pub fn entries(&self) -> &[CatalogEntry] {
        &self.entries
    }

    /// The entry to use if the user names no model.
    pub fn default_model(&self) -> &CatalogEntry {
        &self.entries[self.default]
    }

    /// Finds an entry by `name` or `name:tag`, ignoring case.
    pub fn find(&self, reference: &str) -> Option<&CatalogEntry> {
        position(&self.entries, reference).map(|at| &self.entries[at])
    }
}

/// The location of the user's own catalog.
#[derive(Debug, Clone)]
pub(crate) struct UserCatalog {
    pub path: PathBuf,
    /// The user named the file, so it must exist.
    pub required: bool,
}

impl UserCatalog {
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
        .map_err(|error| checker.invalid("its syntax", error.to_string().trim_end()))?;
    let mut seen = HashSet::new();
    for entry in &document.entries {
        checker.entry(entry)?;
        for tag in &entry.tags {
            // Names that a case-insensitive file system would merge count as equal.
            if !seen.insert(format!("{}-{tag}", entry.name).to_ascii_lowercase()) {
                return Err(checker.invalid(entry, format!("{}:{tag} is listed twice", entry.name)));
            }
        }
    }
    Ok(document)
}

fn position(entries: &[CatalogEntry], reference: &str) -> Option<usize> {
    let (name, tag) = match reference.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (reference, None),
    };
    let tagged = |entry: &CatalogEntry| match tag {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileKind;

    #[test]
    fn embedded_catalog_is_valid() {
        let catalog = Catalog::embedded().unwrap();
        let default = catalog.default_model();
        assert_eq!(
            (default.to_string().as_str(), default.kind),
            ("smollm2:135m", ModelKind::Instruct)
        );
        let gemma = catalog.find("gemma3:270m").unwrap();
        let [DownloadSource::PythonPackages { parts }] = &gemma.forms[0].sources[..] else {
            panic!("gemma3:270m should have one source");
        };
        assert_eq!(parts.len(), 4);
        let (size, last_wheel) = (gemma.size(&gemma.forms[0]), 60_704_618);
        assert!(size.exact);
        assert_eq!(entry::peak_bytes(parts), size.bytes + last_wheel);
    }

    #[test]
    fn embedded_catalog_sizes_are_plausible() {
        let catalog = Catalog::embedded().unwrap();
        let with = |kind| {
            let has = |entry: &&CatalogEntry| entry.form(kind).is_some();
            catalog.entries().iter().filter(has).count()
        };
        assert!(with(FileKind::Gguf) >= 25 && with(FileKind::Mlx) >= 25);
        for entry in catalog.entries() {
            for form in &entry.forms {
                let bits = form.bits_per_weight();
                assert!((2.0..=16.0).contains(&bits), "{entry}: {bits}");
                let size = entry.size(form);
                let reckoned = entry.parameters as f64 * bits / 8.0;
                let share = size.bytes as f64 / reckoned;
                // Embeddings of small models use more bits than the name says.
                assert!(
                    (0.8..1.6).contains(&share),
                    "{entry} {}: {share}",
                    form.quant
                );
            }
        }
    }

    #[test]
    fn every_family_is_in_the_support_matrix() {
        let page = include_str!("../../../../docs/support.md");
        for entry in Catalog::embedded().unwrap().entries() {
            let row = format!("| `{}` |", entry.family);
            assert!(page.contains(&row), "{entry}: {}", entry.family);
        }
    }

    #[test]
    fn reference_finds_its_entry() {
        let catalog = Catalog::embedded().unwrap();
        for (reference, expected) in [
            ("smollm2", Some("smollm2:135m")),
            ("smollm2:135m", Some("smollm2:135m")),
            ("SmolLM2:135M", Some("smollm2:135m")),
            ("gemma3", Some("gemma3:270m-it")),
            ("qwen3:30b", Some("qwen3:30b-a3b")),
            ("smollm2:", None),
            ("smollm2:270m", None),
            (":135m", None),
            ("", None),
        ] {
            let found = catalog.find(reference).map(CatalogEntry::to_string);
            assert_eq!(found.as_deref(), expected, "{reference:?}");
        }
    }

    #[test]
    fn search_tolerates_typos() {
        let catalog = Catalog::embedded().unwrap();
        for (words, first) in [
            (&["smollm3"][..], "smollm3:3b"),
            (&["qwen3", "8b"], "qwen3:8b"),
            (&["QWEN", "coder"], ""),
            (&["mistral", "24b"], "mistral-small:24b"),
            (&["deepsek"], "deepseek-r1:1.5b"),
            (&["gpt_oss"], "gpt-oss:20b"),
            (&["mit", "phi3"], "phi3.5:mini"),
        ] {
            let found = catalog.search(words);
            let found = found.first().map(|entry| entry.to_string());
            assert_eq!(found.unwrap_or_default(), first, "{words:?}");
        }
        assert_eq!(catalog.search(&[]).len(), catalog.entries().len());
        for (typed, meant) in [
            ("qwen3:4", "qwen3:4b"),
            ("lama3.2:1b", "llama3.2:1b"),
            ("gema3:1b", "gemma3:1b"),
        ] {
            assert_eq!(catalog.suggest(typed).first().unwrap(), meant, "{typed}");
        }
        assert!(catalog.suggest("xyz").is_empty());
    }

    #[test]
    fn windows_bound_kv_bytes() {
        let catalog = Catalog::embedded().unwrap();
        // Per layer and token: 2 (keys, values) × heads × width × 2 bytes.
        for (name, tokens, expected) in [
            ("smollm2:135m", 10, 30 * 10 * (2 * 3 * 64 * 2)),
            ("gemma3:270m", 100, 18 * 100 * (2 * 256 * 2)),
            ("gemma3:270m", 1000, (3 * 1000 + 15 * 512) * (2 * 256 * 2)),
        ] {
            let entry = catalog.find(name).unwrap();
            assert_eq!(entry.kv_bytes(tokens), expected, "{name} {tokens}");
        }
    }

    #[test]
    fn invalid_field_is_named() {
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
            ("kind = \"gguf\"", "kind = \"mlx\"", "file"),
            ("sha256 = \"a5fd", "sha256 = \"A5FD", "sha256"),
            ("parameters = 268_098_176", "parameters = 0", "parameters"),
            ("context = 32768", "context = 0", "context"),
            ("layers = 30,", "layers = 0,", "kv"),
            (", full_layers = 3", "", "full_layers"),
            ("quant = \"Q4_1\"", "quant = \"\"", "quant"),
            ("kind = \"base\"", "kind = \"chat\"", "kind"),
            ("bytes = 253_113_024", "bytes = 253_113_025", "bytes"),
            ("type = \"python-packages\"", "type = \"ftp\"", "ftp"),
            ("repo = \"Quant", "repo = \"../Quant", "repo"),
            ("package = \"llm-", "package = \"--llm-", "package"),
            ("version = \"0.1.2\"", "version = \"0.1.2 x\"", "version"),
            ("family = \"llama\"", "famliy = \"llama\"", "famliy"),
        ] {
            let text = EMBEDDED.replacen(right, wrong, 1);
            assert_ne!(text, EMBEDDED, "{right} is not in the catalog");
            let message = Catalog::parse("the file", &text).unwrap_err().to_string();
            assert!(
                message.contains(named) && message.starts_with("the file"),
                "{wrong}: {message}"
            );
        }
    }
}
