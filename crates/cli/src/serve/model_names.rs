//! Names that clients use for the models on the command line.

use std::path::Path;

use loquat_server::config::ModelConfig;
use loquat_store::{ResolvedReference, Store};

/// The model served if none is named.
pub fn default(store: &Store) -> ModelConfig {
    let default = store.default_model();
    // The name alone may resolve to another entry.
    ModelConfig::new(&default.name, default.to_string())
}

pub fn typed(typed: &[String], store: &Store) -> Vec<ModelConfig> {
    typed.iter().map(|typed| model(typed, store)).collect()
}

/// `NAME=MODEL` sets the name. Otherwise a file or folder is served under its own name without the
/// extension, and a catalog entry under the name typed.
fn model(typed: &str, store: &Store) -> ModelConfig {
    match (store.resolve(&typed.into()), typed.split_once('=')) {
        // A file name may contain `=`.
        (Ok(ResolvedReference::Local(model)), _) => ModelConfig::new(file_name(&model.path), typed),
        (Ok(ResolvedReference::Catalog { .. } | ResolvedReference::Hub(_)), _) => {
            ModelConfig::new(typed, typed)
        }
        (Err(_), Some((name, source))) if !name.is_empty() => ModelConfig::new(name, source),
        // The configuration may know the name; otherwise opening it fails.
        (Err(_), _) => ModelConfig::new(typed, typed),
    }
}

fn file_name(path: &Path) -> String {
    let named = if path.is_dir() {
        // `.` and `..` have a name only as an absolute path.
        path.canonicalize().unwrap_or_else(|_| path.to_owned())
    } else {
        path.with_extension("")
    };
    let name = named.file_name().unwrap_or(path.as_os_str());
    // As in the configuration, names have no spaces.
    name.to_string_lossy().replace(char::is_whitespace, "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::open_store;

    #[test]
    fn names_come_from_argument_or_file() {
        let store = open_store().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my model.Q4.gguf");
        std::fs::write(&file, "GGUF").unwrap();
        let odd = folder.path().join("a=b.gguf");
        std::fs::write(&odd, "GGUF").unwrap();
        let [file, odd] = [file, odd].map(|path| path.to_str().unwrap().to_owned());
        let ModelConfig {
            name: catalog,
            source,
            ..
        } = default(&store);
        assert_eq!(source, store.default_model().to_string());
        assert_ne!(source, catalog, "without its tag it may be another model");
        for (typed, name, source) in [
            (file.as_str(), "my-model.Q4", file.as_str()),
            (&odd, "a=b", &odd),
            (&catalog, &catalog, &catalog),
            (&format!("small={file}"), "small", &file),
            (&format!("small={catalog}"), "small", &catalog),
            ("nowhere", "nowhere", "nowhere"),
            ("=nowhere", "=nowhere", "=nowhere"),
        ] {
            let model = model(typed, &store);
            assert_eq!((model.name.as_str(), model.source.as_str()), (name, source));
        }
    }
}
