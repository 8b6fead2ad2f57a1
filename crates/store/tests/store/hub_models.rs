//! Hub models, from reference to inventory, against a hub server.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use loquat_hubkit::{FakeFile, FakeRepo, HubFault, HubServer, Site, noise};
use loquat_store::{
    Catalog, FileKind, HashSource, HubOptions, LocatedMmproj, MmprojQuery, ModelQuery, NoProgress,
    Owner, Prunable, PruneOptions, Store, StoreOptions, StoredModel, VerifyReport,
};

use crate::fixture::{RecordedProgress, options_in};

/// A file with a GGUF header, which is all the store reads.
fn gguf(seed: u64) -> Vec<u8> {
    [b"GGUF".to_vec(), noise(5000, seed)].concat()
}

fn safetensors(seed: u64) -> Vec<u8> {
    [&2_u64.to_le_bytes()[..], b"{}", &noise(3000, seed)].concat()
}

/// A GGUF file that says that it is an adapter, and nothing else.
fn adapter_gguf() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    const STRING: u32 = 8;
    [
        &b"GGUF"[..],
        &3_u32.to_le_bytes(),
        &0_u64.to_le_bytes(),
        &1_u64.to_le_bytes(),
        &text("general.type"),
        &STRING.to_le_bytes(),
        &text("adapter"),
    ]
    .concat()
}

fn repos() -> Vec<FakeRepo> {
    let quants = [("m-Q8_0.gguf", 1), ("m-Q4_K_M.gguf", 2), ("m-Q2_K.gguf", 3)];
    let mut of_quants: Vec<FakeFile> = quants
        .iter()
        .map(|(name, seed)| FakeFile::large(name, gguf(*seed)))
        .collect();
    of_quants.push(FakeFile::small("README.md", "read me"));
    of_quants.push(FakeFile::large("mmproj-m-f16.gguf", gguf(4)));
    let sharded = vec![
        FakeFile::small("config.json", r#"{"quantization": {"bits": 4}}"#),
        FakeFile::small(
            "model.safetensors.index.json",
            r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#,
        ),
        FakeFile::large("model-1.safetensors", safetensors(10)),
        FakeFile::large("model-2.safetensors", safetensors(11)),
        FakeFile::large("consolidated.safetensors", safetensors(12)),
        FakeFile::large("pytorch_model.bin", noise(3000, 5)),
        FakeFile::small("tokenizer.json", "{}"),
        FakeFile::small("chat_template.jinja", "{{ messages }}"),
        FakeFile::small("additional_chat_templates/rag.jinja", "{{ rag }}"),
    ];
    let both = vec![
        FakeFile::small("config.json", "{}"),
        FakeFile::large("model.safetensors", safetensors(13)),
        FakeFile::small("tokenizer.json", "{}"),
        FakeFile::large("b-Q8_0.gguf", gguf(6)),
    ];
    let other = vec![FakeFile::large("not-really.gguf", noise(2000, 7))];
    let peft = ["", "step-5/"].into_iter().flat_map(|folder| {
        let config = FakeFile::small(&format!("{folder}adapter_config.json"), "{}");
        let weights = format!("{folder}adapter_model.safetensors");
        [
            config,
            FakeFile::large(&weights, safetensors(20 + folder.len() as u64)),
        ]
    });
    let peft = peft
        .chain([FakeFile::small("tokenizer.json", "{}")])
        .collect();
    let mut plain = FakeRepo::new("o/unhashed", vec![FakeFile::large("u-Q8_0.gguf", gguf(1))]);
    plain.lists_hashes = false;
    vec![
        FakeRepo::new("o/quants", of_quants),
        FakeRepo::new("o/sharded-mlx", sharded),
        FakeRepo::new("o/both", both),
        FakeRepo::new("o/other", other),
        FakeRepo::new("o/peft", peft),
        FakeRepo::new(
            "o/lora-gguf",
            vec![FakeFile::large("a-f16.gguf", adapter_gguf())],
        ),
        plain,
    ]
}

struct StoreFixture {
    root: tempfile::TempDir,
    hub: HubServer,
}

impl StoreFixture {
    fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            hub: HubServer::start(repos()).unwrap(),
        }
    }

    fn options(&self) -> StoreOptions {
        let options = options_in(self.root.path());
        StoreOptions {
            hub: HubOptions {
                endpoint: Some(self.hub.url()),
                ..options.hub
            },
            ..options
        }
    }

    fn store(&self) -> Store {
        Store::open(self.options()).unwrap()
    }

    fn offline(&self) -> Store {
        let mut options = self.options();
        options.hub.offline = true;
        Store::open(options).unwrap()
    }

    /// Another cache directory, without the records of downloads.
    fn other_store(&self) -> Store {
        Store::open(StoreOptions {
            cache_dir: Some(self.root.path().join("another")),
            ..self.options()
        })
        .unwrap()
    }

    /// A store with these models in addition to the catalog's.
    fn store_of(&self, catalog: &str) -> Store {
        let path = self.root.path().join("catalog.toml");
        fs::write(&path, catalog).unwrap();
        Store::open(StoreOptions {
            catalog: Some(path),
            ..self.options()
        })
        .unwrap()
    }

    fn hub_files(&self) -> PathBuf {
        self.root.path().join("hub")
    }

    fn requested_files(&self, site: Site) -> Vec<String> {
        let requests = self.hub.requests().into_iter();
        let files = requests.filter(|request| request.site == site);
        let mut files: Vec<String> = files.filter_map(|request| request.file).collect();
        files.sort();
        files.dedup();
        files
    }
}

