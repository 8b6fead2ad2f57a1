//! Resolves references as in the table of `docs/models.md`, and checks the errors of invalid ones.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::options_in;
use loquat_store::{FileKind, ModelQuery, ResolvedReference, Store, StoreOptions, path_reference};

const SAFETENSORS: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

/// A folder with one model of every kind, and files that are not models.
struct ModelFolder {
    root: tempfile::TempDir,
}

impl ModelFolder {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let models = Self { root };
        models.write("model.gguf", b"GGUF");
        models.write("no-ending", b"GGUF");
        models.write("plain/config.json", b"{}");
        models.write("plain/model.safetensors", SAFETENSORS);
        models.write("mlx/config.json", br#"{"quantization": {"bits": 4}}"#);
        models.write(
            "mlx/model.safetensors.index.json",
            br#"{"weight_map": {"a": "model-1.safetensors"}}"#,
        );
        models.write("mlx/model-1.safetensors", SAFETENSORS);
        models.write("one/a-Q8_0.gguf", b"GGUF");
        models.write("one/mmproj-a.gguf", b"GGUF");
        models.write("two/a-Q8_0.gguf", b"GGUF");
        models.write("two/a-Q4_0.gguf", b"GGUF");
        models.write("both/config.json", b"{}");
        models.write("both/model.safetensors", SAFETENSORS);
        models.write("both/a-Q8_0.gguf", b"GGUF");
        models
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn store(&self) -> Store {
        Store::open(options_in(self.root.path())).unwrap()
    }

    /// A description of what a reference resolves to; `@` is the folder.
    fn resolved(&self, reference: &str, kind: Option<FileKind>) -> Result<String, String> {
        let root = self.root.path().to_str().unwrap();
        let reference = &reference.replace('@', root);
        self.resolve_query(&ModelQuery {
            reference,
            kind,
            ..ModelQuery::default()
        })
    }

    fn resolve_query(&self, query: &ModelQuery<'_>) -> Result<String, String> {
        let describe = |path: &Path| match path.strip_prefix(self.root.path()) {
            Ok(inner) => inner.display().to_string(),
            Err(_) => path.display().to_string(),
        };
        let store = self.store();
        match store.resolve(query).map_err(|error| error.to_string())? {
            ResolvedReference::Local(model) => {
                Ok(format!("{} {}", model.kind, describe(&model.path)))
            }
            ResolvedReference::Catalog { entry, form } => {
                Ok(format!("catalog {entry} {}", form.kind))
            }
            ResolvedReference::Hub(reference) => Ok(format!("hub {reference}")),
        }
    }
}

#[test]
fn paths_resolve_to_local_models() {
    let models = ModelFolder::new();
    for (reference, kind, expected) in [
        ("@/model.gguf", None, "gguf model.gguf"),
        ("@/no-ending", None, "gguf no-ending"),
        ("@/plain", None, "safetensors plain"),
        (
            "@/plain/model.safetensors",
            None,
            "safetensors plain/model.safetensors",
        ),
        ("@/mlx", None, "mlx mlx"),
        ("@/mlx", Some(FileKind::Mlx), "mlx mlx"),
        (
            "@/mlx/model.safetensors.index.json",
            None,
            "mlx mlx/model.safetensors.index.json",
        ),
        ("@/one", None, "gguf one/a-Q8_0.gguf"),
        ("@/both", Some(FileKind::Gguf), "gguf both/a-Q8_0.gguf"),
        ("@/both", Some(FileKind::Safetensors), "safetensors both"),
    ] {
        assert_eq!(
            models.resolved(reference, kind).as_deref(),
            Ok(expected),
            "{reference} {kind:?}"
        );
    }
}

/// Folders and files whose names are Latin-1.
#[cfg(unix)]
#[test]
fn odd_paths_resolve_and_are_suggested_as_urls() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let shelf = ModelFolder::new();
    let folder = shelf.root.path().join(OsStr::from_bytes(b"mod\xe8les"));
    fs::create_dir(&folder).unwrap();
    let [small, large] = [&b"\xe9t\xe9-Q4_0.gguf"[..], b"\xe9t\xe9-Q8_0.gguf"]
        .map(|name| folder.join(OsStr::from_bytes(name)));
    let store = shelf.store();
    let resolve = |reference: &str| {
        let kind = None;
        let found = store.resolve(&ModelQuery {
            reference,
            kind,
            ..ModelQuery::default()
        });
        found.map(|found| match found {
            ResolvedReference::Local(model) => model.path,
            _ => panic!("{reference} is a path"),
        })
    };
    let reference = path_reference(&folder);
    fs::write(&small, b"GGUF").unwrap();
    assert_eq!(resolve(&reference).unwrap(), small);

