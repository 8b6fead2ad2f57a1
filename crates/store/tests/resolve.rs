//! What references mean, and what is said of those that mean nothing.

use std::fs;

use loquat_store::{Resolved, Store, StoreError, StoreOptions};

fn store(cache_dir: &std::path::Path) -> Store {
    Store::open(StoreOptions {
        cache_dir: Some(cache_dir.to_owned()),
        python: None,
    })
    .unwrap()
}

#[test]
fn existing_models_resolve_to_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for name in ["m.gguf", "m.safetensors", "model.safetensors.index.json"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    fs::create_dir(dir.path().join("checkpoint")).unwrap();
    for name in [
        "m.gguf",
        "m.safetensors",
        "model.safetensors.index.json",
        "checkpoint",
    ] {
        let path = dir.path().join(name);
        match store.resolve(path.to_str().unwrap()).unwrap() {
            Resolved::Local(found) => assert_eq!(found, path),
            other => panic!("{name} resolved to {other:?}"),
        }
    }
    // Relative and without a separator: tests run in the crate's own directory.
    assert!(matches!(store.resolve("src"), Ok(Resolved::Local(_))));
}

#[test]
fn catalog_names_resolve_to_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for (reference, expected) in [
        ("smollm2", "smollm2:135m"),
        ("smollm2:135m", "smollm2:135m"),
        ("gemma3:270m", "gemma3:270m"),
    ] {
        match store.resolve(reference).unwrap() {
            Resolved::Catalog(entry) => assert_eq!(entry.to_string(), expected),
            other => panic!("{reference} resolved to {other:?}"),
        }
    }
    assert_eq!(store.default_model().to_string(), "smollm2:135m");
}

#[test]
fn what_means_nothing_is_refused_with_what_would() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let notes = dir.path().join("notes.txt");
    fs::write(&notes, "").unwrap();
    let missing = dir.path().join("missing");
    for (reference, expected) in [
        (
            "smollm3",
            &[
                "smollm3",
                "smollm2:135m (the default)",
                "gemma3:270m",
                ".gguf",
            ][..],
        ),
        ("smollm2:7b", &["smollm2:7b", "smollm2:135m"]),
        ("", &["smollm2:135m"]),
        ("owner/name", &["owner/name", "not implemented yet", "path"]),
        ("missing.gguf", &["nothing at missing.gguf"]),
        ("./missing", &["nothing at ./missing"]),
        (missing.to_str().unwrap(), &["nothing at", "missing"]),
        (
            notes.to_str().unwrap(),
            &["notes.txt is not a model", ".safetensors"],
        ),
    ] {
        let message = store.resolve(reference).unwrap_err().to_string();
        for part in expected {
            assert!(
                message.contains(part),
                "{reference:?}: {part:?} is not in: {message}"
            );
        }
    }
    assert!(matches!(
        store.resolve("owner/name"),
        Err(StoreError::HubNotImplemented { .. })
    ));
}

#[test]
fn the_list_holds_only_verified_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let entry = store.default_model();
    let path = store.path_of(entry);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Sparse: the right size without a hundred megabytes on disk.
    let file = fs::File::create(&path).unwrap();
    file.set_len(entry.size).unwrap();
    assert!(store.list().is_empty());

    let record = format!("{}  {}\n", entry.sha256, entry.file);
    fs::write(path.with_extension("gguf.sha256"), record).unwrap();
    let listed = store.list();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].path, listed[0].bytes), (&path, 98_362_432));

    file.set_len(entry.size - 1).unwrap();
    assert!(store.list().is_empty());
}