fn pull(store: &Store, reference: &str) -> String {
    store.pull(&reference.into(), &mut NoProgress).unwrap().name
}

fn stored(store: &Store, name: &str) -> StoredModel {
    let found = store.stored_models().unwrap();
    let mut found = found.into_iter().filter(|stored| stored.name == name);
    found
        .next()
        .unwrap_or_else(|| panic!("{name} is not stored"))
}

fn names(store: &Store) -> Vec<String> {
    let stored = store.stored_models().unwrap().into_iter();
    stored.map(|stored| stored.name).collect()
}

#[test]
fn default_quant_is_fetched_and_reported() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let mut progress = RecordedProgress::default();
    let located = store.locate(&"o/quants".into(), &mut progress).unwrap();
    assert_eq!(located.name, "o/quants:Q4_K_M");
    assert_eq!(fs::read(&located.path).unwrap(), gguf(2));
    // With its vision tower.
    assert_eq!(
        fixture.requested_files(Site::Resolve),
        ["m-Q4_K_M.gguf", "mmproj-m-f16.gguf"]
    );
    assert!(
        progress.notes[0].contains("using Q4_K_M"),
        "{:?}",
        progress.notes
    );

    for (reference, file) in [
        ("o/quants:q8_0", 1),
        ("o/quants:m-Q2_K.gguf", 3),
        ("o/quants@main:Q8_0", 1),
    ] {
        let located = store.locate(&reference.into(), &mut NoProgress).unwrap();
        assert_eq!(fs::read(&located.path).unwrap(), gguf(file), "{reference}");
    }
}

#[test]
fn only_needed_files_are_fetched() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let located = store
        .locate(&"o/sharded-mlx".into(), &mut NoProgress)
        .unwrap();
    assert!(located.path.join("config.json").is_file());
    assert_eq!(
        fixture.requested_files(Site::Resolve),
        [
            "additional_chat_templates/rag.jinja",
            "chat_template.jinja",
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ]
    );
    let stored = stored(&store, "o/sharded-mlx");
    assert_eq!(
        (stored.kind, stored.quant.as_deref()),
        (FileKind::Mlx, Some("4bit"))
    );
}

#[test]
fn local_model_needs_no_network() {
    let fixture = StoreFixture::new();
    let first = fixture
        .store()
        .locate(&"o/quants:Q8_0".into(), &mut NoProgress)
        .unwrap();
    let before = fixture.hub.requests().len();
    for store in [fixture.store(), fixture.offline()] {
        let again = store.locate(&"o/quants:Q8_0".into(), &mut NoProgress);
        assert_eq!(again.unwrap(), first);
        // If only one quant is local, it is used.
        let mut progress = RecordedProgress::default();
        let any = store.locate(&"o/quants".into(), &mut progress).unwrap();
        assert_eq!(any.path, first.path);
        assert!(
            progress.notes[0].contains("using the local Q8_0"),
            "{:?}",
            progress.notes
        );
    }
    assert_eq!(fixture.hub.requests().len(), before);
    // A pull checks the hub for updates.
    pull(&fixture.store(), "o/quants:Q8_0");
    assert!(fixture.hub.requests().len() > before);
}