    fs::write(&large, b"GGUF").unwrap();
    let ambiguous = resolve(&reference).unwrap_err().to_string();
    for path in [small, large] {
        let suggested = path_reference(&path);
        assert!(suggested.starts_with("file:///"), "{suggested}");
        assert!(
            ambiguous.contains(&suggested),
            "no {suggested} in {ambiguous}"
        );
        assert_eq!(resolve(&suggested).unwrap(), path);
    }
}

#[test]
fn names_resolve_to_catalog_and_hub() {
    let models = ModelFolder::new();
    let mlx = Some(FileKind::Mlx);
    for (reference, kind, expected) in [
        ("smollm2", None, "catalog smollm2:135m gguf"),
        ("smollm2:135m", None, "catalog smollm2:135m gguf"),
        ("Qwen3:4B", None, "catalog qwen3:4b gguf"),
        ("qwen3:4b", mlx, "catalog qwen3:4b mlx"),
        ("qwen3:30b", None, "catalog qwen3:30b-a3b gguf"),
        ("owner/name", None, "hub owner/name"),
        ("owner/name", mlx, "hub owner/name"),
        ("owner/name@v1.0", None, "hub owner/name@v1.0"),
        ("owner/name:Q4_K_M", None, "hub owner/name:Q4_K_M"),
        ("owner/name@main:q8_0", None, "hub owner/name@main:q8_0"),
        (
            "owner/name:sub/dir/a.gguf",
            None,
            "hub owner/name:sub/dir/a.gguf",
        ),
    ] {
        let found = models.resolve_query(&ModelQuery {
            reference,
            kind,
            ..ModelQuery::default()
        });
        assert_eq!(found.as_deref(), Ok(expected), "{reference} {kind:?}");
    }
}

#[test]
fn folder_shadows_catalog_name_only_if_model() {
    let models = ModelFolder::new();
    let store = models.store();
    // Tests run in the crate's own directory, where `src` is a folder and no model.
    let refused = store.resolve(&"src".into()).unwrap_err().to_string();
    assert!(refused.contains("src is not a model"), "{refused}");
    // So is `src/hub`, which may be a repository as well; with a dot it is the folder.
    let resolved = store.resolve(&"src/hub".into()).unwrap();
    assert!(
        matches!(resolved, ResolvedReference::Hub(_)),
        "{resolved:?}"
    );
    let refused = store.resolve(&"./src/hub".into()).unwrap_err().to_string();
    assert!(refused.contains("is not a model"), "{refused}");
}

#[test]
fn gguf_is_the_default_kind() {
    let models = ModelFolder::new();
    let store = models.store();
    for (kind, taken) in [
        (None, FileKind::Gguf),
        (Some(FileKind::Gguf), FileKind::Gguf),
        (Some(FileKind::Mlx), FileKind::Mlx),
    ] {
        let reference = "qwen3:4b";
        match store
            .resolve(&ModelQuery {
                reference,
                kind,
                ..ModelQuery::default()
            })
            .unwrap()
        {
            ResolvedReference::Catalog { form, .. } => assert_eq!(form.kind, taken, "{kind:?}"),
            other => panic!("{kind:?}: {other:?}"),
        }
    }
}

