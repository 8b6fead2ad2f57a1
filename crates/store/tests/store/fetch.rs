//! Fetching through the public API, with a fake Python instead of the network.

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

/// The fixture folder for [`fetch_in_another_process`].
const CHILD_VARIABLE: &str = "LOQUAT_TEST_FIXTURE";

#[test]
fn second_fetch_starts_no_process() {
    let fixture = PackageFixture::new();
    let entry = entry(&[MODEL]);
    fixture.serve("toy1", MEMBER, MODEL);

    let mut progress = RecordedProgress::default();
    let path = fixture.fetch_reporting(&entry, &mut progress).unwrap();
    assert_eq!(fs::read(&path).unwrap(), MODEL);
    assert_eq!(path, fixture.model_path(&entry));
    fixture.assert_holds_only(&entry);
    assert_eq!(
        progress.starts,
        [("downloading toy:1b".to_owned(), Some(1000))]
    );
    assert_eq!((progress.advanced, progress.finishes), (1000, 1));
    let [call] = &fixture.calls()[..] else {
        panic!("one call expected: {:?}", fixture.calls());
    };
    assert!(call.starts_with("-m pip download --no-deps --only-binary :all:"));
    assert!(call.contains("--disable-pip-version-check") && call.ends_with("toy1==1.0"));

    let mut progress = RecordedProgress::default();
    assert_eq!(
        fixture.fetch_reporting(&entry, &mut progress).unwrap(),
        path
    );
    assert_eq!(fixture.calls().len(), 1);
    assert!(progress.starts.is_empty());
}

#[test]
fn sha256sum_can_read_the_record() {
    let fixture = PackageFixture::new();
    let entry = entry(&[MODEL]);
    fixture.serve("toy1", MEMBER, MODEL);
    let path = fixture.fetch(&entry).unwrap();
    let record = fs::read_to_string(path.with_extension("gguf.sha256")).unwrap();
    assert_eq!(record, format!("{}  toy.gguf\n", entry_sha256(&entry)));
}

#[test]
fn parts_are_concatenated_in_order() {
    let fixture = PackageFixture::new();
    let parts: [&[u8]; 3] = [b"first, ", b"second, ", b"third"];
    for (number, part) in parts.iter().enumerate() {
        fixture.serve(&format!("toy{}", number + 1), MEMBER, part);
    }
    let mut progress = RecordedProgress::default();
    let path = fixture
        .fetch_reporting(&entry(&parts), &mut progress)
        .unwrap();
    assert_eq!(fs::read(path).unwrap(), b"first, second, third");
    assert_eq!(fixture.calls().len(), 3);
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
        let fixture = PackageFixture::new();
        fixture.serve("toy1", member, bytes);
        fixture.set_behaviour(behaviour);
        let mut progress = RecordedProgress::default();
        let error = fixture
            .fetch_reporting(&entry(&[MODEL]), &mut progress)
            .unwrap_err();
        let message = error.to_string();
        for part in expected {
            assert!(
                message.contains(part),
                "{name}: {part:?} is not in: {message}"
            );
        }
        fixture.assert_empty();
        assert_eq!(progress.starts.len(), progress.finishes, "{name}");
    }
}

#[test]
fn truncated_wheel_is_refused() {
    let fixture = PackageFixture::new();
    let wheel = fixture.serve("toy1", MEMBER, MODEL);
    let original = fs::read(&wheel).unwrap();
    for length in (0..original.len()).step_by(7) {
        fs::write(&wheel, &original[..length]).unwrap();
        let message = fixture.fetch(&entry(&[MODEL])).unwrap_err().to_string();
        assert!(
            message.contains("wheel") && message.contains("toy1"),
            "{message}"
        );
        fixture.assert_empty();
    }
}

#[test]
fn next_source_is_tried_after_failure() {
    let fixture = PackageFixture::new();
    fixture.serve("toy2", "second/member", MODEL);
    let entry = entry_with_sources(MODEL, &[(MEMBER, &[MODEL]), ("second/member", &[MODEL])]);
    let mut progress = RecordedProgress::default();
    fixture.fetch_reporting(&entry, &mut progress).unwrap();
    fixture.assert_holds_only(&entry);
    assert!(
        progress.notes[0].contains("toy1==1.0"),
        "{:?}",
        progress.notes
    );
    assert_eq!((progress.starts.len(), progress.finishes), (2, 2));
}