#[test]
fn offline_error_names_missing_files() {
    let fixture = StoreFixture::new();
    pull(&fixture.store(), "o/quants:Q8_0");
    let offline = fixture.offline();
    for (reference, said) in [
        ("o/both", &["o/both", "offline"][..]),
        ("o/quants:Q2_K", &["o/quants", "Q2_K", "offline"]),
        ("smollm2", &["smollm2", "offline"]),
    ] {
        let refused = offline.locate(&reference.into(), &mut NoProgress);
        let message = refused.unwrap_err().to_string();
        for part in said {
            assert!(message.contains(part), "{reference}: {message}");
        }
    }
}

#[test]
fn ambiguous_reference_lists_candidates() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let mlx = Some(FileKind::Mlx);
    for (reference, kind, said) in [
        ("o/both", None, &["o/both:Q8_0", "o/both --safetensors"][..]),
        (
            "o/quants:Q6_K",
            None,
            &["no Q6_K", "o/quants:Q2_K", "5.0 kB"],
        ),
        ("o/both", mlx, &["is safetensors", "--safetensors"]),
        ("o/quants", mlx, &["no mlx", "o/quants:Q8_0"]),
        ("o/other", None, &["not-really.gguf", "header"]),
        ("o/absent", None, &["o/absent"]),
        ("o/quants@v9", None, &["v9"]),
    ] {
        let refused = store.locate(
            &ModelQuery {
                reference,
                kind,
                ..ModelQuery::default()
            },
            &mut NoProgress,
        );
        let message = refused.unwrap_err().to_string();
        for part in said {
            assert!(
                message.contains(part),
                "{reference}: {part} not in: {message}"
            );
        }
    }
    let gguf = ModelQuery {
        reference: "o/both",
        kind: Some(FileKind::Gguf),
        ..ModelQuery::default()
    };
    let located = store.locate(&gguf, &mut NoProgress).unwrap();
    assert_eq!(located.name, "o/both:Q8_0");
}

/// A catalog whose model `toy:1b` has these forms.
fn catalog(forms: &str) -> String {
    format!(
        "[[model]]\nname = 'toy'\ntags = ['1b']\nfamily = 'llama'\nparameters = 1\ncontext = 1\n\
         licence = 'none'\nkind = 'base'\nkv = {{ layers = 1, heads = 1, width = 1 }}\n{forms}"
    )
}

fn form(sha256: &str, repos: &[&str]) -> String {
    let sources: Vec<String> = repos
        .iter()
        .map(|repo| format!("{{ type = 'hub', repo = '{repo}' }}"))
        .collect();
    format!(
        "[[model.forms]]\nkind = 'gguf'\nquant = 'Q8_0'\nfile = 'm-Q8_0.gguf'\n\
         sha256 = '{sha256}'\nsources = [{}]\n",
        sources.join(", ")
    )
}

#[test]
fn sources_are_tried_in_order_and_verified() {
    let right = FakeFile::large("", gguf(1)).etag();
    let wrong = "0".repeat(64);
    let fixture = StoreFixture::new();
    let toy = ModelQuery::from("toy");

    let store = fixture.store_of(&catalog(&form(&wrong, &["o/quants"])));
    let message = store.locate(&toy, &mut NoProgress).unwrap_err().to_string();
    for part in ["toy:1b", &wrong, &right, "o/quants:m-Q8_0.gguf"] {
        assert!(message.contains(part), "{message}");
    }
    // The hub states the hash before the download.
    assert_eq!(fixture.requested_files(Site::Resolve), Vec::<String>::new());

    let store = fixture.store_of(&catalog(&form(&right, &["o/absent", "o/quants"])));
    let mut progress = RecordedProgress::default();
    let located = store.locate(&toy, &mut progress).unwrap();
    assert_eq!(fs::read(&located.path).unwrap(), gguf(1));
    assert!(
        progress.notes[0].contains("o/absent"),
        "{:?}",
        progress.notes
    );
    let stored = stored(&store, "toy:1b");
    assert_eq!(
        (stored.owner, stored.verified),
        (Owner::Store, Some(HashSource::Catalog))
    );

    // The file is found under another name, and if the hub states no hash.
    let renamed = form(&right, &["o/unhashed"]).replace("m-Q8_0", "u-Q8_0");
    let store = fixture.store_of(&catalog(&renamed));
    assert_eq!(
        fs::read(store.locate(&toy, &mut NoProgress).unwrap().path).unwrap(),
        gguf(1)
    );
    let renamed = form(&wrong, &["o/unhashed"]).replace("m-Q8_0", "u-Q8_0");
    let store = fixture.store_of(&catalog(&renamed));
    let message = store.locate(&toy, &mut NoProgress).unwrap_err().to_string();
    assert!(message.contains(&right), "{message}");
    assert!(Catalog::embedded().unwrap().find("toy").is_none());
}