#[test]
fn invalid_reference_is_explained() {
    let models = ModelFolder::new();
    models.write("notes.txt", b"notes");
    models.write("page.gguf", b"<!DOCTYPE html>");
    models.write("pointer.safetensors", b"version https://git-lfs.github.com");
    models.write("bare.safetensors", SAFETENSORS);
    models.write("a-00001-of-00002.gguf", b"GGUF");
    models.write("pytorch/config.json", b"{}");
    models.write("pytorch/pytorch_model.bin", b"");
    models.write("adapter/adapter_config.json", b"{}");
    models.write("half/config.json", b"{}");
    models.write(
        "half/model.safetensors.index.json",
        br#"{"weight_map": {"a": "model-1.safetensors"}}"#,
    );
    for (reference, kind, expected) in [
        ("smollm9", None, &["smollm9", "did you mean", "smollm2"][..]),
        ("qwen3:5b", None, &["qwen3:5b", "qwen3:4b"]),
        ("zzz", None, &["zzz", "smollm2:135m", "loquat search"]),
        ("", None, &["not a model reference"]),
        ("missing.gguf", None, &["nothing at missing.gguf"]),
        ("./missing", None, &["nothing at ./missing"]),
        ("@/missing", None, &["nothing at", "missing"]),
        ("@/notes.txt", None, &["notes.txt is not a model", ".gguf"]),
        ("@/page.gguf", None, &["web page"]),
        ("@/pointer.safetensors", None, &["git lfs pull"]),
        (
            "@/bare.safetensors",
            None,
            &["config.json is missing in the same folder"],
        ),
        (
            "@/a-00001-of-00002.gguf",
            None,
            &["split into 2", "--merge"],
        ),
        ("@/pytorch", None, &["PyTorch", "safetensors"]),
        ("@/adapter", None, &["LoRA"]),
        ("@/half", None, &["model-1.safetensors", "are missing"]),
        (
            "@/two",
            None,
            &["ambiguous", "/two/a-Q8_0.gguf", "/two/a-Q4_0.gguf"],
        ),
        (
            "@/both",
            None,
            &["ambiguous", "/both --gguf", "/both --safetensors"],
        ),
        (
            "@/plain",
            Some(FileKind::Mlx),
            &["is safetensors", "--safetensors"],
        ),
        (
            "gemma3:270m",
            Some(FileKind::Mlx),
            &["gemma3:270m has no mlx", "--gguf"],
        ),
    ] {
        let message = models.resolved(reference, kind).unwrap_err();
        for part in expected {
            assert!(
                message.contains(part),
                "{reference:?}: {part:?} is not in: {message}"
            );
        }
    }
}

#[test]
fn user_catalog_extends_and_overrides() {
    let models = ModelFolder::new();
    let entry = |name: &str, tag: &str, repo: &str| {
        format!(
            "[[model]]\nname = '{name}'\ntags = ['{tag}']\nfamily = 'llama'\nparameters = 1\n\
             context = 1\nlicence = 'none'\nkind = 'base'\n\
             kv = {{ layers = 1, heads = 1, width = 1 }}\n[[model.forms]]\nkind = 'mlx'\n\
             quant = '4bit'\nsources = [{{ type = 'hub', repo = '{repo}' }}]\n"
        )
    };
    let open = |text: &str| {
        models.write("mine.toml", text.as_bytes());
        Store::open(StoreOptions {
            catalog: Some(models.path("mine.toml")),
            ..options_in(models.root.path())
        })
    };
    let store = open(&format!(
        "default = 'mine'\n{}{}",
        entry("mine", "1b", "me/mine"),
        entry("qwen3", "4b", "me/other")
    ))
    .unwrap();
    assert_eq!(store.default_model().to_string(), "mine:1b");
    let overridden = store.catalog().find("qwen3:4b").unwrap();
    assert_eq!(overridden.forms[0].sources[0].name(), "hub me/other");
    assert!(store.catalog().find("smollm2:135m").is_some());

    for (text, said) in [
        (entry("a b", "1b", "me/mine"), "name"),
        (entry("mine", "1b", "mine"), "repo"),
        ("default = 'nope'".to_owned(), "default"),
        (
            entry("mine", "1b", "me/mine").replace("family", "famliy"),
            "famliy",
        ),
    ] {
        let message = open(&text).unwrap_err().to_string();
        for part in [said, "mine.toml"] {
            assert!(message.contains(part), "{message}");
        }
    }
    let missing = Store::open(StoreOptions {
        catalog: Some(models.path("absent.toml")),
        ..options_in(models.root.path())
    });
    let message = missing.unwrap_err().to_string();
    assert!(message.contains("absent.toml"), "{message}");
}

#[test]
fn only_verified_files_are_listed() {
    let models = ModelFolder::new();
    let store = models.store();
    let entry = store.default_model();
    let form = &entry.forms[0];
    let (file, bytes) = (form.file.as_ref().unwrap(), form.bytes.unwrap());
    let path = store.cache_dir().join("models/smollm2-135m").join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Sparse: the right size without a hundred megabytes on disk.
    let sparse = fs::File::create(&path).unwrap();
    sparse.set_len(bytes).unwrap();
    assert!(store.stored_models().unwrap().is_empty());

    let record = format!("{}  {file}\n", form.sha256.as_ref().unwrap());
    fs::write(path.with_extension("gguf.sha256"), record).unwrap();
    let stored = store.stored_models().unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!((&stored[0].path, stored[0].bytes), (&path, 98_362_432));
    assert_eq!(stored[0].name, "smollm2:135m");
    let cached = store.locate_cached(&"smollm2".into()).unwrap().unwrap();
    assert_eq!(cached.path, path);
    assert_eq!(store.locate_cached(&"qwen3:4b".into()).unwrap(), None);

    sparse.set_len(bytes - 1).unwrap();
    assert!(store.stored_models().unwrap().is_empty());
}
