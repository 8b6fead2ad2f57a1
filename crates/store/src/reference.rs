//! What a user's word for a model means.

use std::path::{Path, PathBuf};

use crate::{Catalog, Entry, StoreError};

const FILE_SUFFIXES: [&str; 3] = [".gguf", ".safetensors", ".safetensors.index.json"];

/// Where a reference leads.
#[derive(Debug, Clone)]
pub enum Resolved<'a> {
    /// A directory or model file that exists, as the user wrote it.
    Local(PathBuf),
    /// An entry of the catalog, in the store or not.
    Catalog(&'a Entry),
}

pub(crate) fn resolve<'a>(
    reference: &str,
    catalog: &'a Catalog,
) -> Result<Resolved<'a>, StoreError> {
    let path = Path::new(reference);
    let names_a_file = FILE_SUFFIXES.iter().any(|end| reference.ends_with(end));
    if path.is_dir() || (path.is_file() && names_a_file) {
        return Ok(Resolved::Local(path.to_owned()));
    }
    if let Some(entry) = catalog.find(reference) {
        return Ok(Resolved::Catalog(entry));
    }
    if path.exists() {
        return Err(StoreError::NotAModel { path: path.into() });
    }
    if !names_a_file && is_hub_repository(reference) {
        return Err(StoreError::HubNotImplemented {
            reference: reference.to_owned(),
        });
    }
    if names_a_file || reference.contains(std::path::is_separator) {
        return Err(StoreError::PathMissing { path: path.into() });
    }
    Err(StoreError::UnknownModel {
        reference: reference.to_owned(),
        known: known(catalog),
    })
}

/// `owner/name`, perhaps with a tag or revision behind it, and not a path such as `./name`.
fn is_hub_repository(reference: &str) -> bool {
    let word = |text: &str| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let repository = reference.split([':', '@']).next().unwrap_or(reference);
    match repository.split_once('/') {
        Some((owner, name)) => word(owner) && word(name),
        None => false,
    }
}

fn known(catalog: &Catalog) -> String {
    let default = catalog.default_model().to_string();
    let names = catalog.entries().iter().map(|entry| {
        let name = entry.to_string();
        match name == default {
            true => format!("{name} (the default)"),
            false => name,
        }
    });
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_repositories_are_told_from_paths() {
        for (reference, expected) in [
            ("HuggingFaceTB/SmolLM2-135M-Instruct", true),
            ("owner/name:Q4_K_M", true),
            ("owner/name@main", true),
            ("owner/.name", false),
            ("./name", false),
            ("../name", false),
            ("/name", false),
            ("a/b/c", false),
            ("~/name", false),
            ("name", false),
            ("owner/", false),
        ] {
            assert_eq!(is_hub_repository(reference), expected, "{reference}");
        }
    }
}