#[test]
fn inventory_distinguishes_owners() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    pull(&store, "o/quants:Q8_0");
    pull(&store, "o/quants:Q2_K");
    pull(&store, "o/sharded-mlx");
    assert_eq!(
        names(&store),
        ["o/quants:Q2_K", "o/quants:Q8_0", "o/sharded-mlx"]
    );
    let one = stored(&store, "o/quants:Q8_0");
    assert_eq!(
        (one.owner, one.bytes, one.last_used),
        (Owner::Store, 2 * 5004, None)
    );
    store
        .locate(&"o/quants:Q8_0".into(), &mut NoProgress)
        .unwrap();
    assert!(stored(&store, "o/quants:Q8_0").last_used.is_some());

    // Another cache directory has no records of the downloads.
    let other_store = fixture.other_store();
    let foreign = stored(&other_store, "o/quants:Q8_0");
    assert_eq!(foreign.owner, Owner::Shared);
    let message = other_store
        .remove(&foreign, &mut NoProgress)
        .unwrap_err()
        .to_string();
    let path = foreign.path.to_str().unwrap();
    assert!(
        message.contains(path) && message.contains("another tool"),
        "{message}"
    );
    // Pulling an existing model does not change its owner.
    pull(&other_store, "o/quants:Q8_0");
    assert_eq!(stored(&other_store, "o/quants:Q8_0").owner, Owner::Shared);
}

#[test]
fn remove_frees_only_one_model() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    pull(&store, "o/quants:Q8_0");
    pull(&store, "o/quants:Q2_K");
    let kept = stored(&store, "o/quants:Q2_K");
    let freed = store
        .remove(&stored(&store, "o/quants:Q8_0"), &mut NoProgress)
        .unwrap();
    // Both need the vision tower.
    assert_eq!(freed, 5004);
    assert_eq!(names(&store), ["o/quants:Q2_K"]);
    assert_eq!(fs::read(&kept.path).unwrap(), gguf(3));
    let tower = kept.path.with_file_name("mmproj-m-f16.gguf");
    assert_eq!(fs::read(tower).unwrap(), gguf(4));
    let kept = stored(&store, "o/quants:Q2_K");
    store.remove(&kept, &mut NoProgress).unwrap();
    assert!(names(&store).is_empty());
    assert!(!fixture.hub_files().join("models--o--quants").exists());
    let refused = store.find_stored(&"o/quants:Q2_K".into()).unwrap_err();
    assert!(refused.to_string().contains("loquat models"), "{refused}");
}

#[test]
fn damaged_file_is_found() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    pull(&store, "o/quants:Q8_0");
    pull(&store, "o/quants:Q2_K");
    let one = stored(&store, "o/quants:Q8_0");
    assert_eq!(
        store.verify(&one, &mut NoProgress).unwrap(),
        VerifyReport::default()
    );
    let mut bytes = fs::read(&one.path).unwrap();
    bytes[2000] ^= 1;
    fs::write(&one.path, bytes).unwrap();
    let wrong = store.verify(&one, &mut NoProgress).unwrap().damaged;
    assert!(wrong[0].starts_with("m-Q8_0.gguf"), "{wrong:?}");
    let other = stored(&store, "o/quants:Q2_K");
    assert_eq!(
        store.verify(&other, &mut NoProgress).unwrap(),
        VerifyReport::default()
    );

    // A pull verifies and repairs it, even if another tool downloaded it.
    for store in [&store, &fixture.other_store()] {
        fs::write(&one.path, vec![0; 5004]).unwrap();
        let mut progress = RecordedProgress::default();
        store.pull(&"o/quants:Q8_0".into(), &mut progress).unwrap();
        assert!(
            progress.notes[0].contains("m-Q8_0.gguf"),
            "{:?}",
            progress.notes
        );
        assert_eq!(fs::read(&one.path).unwrap(), gguf(1));
    }
    let shared = stored(&fixture.other_store(), "o/quants:Q8_0");
    assert_eq!(shared.owner, Owner::Shared);
}

