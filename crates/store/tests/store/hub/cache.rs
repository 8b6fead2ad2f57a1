//! Compatibility of the cache with other tools, and its maintenance.

use std::fs;
use std::os::unix::fs::symlink;

use loquat_hubkit::FakeFile;
use loquat_store::NoProgress;
use loquat_store::hub::HubOptions;

use super::fixture::{HubFixture, ID, WEIGHTS, pull, repo};
use crate::fixture::RecordedProgress;

/// Writes the layout of Python's client.
fn write_python_layout(fixture: &HubFixture) {
    let root = fixture.root();
    for file in &fixture.repo.files {
        let pointer = fixture.snapshot().join(&file.path);
        fs::create_dir_all(root.join("blobs")).unwrap();
        fs::create_dir_all(pointer.parent().unwrap()).unwrap();
        fs::write(root.join("blobs").join(file.etag()), &file.content).unwrap();
        let up = "../".repeat(2 + file.path.matches('/').count());
        symlink(format!("{up}blobs/{}", file.etag()), pointer).unwrap();
    }
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), &fixture.repo.commit).unwrap();
}

#[test]
fn downloads_of_other_tools_are_found() {
    let fixture = HubFixture::new(1_000);
    write_python_layout(&fixture);
    fixture.pull().unwrap();
    assert_eq!(fixture.server.sent(), 0);
    fixture.assert_complete();

    // Another commit may have the same content under another name.
    fs::remove_dir_all(fixture.snapshot()).unwrap();
    fixture.pull().unwrap();
    assert_eq!(fixture.server.sent(), 0);
    fixture.assert_complete();
}

#[test]
fn hf_hub_finds_downloads_of_loquat() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    let cache = hf_hub::Cache::new(fixture.cache()).model(ID.to_owned());
    for file in &fixture.repo.files {
        let found = cache.get(&file.path).unwrap();
        assert_eq!(fs::read(found).unwrap(), file.content);
    }
}

#[test]
fn cached_snapshots_are_listed() {
    let fixture = HubFixture::new(1_000);
    assert!(fixture.hub().cached().unwrap().is_empty());
    fixture.pull().unwrap();
    fs::create_dir_all(fixture.cache().join("datasets--a--b/snapshots/c")).unwrap();
    let cached = fixture.hub().cached().unwrap();
    let [snapshot] = &cached[..] else {
        panic!("{cached:?}");
    };
    assert_eq!(
        (snapshot.repo.as_str(), &snapshot.commit),
        (ID, &fixture.repo.commit)
    );
    assert_eq!(snapshot.refs, ["main"]);
    assert_eq!(snapshot.bytes(), fixture.bytes());
    let weights = snapshot
        .files
        .iter()
        .find(|file| file.path == WEIGHTS)
        .unwrap();
    assert_eq!(weights.hash.as_ref(), Some(&fixture.file(WEIGHTS).etag()));
}

#[test]
fn verify_names_damaged_files() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    let hub = fixture.hub();
    let verify = |progress: &mut RecordedProgress| {
        let cached = hub.cached().unwrap();
        hub.verify(&cached[0], progress).unwrap()
    };
    let mut progress = RecordedProgress::default();
    assert_eq!(verify(&mut progress), []);
    assert_eq!(
        (progress.total(), progress.advanced),
        (Some(fixture.bytes()), fixture.bytes())
    );

    fs::write(fixture.blob(WEIGHTS), vec![0; 1_000]).unwrap();
    fs::remove_file(fixture.blob("config.json")).unwrap();
    let damaged = verify(&mut RecordedProgress::default());
    let names: Vec<_> = damaged.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["config.json", WEIGHTS]);
    assert_eq!(damaged[0].found, None);
    assert_ne!(damaged[1].found.as_ref(), Some(&damaged[1].expected));

    // Missing or short files are downloaded again.
    fixture.pull().unwrap();
    assert_eq!(verify(&mut RecordedProgress::default()).len(), 1);
}

