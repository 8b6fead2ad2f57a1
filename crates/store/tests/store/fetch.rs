//! Fetching through the public door, with a fake Python in place of the network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::common::{
    MEMBER, Told, World, catalog_of, entry, entry_with_sources, options_in, sha256_of, store_in,
};
use loquat_store::{NoProgress, Store, StoreOptions};

const MODEL: &[u8] = b"a model of thirty-three bytes ...";

/// Names the folder of the world that [`fetch_in_another_process`] should work in.
const CHILD_VARIABLE: &str = "LOQUAT_TEST_WORLD";

#[test]
fn a_fetch_installs_the_file_and_the_next_starts_no_process() {
    let world = World::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);

    let mut told = Told::default();
    let path = world.fetch_told(&entry, &mut told).unwrap();
    assert_eq!(fs::read(&path).unwrap(), MODEL);
    assert_eq!(path, world.place(&entry));
    world.assert_holds_only(&entry);
    assert_eq!(told.starts, [("downloading toy:1b".to_owned(), Some(1000))]);
    assert_eq!((told.advanced, told.finishes), (1000, 1));
    let [call] = &world.calls()[..] else {
        panic!("one call expected: {:?}", world.calls());
    };
    assert!(call.starts_with("-m pip download --no-deps --only-binary :all:"));
    assert!(call.contains("--disable-pip-version-check") && call.ends_with("toy1==1.0"));

    let mut told = Told::default();
    assert_eq!(world.fetch_told(&entry, &mut told).unwrap(), path);
    assert_eq!(world.calls().len(), 1);
    assert!(told.starts.is_empty());
}

#[test]
fn the_record_is_what_sha256sum_reads() {
    let world = World::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    let path = world.fetch(&entry).unwrap();
    let record = fs::read_to_string(path.with_extension("gguf.sha256")).unwrap();
    assert_eq!(record, format!("{}  toy.gguf\n", sha256_of(&entry)));
}

#[test]
fn parts_are_concatenated_in_order() {
    let world = World::new();
    let parts: [&[u8]; 3] = [b"first, ", b"second, ", b"third"];
    for (number, part) in parts.iter().enumerate() {
        world.serve(&format!("toy{}", number + 1), MEMBER, part);
    }
    let mut told = Told::default();
    let path = world.fetch_told(&entry(&parts), &mut told).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"first, second, third");
    assert_eq!(world.calls().len(), 3);
    assert_eq!((told.starts.len(), told.advanced), (1, 3000));
}

#[test]
fn what_is_wrong_with_a_download_is_said_and_nothing_stays() {
    let pip_fails = "echo 'ERROR: No matching distribution found' >&2; exit 1";
    let other: Vec<u8> = MODEL.iter().rev().copied().collect();
    let mut long = MODEL.to_vec();
    long.resize(1 << 20, 0);
    for (name, member, bytes, behaviour, expected) in [
        ("hash", MEMBER, &other[..], "", &["toy:1b", "SHA-256"][..]),
        ("short", MEMBER, &MODEL[1..], "", &[MEMBER, "32 bytes"]),
        ("bomb", MEMBER, &long, "", &[MEMBER, "longer"]),
        ("member", "data/else", MODEL, "", &["toy1", MEMBER]),
        (
            "pip",
            MEMBER,
            MODEL,
            pip_fails,
            &["toy1==1.0", "No matching distribution", "exit status: 1"],
        ),
        (
            "no pip",
            MEMBER,
            MODEL,
            "echo 'python: No module named pip' >&2; exit 1",
            &["ensurepip"],
        ),
        ("no wheel", MEMBER, MODEL, "exit 0", &["toy1", "0 wheels"]),
        (
            "full",
            MEMBER,
            MODEL,
            "echo 'ERROR: [Errno 28] No space' >&2; exit 2",
            &["cache", "2000 bytes"],
        ),
    ] {
        let world = World::new();
        world.serve("toy1", member, bytes);
        world.behave(behaviour);
        let mut told = Told::default();
        let error = world.fetch_told(&entry(&[MODEL]), &mut told).unwrap_err();
        let message = error.to_string();
        for part in expected {
            assert!(
                message.contains(part),
                "{name}: {part:?} is not in: {message}"
            );
        }
        world.assert_empty();
        assert_eq!(told.starts.len(), told.finishes, "{name}");
    }
}

#[test]
fn a_truncated_wheel_is_refused_wherever_it_ends() {
    let world = World::new();
    let wheel = world.serve("toy1", MEMBER, MODEL);
    let whole = fs::read(&wheel).unwrap();
    for length in (0..whole.len()).step_by(7) {
        fs::write(&wheel, &whole[..length]).unwrap();
        let message = world.fetch(&entry(&[MODEL])).unwrap_err().to_string();
        assert!(
            message.contains("wheel") && message.contains("toy1"),
            "{message}"
        );
        world.assert_empty();
    }
}

#[test]
fn the_next_source_is_tried_when_one_fails() {
    let world = World::new();
    world.serve("toy2", "second/member", MODEL);
    let entry = entry_with_sources(MODEL, &[(MEMBER, &[MODEL]), ("second/member", &[MODEL])]);
    let mut told = Told::default();
    world.fetch_told(&entry, &mut told).unwrap();
    world.assert_holds_only(&entry);
    assert!(told.notes[0].contains("toy1==1.0"), "{:?}", told.notes);
    assert_eq!((told.starts.len(), told.finishes), (2, 2));
}