#[test]
fn verify_lists_unchecked_files() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    pull(&store, "o/quants:Q8_0");
    // Simulates systems without symlinks.
    let one = stored(&store, "o/quants:Q8_0");
    fs::remove_file(&one.path).unwrap();
    fs::write(&one.path, gguf(1)).unwrap();
    let one = stored(&store, "o/quants:Q8_0");
    let verdict = store.verify(&one, &mut NoProgress).unwrap();
    assert!(verdict.damaged.is_empty());
    assert_eq!(verdict.unchecked, ["m-Q8_0.gguf"]);
}

const ALWAYS: usize = 1000;

fn missing() -> HubFault {
    HubFault::Status(404, Vec::new())
}

#[test]
fn failed_update_keeps_old_model() {
    let mut fixture = StoreFixture::new();
    let query = ModelQuery {
        reference: "o/both",
        kind: Some(FileKind::Safetensors),
        ..ModelQuery::default()
    };
    fixture.store().pull(&query, &mut NoProgress).unwrap();
    let files = vec![
        FakeFile::small("config.json", r#"{"newer": true}"#),
        FakeFile::large("model.safetensors", safetensors(20)),
        FakeFile::small("tokenizer.json", "{}"),
    ];
    let newer = FakeRepo {
        commit: "e".repeat(40),
        ..FakeRepo::new("o/both", files)
    };
    fixture.hub = HubServer::start(vec![newer.clone()]).unwrap();
    fixture.hub.inject_fault(Site::Large, ALWAYS, missing());
    assert!(fixture.store().pull(&query, &mut NoProgress).is_err());
    let weights = |store: Store| {
        let located = store.locate(&query, &mut NoProgress).unwrap();
        fs::read(located.path.join("model.safetensors")).unwrap()
    };
    assert!(weights(fixture.offline()) == safetensors(13));

    fixture.hub = HubServer::start(vec![newer]).unwrap();
    fixture.store().pull(&query, &mut NoProgress).unwrap();
    assert!(weights(fixture.offline()) == safetensors(20));
}

#[test]
fn missing_file_is_downloaded_at_next_use() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let query = ModelQuery::from("o/sharded-mlx");
    let located = store.pull(&query, &mut NoProgress).unwrap();
    // Simulates a pull that ended before this file.
    let template = located.path.join("chat_template.jinja");
    fs::remove_file(&template).unwrap();
    assert!(store.locate_cached(&query).unwrap().is_none());
    let refused = fixture.offline().locate(&query, &mut NoProgress);
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("chat_template.jinja is missing"),
        "{message}"
    );
    store.locate(&query, &mut NoProgress).unwrap();
    assert!(template.exists());
}

#[test]
fn interrupted_pull_owns_its_files() {
    let fixture = StoreFixture::new();
    fixture.hub.inject_fault(Site::Large, ALWAYS, missing());
    let store = fixture.store();
    let pulled = store.pull(&"o/sharded-mlx".into(), &mut NoProgress);
    assert!(pulled.is_err());
    let found = store.find_stored(&"o/sharded-mlx".into()).unwrap();
    assert_eq!(found[0].owner, Owner::Store);
    store.remove(&found[0], &mut NoProgress).unwrap();
    assert!(names(&store).is_empty());
    assert!(!fixture.hub_files().join("models--o--sharded-mlx").exists());
}

#[test]
fn remove_keeps_files_of_others() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let located = store
        .pull(&"o/sharded-mlx".into(), &mut NoProgress)
        .unwrap();
    let foreign = ["onnx/a.onnx", "pytorch_model.bin"].map(|name| located.path.join(name));
    fs::create_dir(located.path.join("onnx")).unwrap();
    for path in &foreign {
        fs::write(path, "foreign").unwrap();
    }
    let owned = stored(&store, "o/sharded-mlx");
    store.remove(&owned, &mut NoProgress).unwrap();
    assert!(foreign.iter().all(|path| path.exists()));
    let left = fs::read_dir(&located.path).unwrap().count();
    assert_eq!(left, 2, "all files of the store are removed");
}