#[test]
fn remove_frees_unshared_blobs() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    let hub = fixture.hub();
    // A second snapshot that shares the small file.
    let other = fixture.root().join("snapshots/other");
    fs::create_dir_all(&other).unwrap();
    let config = fixture.file("config.json").etag();
    symlink(format!("../../blobs/{config}"), other.join("config.json")).unwrap();

    let cached = hub.cached().unwrap();
    let snapshot = cached
        .iter()
        .find(|snapshot| snapshot.refs == ["main"])
        .unwrap();
    let kept = fixture.file("config.json").content.len() as u64;
    assert_eq!(hub.remove(snapshot).unwrap(), fixture.bytes() - kept);
    assert!(other.join("config.json").exists());
    assert!(!fixture.snapshot().exists() && !fixture.blob(WEIGHTS).exists());
    assert!(fixture.entries("refs").is_empty());

    let cached = hub.cached().unwrap();
    assert_eq!(hub.remove(&cached[0]).unwrap(), kept);
    assert!(!fixture.root().exists());
    assert!(hub.cached().unwrap().is_empty());
}

#[test]
fn sweep_spares_locked_downloads() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    let blobs = fixture.root().join("blobs");
    let [old, live] = ["a", "b"].map(|seed| FakeFile::large("x", seed).etag());
    for etag in [&old, &live] {
        fs::write(blobs.join(format!("{etag}.loquat.incomplete")), "half").unwrap();
        fs::write(blobs.join(format!("{etag}.1234abcd.incomplete")), "half").unwrap();
    }
    let locks = fixture.cache().join(".locks/models--someone--model");
    let lock = fs::File::create(locks.join(format!("{live}.lock"))).unwrap();
    lock.lock().unwrap();
    let unlinked = blobs.join("c".repeat(64));
    fs::write(&unlinked, "whole").unwrap();
    let sweep = |is_ours: bool| {
        let removed = fixture.hub().sweep(&|_| is_ours).unwrap();
        let paths = removed.into_iter().map(|leftover| leftover.path);
        paths.collect::<Vec<_>>()
    };
    let part = |etag: &String| blobs.join(format!("{etag}.loquat.incomplete"));
    assert_eq!(sweep(false), [part(&old)]);
    assert!(!part(&old).exists() && part(&live).exists());
    drop(lock);
    assert_eq!(sweep(false), [part(&live)]);
    // Unlinked content may belong to another tool if the store downloaded nothing.
    assert!(unlinked.exists());
    assert_eq!(sweep(true), [unlinked]);
    for etag in [&old, &live] {
        // Python's client may resume its own downloads.
        fs::remove_file(blobs.join(format!("{etag}.1234abcd.incomplete"))).unwrap();
    }
    fixture.assert_complete();
}

#[test]
fn odd_cache_entry_is_skipped() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    fs::write(fixture.cache().join("models--q--r"), "a file").unwrap();
    assert_eq!(fixture.hub().cached().unwrap().len(), 1);
    assert!(fixture.hub().sweep(&|_| true).unwrap().is_empty());
}

#[test]
fn damaged_file_is_discarded_and_downloaded_again() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    let hub = fixture.hub();
    let listing = hub.listing(&repo()).unwrap();
    let files: Vec<_> = listing.files.iter().collect();
    fs::write(fixture.blob(WEIGHTS), vec![0; 1_000]).unwrap();
    let mut progress = RecordedProgress::default();
    let damaged = hub.discard_damaged(&repo(), &listing, &files, &mut progress);
    assert_eq!(damaged.unwrap(), [WEIGHTS]);
    assert_eq!(
        (progress.total(), progress.advanced),
        (Some(fixture.bytes()), fixture.bytes())
    );
    assert!(!fixture.blob(WEIGHTS).exists());
    fixture.pull().unwrap();
    fixture.assert_complete();
}

#[test]
fn unwritable_cache_is_named() {
    let fixture = HubFixture::new(10);
    let blocked = fixture.folder().join("a file");
    fs::write(&blocked, "").unwrap();
    let options = HubOptions {
        cache_dir: Some(blocked.join("hub")),
        ..fixture.options()
    };
    let hub = loquat_store::hub::Hub::open(options).unwrap();
    let message = pull(&hub, &mut NoProgress).unwrap_err().to_string();
    assert!(
        message.contains("a file") && message.contains("HF_HUB_CACHE"),
        "{message}"
    );
}
