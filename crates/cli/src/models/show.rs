//! `loquat show`: model details from the catalog and the store.

use loquat_store::{
    CatalogEntry, LocalModel, ModelForm, ModelQuery, Owner, ResolvedReference, Store, StoreError,
    StoredModel,
};
use serde_json::{Value, json};

use super::{as_json, kind};
use crate::args::ShowArgs;
use crate::error::CliError;
use crate::load::open_store;
use crate::models::age::since;
use crate::terminal::{bytes, print, print_json};

pub fn show(args: &ShowArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let wanted = ModelQuery {
        reference: &args.model,
        kind: args.kinds.kind(),
        ..ModelQuery::default()
    };
    let details = ModelDetails::find(&store, &wanted)?;
    if args.json {
        print_json(&details.as_json())
    } else {
        print(&details.as_text())
    }
}

/// What is known about a model, and its local files.
struct ModelDetails<'a> {
    name: String,
    entry: Option<&'a CatalogEntry>,
    held: Vec<StoredModel>,
    /// The user's own files.
    own: Option<LocalModel>,
}

impl<'a> ModelDetails<'a> {
    fn find(store: &'a Store, wanted: &ModelQuery<'_>) -> Result<Self, CliError> {
        let resolved = store.resolve(wanted);
        let held = match store.find_stored(wanted) {
            Ok(held) => held,
            Err(StoreError::NotStored { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let entry = match &resolved {
            Ok(ResolvedReference::Catalog { entry, .. }) => Some(*entry),
            // A repository may belong to a catalog entry.
            _ => held
                .iter()
                .find_map(|held| store.catalog().find(&held.name)),
        };
        let name = match entry {
            Some(entry) => entry.to_string(),
            None => wanted.reference.to_owned(),
        };
        let own = match resolved {
            Ok(ResolvedReference::Local(model)) if held.is_empty() => Some(model),
            Err(error) if held.is_empty() => return Err(error.into()),
            Ok(ResolvedReference::Hub(_)) if held.is_empty() => {
                return Err(StoreError::NotStored { name }.into());
            }
            _ => None,
        };
        Ok(Self {
            name,
            entry,
            held,
            own,
        })
    }

    fn as_text(&self) -> String {
        let mut rows = vec![("model", self.name.clone())];
        if let Some(entry) = self.entry {
            rows.extend(entry_rows(entry));
        }
        for held in &self.held {
            rows.extend(held_rows(held));
        }
        if let Some(own) = &self.own {
            rows.push(("kind", own.kind.name().to_owned()));
            rows.push(("path", own.path.display().to_string()));
            rows.push(("more", format!("`loquat inspect {}`", self.name)));
        } else if self.held.is_empty() {
            let pull = format!("no; `loquat pull {}` downloads it", self.name);
            rows.push(("on this machine", pull));
        }
        let lines = rows
            .iter()
            .map(|(name, value)| format!("{name:<17}{value}\n"));
        lines.collect()
    }

    fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "catalog": self.entry.map(entry_as_json),
            "here": self.held.iter().map(as_json).collect::<Vec<_>>(),
            "own": self.own.as_ref().map(|own| json!({
                "kind": own.kind.name(), "path": own.path.to_string_lossy(),
            })),
        })
    }
}

fn entry_rows(entry: &CatalogEntry) -> Vec<(&'static str, String)> {
    let parameters = match entry.active_parameters {
        Some(active) => format!(
            "{}, {} active per token",
            count(entry.parameters),
            count(active)
        ),
        None => count(entry.parameters),
    };
    let context = u64::from(entry.context);
    let mut rows = vec![
        ("family", entry.family.clone()),
        ("kind", entry.kind.name().to_owned()),
        ("parameters", parameters),
        ("context", format!("{context} tokens")),
        ("licence", entry.licence.clone()),
        (
            "KV",
            format!(
                "{} per token, {} at the full context, in 16 bits",
                bytes(entry.kv_bytes_per_token()),
                bytes(entry.kv_bytes(context))
            ),
        ),
    ];
    for form in &entry.forms {
        let sources: Vec<String> = form.sources.iter().map(|source| source.name()).collect();
        let checked = match form.sha256 {
            Some(_) => "",
            None => "; checked against the hub's hash",
        };
        rows.push((
            form.kind.name(),
            format!(
                "{}, {}, from {}{checked}",
                form.quant,
                size(entry, form),
                sources.join(" or ")
            ),
        ));
    }
    rows
}

fn held_rows(held: &StoredModel) -> Vec<(&'static str, String)> {
    let quant = match &held.quant {
        Some(quant) => format!(" {quant}"),
        None if held.is_adapter => String::new(),
        None => " (unknown quantization)".to_owned(),
    };
    let mut rows = vec![
        (
            "on this machine",
            format!("{}{quant}, {}", kind(held), bytes(held.bytes)),
        ),
        ("path", held.path.display().to_string()),
        (
            "source",
            match held.owner {
                Owner::Store => held.source.clone(),
                Owner::Shared => format!("{}, downloaded by another tool", held.source),
            },
        ),
        (
            "last used",
            held.last_used.map_or_else(|| "never".to_owned(), since),
        ),
    ];
    if held.verified.is_some() {
        rows.push(("verified", "SHA-256 verified at download".to_owned()));
    }
    rows
}

pub fn entry_as_json(entry: &CatalogEntry) -> Value {
    let form = |form: &ModelForm| {
        let size = entry.size(form);
        json!({
            "kind": form.kind.name(),
            "quant": form.quant,
            "file": form.file,
            "bytes": size.bytes,
            "bytes_are_exact": size.exact,
            "sha256": form.sha256,
            "sources": form.sources.iter().map(|source| source.name()).collect::<Vec<_>>(),
        })
    };
    json!({
        "name": entry.to_string(),
        "tags": entry.tags,
        "family": entry.family,
        "kind": entry.kind.name(),
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters,
        "context": entry.context,
        "licence": entry.licence,
        "kv_bytes_per_token": entry.kv_bytes_per_token(),
        "forms": entry.forms.iter().map(form).collect::<Vec<_>>(),
    })
}

/// The size of a form, marked if it is an estimate.
pub fn size(entry: &CatalogEntry, form: &ModelForm) -> String {
    let size = entry.size(form);
    if size.exact {
        bytes(size.bytes)
    } else {
        format!("about {}", bytes(size.bytes))
    }
}

/// A rounded parameter count.
pub fn count(parameters: u64) -> String {
    match parameters as f64 {
        count if count >= 9.95e9 => format!("{:.0}B", count / 1e9),
        count if count >= 0.9995e9 => format!("{:.1}B", count / 1e9),
        count => format!("{:.0}M", count / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn parameter_counts_are_rounded() {
        for (parameters, expected) in [
            (134_515_008, "135M"),
            (999_885_952, "1.0B"),
            (7_615_616_512, "7.6B"),
            (32_762_123_264, "33B"),
        ] {
            assert_eq!(count(parameters), expected);
        }
    }
}