#[test]
fn cached_hub_model_wins_over_other_sources() {
    let fixture = StoreFixture::new();
    let right = FakeFile::large("", gguf(1)).etag();
    let part = "{ package = 'toy', version = '1.0', member = 'm', size = 5004 }";
    let store = fixture.store_of(&catalog(&format!(
        "[[model.forms]]\nkind = 'gguf'\nquant = 'Q8_0'\nfile = 'm-Q8_0.gguf'\nbytes = 5004\n\
         sha256 = '{right}'\nsources = [{{ type = 'python-packages', parts = [{part}] }}, \
         {{ type = 'hub', repo = 'o/quants' }}]\n"
    )));
    let mut progress = RecordedProgress::default();
    let first = store.locate(&"toy".into(), &mut progress).unwrap();
    assert!(
        progress.notes[0].contains("next source"),
        "{:?}",
        progress.notes
    );
    let requested_files = fixture.hub.requests().len();
    let mut progress = RecordedProgress::default();
    assert_eq!(store.locate(&"toy".into(), &mut progress).unwrap(), first);
    assert!(progress.notes.is_empty(), "{:?}", progress.notes);
    assert_eq!(fixture.hub.requests().len(), requested_files);
}

#[test]
fn prune_removes_drafts_of_killed_processes() {
    let world = StoreFixture::new();
    let store = world.store();
    pull(&store, "o/quants:Q8_0");
    let cache = world.root.path().join("cache");
    // As a process leaves them that is killed while it writes a record.
    let drafts = ["pulled/.tmpAbCdEf", "used/.tmp012345"].map(|name| cache.join(name));
    for draft in &drafts {
        fs::create_dir_all(draft.parent().unwrap()).unwrap();
        fs::write(draft, "{").unwrap();
    }
    let paths = |found: Vec<Prunable>| -> Vec<PathBuf> {
        let paths = found.into_iter().map(|found| match found {
            Prunable::Leftover { path, .. } => path,
            Prunable::Model(model) => panic!("{}", model.name),
        });
        paths.collect()
    };
    let options = PruneOptions::default();
    // They may belong to the process that has the lock.
    let lock = fs::File::create(cache.join("locks/records.lock")).unwrap();
    lock.lock().unwrap();
    assert!(store.prunable(options).unwrap().is_empty());
    assert!(store.prune(options, &mut NoProgress).unwrap().is_empty());
    lock.unlock().unwrap();
    assert_eq!(paths(store.prunable(options).unwrap()), drafts);
    assert_eq!(
        paths(store.prune(options, &mut NoProgress).unwrap()),
        drafts
    );
    assert!(drafts.iter().all(|draft| !draft.exists()));
    assert_eq!(names(&store), ["o/quants:Q8_0"]);
}

#[test]
fn prune_removes_leftovers_and_old_models() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    pull(&store, "o/quants:Q8_0");
    let blobs = fixture.hub_files().join("models--o--quants/blobs");
    let half = blobs.join(format!("{}.loquat.incomplete", "a".repeat(64)));
    let foreign = blobs.join(format!("{}.incomplete", "a".repeat(64)));
    let others = fixture.hub_files().join("models--other--tool/blobs");
    fs::create_dir_all(&others).unwrap();
    for path in [&foreign, &others.join("b".repeat(64))] {
        fs::write(path, "foreign").unwrap();
    }
    let unused = blobs.join("b".repeat(64));
    let dead = fixture.root.path().join("cache/tmp/toy-1b.abcdef");
    for (path, bytes) in [(&half, 100), (&unused, 200)] {
        fs::write(path, vec![0; bytes]).unwrap();
    }
    fs::create_dir_all(&dead).unwrap();
    fs::create_dir_all(fixture.root.path().join("cache/locks")).unwrap();
    fs::write(dead.join("half"), vec![0; 300]).unwrap();

    let sizes = |found: Vec<Prunable>| {
        let mut sizes: Vec<u64> = found.iter().map(Prunable::bytes).collect();
        sizes.sort_unstable();
        sizes
    };
    let options = PruneOptions::default();
    assert_eq!(sizes(store.prunable(options).unwrap()), [100, 200, 300]);
    assert!(half.exists() && unused.exists() && dead.exists());
    let pruned = store.prune(options, &mut NoProgress).unwrap();
    assert_eq!(sizes(pruned), [100, 200, 300]);
    assert!(!half.exists() && !unused.exists() && !dead.exists());
    assert!(foreign.exists() && others.join("b".repeat(64)).exists());
    assert!(store.prunable(options).unwrap().is_empty());

    let old = |age: u64| PruneOptions {
        older_than: Some(Duration::from_secs(age)),
    };
    assert!(store.prunable(old(3600)).unwrap().is_empty());
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    let path = stored(&store, "o/quants:Q8_0").path;
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(long_ago).unwrap();
    assert_eq!(sizes(store.prunable(old(3600)).unwrap()), [2 * 5004]);
    store.prune(old(3600), &mut NoProgress).unwrap();
    assert!(names(&store).is_empty());
}