#[test]
fn unrecorded_or_resized_file_is_verified_again() {
    let fixture = PackageFixture::new();
    let entry = entry(&[MODEL]);
    fixture.serve("toy1", MEMBER, MODEL);
    let path = fixture.fetch(&entry).unwrap();
    let record = path.with_extension("gguf.sha256");
    let other = vec![b'x'; MODEL.len()];
    // The file's content, whether it has a record, and the number of downloads that follow.
    for (name, bytes, recorded, downloads) in [
        ("right, no record", MODEL, false, 0),
        ("wrong, no record", &other, false, 1),
        ("short, recorded", &MODEL[1..], true, 1),
    ] {
        fs::write(&path, bytes).unwrap();
        if !recorded {
            fs::remove_file(&record).unwrap();
        }
        let before = fixture.calls().len();
        fixture.fetch(&entry).unwrap();
        assert_eq!(fixture.calls().len() - before, downloads, "{name}");
        assert_eq!(fs::read(&path).unwrap(), MODEL, "{name}");
        fixture.assert_holds_only(&entry);
    }

    fs::write(&record, "0000  toy.gguf\n").unwrap();
    let before = fixture.calls().len();
    fixture.fetch(&entry).unwrap();
    assert_eq!(fixture.calls().len(), before);
    assert!(
        fs::read_to_string(&record)
            .unwrap()
            .starts_with(entry_sha256(&entry))
    );
}

#[test]
fn pull_replaces_damaged_packaged_file() {
    let fixture = PackageFixture::new();
    fixture.serve("toy1", MEMBER, MODEL);
    let catalog = fixture.path().join("catalog.toml");
    fs::write(&catalog, catalog_text(MODEL, &[(MEMBER, &[MODEL])])).unwrap();
    let store = Store::open(StoreOptions {
        catalog: Some(catalog),
        ..options_in(fixture.path())
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
    assert_eq!(fixture.calls().len(), 2);
}

#[test]
fn concurrent_fetches_download_once() {
    let fixture = PackageFixture::new();
    let entry = entry(&[MODEL]);
    fixture.serve("toy1", MEMBER, MODEL);
    fixture.set_behaviour("sleep 0.5");
    let mut child = fetch_command(&fixture).spawn().unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| fixture.fetch(&entry).unwrap()))
            .collect();
        for thread in threads {
            assert_eq!(fs::read(thread.join().unwrap()).unwrap(), MODEL);
        }
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(fixture.calls().len(), 1);
    fixture.assert_holds_only(&entry);
}

#[test]
fn leftovers_of_killed_process_are_removed() {
    let fixture = PackageFixture::new();
    let entry = entry(&[MODEL]);
    fixture.serve("toy1", MEMBER, MODEL);
    fixture.set_behaviour("echo half > \"$dest/half\"; kill -9 $PPID; sleep 0.2; exit 1");
    assert!(!fetch_command(&fixture).status().unwrap().success());
    assert_eq!(fixture.work_dirs(), 1);
    assert!(!fixture.model_path(&entry).exists());

    fixture.set_behaviour("");
    fixture.fetch(&entry).unwrap();
    fixture.assert_holds_only(&entry);
}

fn fetch_command(fixture: &PackageFixture) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "fetch::fetch_in_another_process", "--ignored"])
        .env(CHILD_VARIABLE, fixture.path())
        .stdout(Stdio::null());
    command
}

/// Not a test by itself: the process of [`fetch_command`].
#[test]
#[ignore = "run by other tests"]
fn fetch_in_another_process() {
    if let Some(fixture) = std::env::var_os(CHILD_VARIABLE) {
        let store = store_in(Path::new(&fixture));
        let entry = entry(&[MODEL]);
        store
            .fetch(&entry, &entry.forms[0], &mut NoProgress)
            .unwrap();
    }
}

#[test]
fn unusable_python_is_named() {
    let fixture = PackageFixture::new();
    let not_executable = fixture.path().join("plain-file");
    fs::write(&not_executable, "").unwrap();
    for (python, said) in [
        (fixture.path().join("no-such-python"), "no-such-python"),
        ("no-such-python-on-the-path".into(), "LOQUAT_PYTHON"),
        (not_executable, "could not run"),
    ] {
        let options = StoreOptions {
            python: Some(python),
            ..options_in(fixture.path())
        };
        let store = Store::open(options).unwrap();
        let entry = entry(&[MODEL]);
        let fetched = store.fetch(&entry, &entry.forms[0], &mut NoProgress);
        let error = fetched.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        fixture.assert_empty();
    }
}

#[test]
fn unwritable_cache_is_named() {
    let fixture = PackageFixture::new();
    fixture.serve("toy1", MEMBER, MODEL);
    fs::write(fixture.cache(), "a file").unwrap();
    let message = fixture.fetch(&entry(&[MODEL])).unwrap_err().to_string();
    assert!(
        message.contains("cache") && message.contains("LOQUAT_CACHE"),
        "{message}"
    );
    assert_eq!(fs::read_to_string(fixture.cache()).unwrap(), "a file");
    fs::remove_file(fixture.cache()).unwrap();

    fs::create_dir(fixture.cache()).unwrap();
    fs::set_permissions(fixture.cache(), fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(fixture.cache().join("probe"), "").is_ok() {
        eprintln!("skipped: this account may write to a read-only directory");
        return;
    }
    let message = fixture.fetch(&entry(&[MODEL])).unwrap_err().to_string();
    assert!(
        message.contains("cache") && message.contains("LOQUAT_CACHE"),
        "{message}"
    );
    assert!(fixture.calls().is_empty());
}