#[test]
fn a_file_in_place_is_judged_again_when_its_record_or_size_does_not_fit() {
    let world = World::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    let path = world.fetch(&entry).unwrap();
    let record = path.with_extension("gguf.sha256");
    let other = vec![b'x'; MODEL.len()];
    // What stands in place, whether its record does, and how many downloads follow.
    for (name, bytes, recorded, downloads) in [
        ("right, no record", MODEL, false, 0),
        ("wrong, no record", &other, false, 1),
        ("short, recorded", &MODEL[1..], true, 1),
    ] {
        fs::write(&path, bytes).unwrap();
        if !recorded {
            fs::remove_file(&record).unwrap();
        }
        let before = world.calls().len();
        world.fetch(&entry).unwrap();
        assert_eq!(world.calls().len() - before, downloads, "{name}");
        assert_eq!(fs::read(&path).unwrap(), MODEL, "{name}");
        world.assert_holds_only(&entry);
    }

    fs::write(&record, "0000  toy.gguf\n").unwrap();
    let before = world.calls().len();
    world.fetch(&entry).unwrap();
    assert_eq!(world.calls().len(), before);
    assert!(
        fs::read_to_string(&record)
            .unwrap()
            .starts_with(sha256_of(&entry))
    );
}

#[test]
fn a_pull_mends_a_file_that_has_its_size_and_its_record() {
    let world = World::new();
    world.serve("toy1", MEMBER, MODEL);
    let catalog = world.path().join("catalog.toml");
    fs::write(&catalog, catalog_of(MODEL, &[(MEMBER, &[MODEL])])).unwrap();
    let store = Store::open(StoreOptions {
        catalog: Some(catalog),
        ..options_in(world.path())
    })
    .unwrap();
    let pull = || {
        let mut told = Told::default();
        let located = store.pull(&"toy".into(), &mut told).unwrap();
        assert_eq!(fs::read(&located.path).unwrap(), MODEL);
        (located.path, told.notes.len())
    };
    let (path, _) = pull();
    fs::write(&path, vec![b'x'; MODEL.len()]).unwrap();
    assert_eq!(pull(), (path.clone(), 1));
    assert_eq!(pull(), (path, 0));
    assert_eq!(world.calls().len(), 2);
}

#[test]
fn concurrent_fetches_download_once() {
    let world = World::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    world.behave("sleep 0.5");
    let mut child = in_another_process(&world).spawn().unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| world.fetch(&entry).unwrap()))
            .collect();
        for thread in threads {
            assert_eq!(fs::read(thread.join().unwrap()).unwrap(), MODEL);
        }
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(world.calls().len(), 1);
    world.assert_holds_only(&entry);
}

#[test]
fn what_a_killed_process_left_is_swept_by_the_next() {
    let world = World::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    world.behave("echo half > \"$dest/half\"; kill -9 $PPID; sleep 0.2; exit 1");
    assert!(!in_another_process(&world).status().unwrap().success());
    assert_eq!(world.work_dirs(), 1);
    assert!(!world.place(&entry).exists());

    world.behave("");
    world.fetch(&entry).unwrap();
    world.assert_holds_only(&entry);
}

fn in_another_process(world: &World) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "fetch::fetch_in_another_process", "--ignored"])
        .env(CHILD_VARIABLE, world.path())
        .stdout(Stdio::null());
    command
}

/// Not a test of its own: the body of [`in_another_process`].
#[test]
#[ignore = "run by other tests"]
fn fetch_in_another_process() {
    if let Some(world) = std::env::var_os(CHILD_VARIABLE) {
        let store = store_in(Path::new(&world));
        let entry = entry(&[MODEL]);
        store
            .fetch(&entry, &entry.forms[0], &mut NoProgress)
            .unwrap();
    }
}

#[test]
fn a_missing_or_broken_python_is_named() {
    let world = World::new();
    let not_executable = world.path().join("plain-file");
    fs::write(&not_executable, "").unwrap();
    for (python, said) in [
        (world.path().join("no-such-python"), "no-such-python"),
        ("no-such-python-on-the-path".into(), "LOQUAT_PYTHON"),
        (not_executable, "could not run"),
    ] {
        let options = StoreOptions {
            python: Some(python),
            ..options_in(world.path())
        };
        let store = Store::open(options).unwrap();
        let entry = entry(&[MODEL]);
        let fetched = store.fetch(&entry, &entry.forms[0], &mut NoProgress);
        let error = fetched.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        world.assert_empty();
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let world = World::new();
    world.serve("toy1", MEMBER, MODEL);
    fs::write(world.cache(), "a file").unwrap();
    let message = world.fetch(&entry(&[MODEL])).unwrap_err().to_string();
    assert!(
        message.contains("cache") && message.contains("LOQUAT_CACHE"),
        "{message}"
    );
    assert_eq!(fs::read_to_string(world.cache()).unwrap(), "a file");
    fs::remove_file(world.cache()).unwrap();

    fs::create_dir(world.cache()).unwrap();
    fs::set_permissions(world.cache(), fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(world.cache().join("probe"), "").is_ok() {
        eprintln!("skipped: this account may write to a read-only directory");
        return;
    }
    let message = world.fetch(&entry(&[MODEL])).unwrap_err().to_string();
    assert!(
        message.contains("cache") && message.contains("LOQUAT_CACHE"),
        "{message}"
    );
    assert!(world.calls().is_empty());
}