#[test]
fn chosen_mmproj_replaces_the_usual_one() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let locate = |mmproj| {
        let query = ModelQuery {
            reference: "o/quants:Q2_K",
            mmproj,
            ..ModelQuery::default()
        };
        store.locate(&query, &mut NoProgress)
    };
    let text = locate(MmprojQuery::Off).unwrap();
    assert_eq!(text.mmproj, LocatedMmproj::Off);
    assert_eq!(fixture.requested_files(Site::Resolve), ["m-Q2_K.gguf"]);
    for reference in ["o/quants", "o/quants:mmproj-m-f16.gguf"] {
        match locate(MmprojQuery::Reference(reference)).unwrap().mmproj {
            LocatedMmproj::At(path) => assert_eq!(fs::read(path).unwrap(), gguf(4)),
            other => panic!("{other:?}"),
        }
    }
    for (reference, named) in [
        ("./nothing.gguf", "not a vision tower"),
        ("o/quants:absent.gguf", "mmproj-m-f16.gguf"),
    ] {
        let refused = locate(MmprojQuery::Reference(reference)).unwrap_err();
        assert!(refused.to_string().contains(named), "{refused}");
    }
}

#[test]
fn adapters_are_fetched_listed_and_removed() {
    let fixture = StoreFixture::new();
    let store = fixture.store();
    let locate = |store: &Store, reference: &str| store.locate_adapter(reference, &mut NoProgress);
    assert!(!store.has_adapter("o/peft"));
    let root = locate(&store, "o/peft").unwrap();
    assert_eq!(root.name, "o/peft");
    assert_eq!(fs::read(&root.path).unwrap(), safetensors(20));
    let files = ["adapter_config.json", "adapter_model.safetensors"];
    assert_eq!(fixture.requested_files(Site::Resolve), files);
    let nested = "o/peft:step-5/adapter_model.safetensors";
    let step = locate(&store, nested).unwrap();
    assert_eq!(
        (step.name.as_str(), fs::read(&step.path).unwrap()),
        (nested, safetensors(27))
    );
    let gguf = locate(&store, "o/lora-gguf").unwrap();
    assert_eq!(gguf.name, "o/lora-gguf");
    // A model's file is downloaded before its header can be read.
    let model = locate(&store, "o/quants:Q8_0").unwrap_err().to_string();
    assert!(model.contains("o/quants has no adapter"), "{model}");

    let requests = fixture.hub.requests().len();
    for store in [fixture.store(), fixture.offline()] {
        assert_eq!(locate(&store, "o/peft").unwrap(), root);
        assert!(store.has_adapter(nested) && !store.has_adapter("o/absent"));
    }
    assert_eq!(fixture.hub.requests().len(), requests);

    let adapters = [
        (FileKind::Gguf, "o/lora-gguf"),
        (FileKind::Safetensors, "o/peft"),
    ];
    for (kind, name) in adapters {
        let adapter = stored(&store, name);
        assert_eq!((adapter.kind, adapter.is_adapter), (kind, true), "{name}");
        assert_eq!(
            (adapter.owner, adapter.verified),
            (Owner::Store, Some(HashSource::Hub))
        );
        assert!(adapter.last_used.is_some());
        let report = store.verify(&adapter, &mut NoProgress).unwrap();
        assert_eq!(report, VerifyReport::default());
    }
    fs::write(&step.path, "damaged").unwrap();
    let report = store
        .verify(&stored(&store, nested), &mut NoProgress)
        .unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    store
        .remove(&stored(&store, "o/peft"), &mut NoProgress)
        .unwrap();
    assert!(!root.path.exists() && step.path.exists());
    // It is pulled like a model.
    assert_eq!(pull(&store, "o/peft"), "o/peft");
    assert!(root.path.exists());
}
