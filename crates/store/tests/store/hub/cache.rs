//! The cache as others know it, and as people look after it.

use std::fs;
use std::os::unix::fs::symlink;

use loquat_hubkit::FakeFile;
use loquat_store::NoProgress;
use loquat_store::hub::HubOptions;

use super::fixture::{HubFixture, ID, WEIGHTS, pull, repo};
use crate::fixture::RecordedProgress;

/// The layout as Python's client leaves it, made by hand.
fn write_python_layout(world: &HubFixture) {
    let root = world.root();
    for file in &world.repo.files {
        let pointer = world.snapshot().join(&file.path);
        fs::create_dir_all(root.join("blobs")).unwrap();
        fs::create_dir_all(pointer.parent().unwrap()).unwrap();
        fs::write(root.join("blobs").join(file.etag()), &file.content).unwrap();
        let up = "../".repeat(2 + file.path.matches('/').count());
        symlink(format!("{up}blobs/{}", file.etag()), pointer).unwrap();
    }
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), &world.repo.commit).unwrap();
}

#[test]
fn downloads_of_other_tools_are_found() {
    let world = HubFixture::new(1_000);
    write_python_layout(&world);
    world.pull().unwrap();
    assert_eq!(world.server.sent(), 0);
    world.assert_complete();

    // Another commit of theirs may have the same content under another name.
    fs::remove_dir_all(world.snapshot()).unwrap();
    world.pull().unwrap();
    assert_eq!(world.server.sent(), 0);
    world.assert_complete();
}

#[test]
fn hf_hub_finds_our_downloads() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    let cache = hf_hub::Cache::new(world.cache()).model(ID.to_owned());
    for file in &world.repo.files {
        let found = cache.get(&file.path).unwrap();
        assert_eq!(fs::read(found).unwrap(), file.content);
    }
}

#[test]
fn cached_snapshots_are_listed() {
    let world = HubFixture::new(1_000);
    assert!(world.hub().cached().unwrap().is_empty());
    world.pull().unwrap();
    fs::create_dir_all(world.cache().join("datasets--a--b/snapshots/c")).unwrap();
    let cached = world.hub().cached().unwrap();
    let [snapshot] = &cached[..] else {
        panic!("{cached:?}");
    };
    assert_eq!(
        (snapshot.repo.as_str(), &snapshot.commit),
        (ID, &world.repo.commit)
    );
    assert_eq!(snapshot.refs, ["main"]);
    assert_eq!(snapshot.bytes(), world.bytes());
    let weights = snapshot
        .files
        .iter()
        .find(|file| file.path == WEIGHTS)
        .unwrap();
    assert_eq!(weights.hash.as_ref(), Some(&world.file(WEIGHTS).etag()));
}

#[test]
fn verify_names_damaged_files() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    let hub = world.hub();
    let verify = |progress: &mut RecordedProgress| {
        let cached = hub.cached().unwrap();
        hub.verify(&cached[0], progress).unwrap()
    };
    let mut progress = RecordedProgress::default();
    assert_eq!(verify(&mut progress), []);
    assert_eq!(
        (progress.total(), progress.advanced),
        (Some(world.bytes()), world.bytes())
    );

    fs::write(world.blob(WEIGHTS), vec![0; 1_000]).unwrap();
    fs::remove_file(world.blob("config.json")).unwrap();
    let damaged = verify(&mut RecordedProgress::default());
    let names: Vec<_> = damaged.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["config.json", WEIGHTS]);
    assert_eq!(damaged[0].found, None);
    assert_ne!(damaged[1].found.as_ref(), Some(&damaged[1].expected));

    // What is gone or too short comes again.
    world.pull().unwrap();
    assert_eq!(verify(&mut RecordedProgress::default()).len(), 1);
}

#[test]
fn remove_frees_unshared_blobs() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    let hub = world.hub();
    // A second snapshot that shares the small file.
    let other = world.root().join("snapshots/other");
    fs::create_dir_all(&other).unwrap();
    let config = world.file("config.json").etag();
    symlink(format!("../../blobs/{config}"), other.join("config.json")).unwrap();

    let cached = hub.cached().unwrap();
    let ours = cached
        .iter()
        .find(|snapshot| snapshot.refs == ["main"])
        .unwrap();
    let kept = world.file("config.json").content.len() as u64;
    assert_eq!(hub.remove(ours).unwrap(), world.bytes() - kept);
    assert!(other.join("config.json").exists());
    assert!(!world.snapshot().exists() && !world.blob(WEIGHTS).exists());
    assert!(world.entries("refs").is_empty());

    let cached = hub.cached().unwrap();
    assert_eq!(hub.remove(&cached[0]).unwrap(), kept);
    assert!(!world.root().exists());
    assert!(hub.cached().unwrap().is_empty());
}

#[test]
fn sweep_spares_locked_downloads() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    let blobs = world.root().join("blobs");
    let [old, live] = ["a", "b"].map(|seed| FakeFile::large("x", seed).etag());
    for etag in [&old, &live] {
        fs::write(blobs.join(format!("{etag}.loquat.incomplete")), "half").unwrap();
        fs::write(blobs.join(format!("{etag}.1234abcd.incomplete")), "half").unwrap();
    }
    let locks = world.cache().join(".locks/models--someone--model");
    let lock = fs::File::create(locks.join(format!("{live}.lock"))).unwrap();
    lock.lock().unwrap();
    let unlinked = blobs.join("c".repeat(64));
    fs::write(&unlinked, "whole").unwrap();
    let sweep = |ours: bool| {
        let removed = world.hub().sweep(&|_| ours).unwrap();
        let paths = removed.into_iter().map(|leftover| leftover.path);
        paths.collect::<Vec<_>>()
    };
    let part = |etag: &String| blobs.join(format!("{etag}.loquat.incomplete"));
    assert_eq!(sweep(false), [part(&old)]);
    assert!(!part(&old).exists() && part(&live).exists());
    drop(lock);
    assert_eq!(sweep(false), [part(&live)]);
    // Content that nothing links to may be another tool's where we brought nothing.
    assert!(unlinked.exists());
    assert_eq!(sweep(true), [unlinked]);
    for etag in [&old, &live] {
        // Python may take its own up again.
        fs::remove_file(blobs.join(format!("{etag}.1234abcd.incomplete"))).unwrap();
    }
    world.assert_complete();
}

#[test]
fn odd_cache_entry_is_skipped() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    fs::write(world.cache().join("models--q--r"), "a file").unwrap();
    assert_eq!(world.hub().cached().unwrap().len(), 1);
    assert!(world.hub().sweep(&|_| true).unwrap().is_empty());
}

#[test]
fn damaged_file_is_discarded_and_downloaded_again() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    let hub = world.hub();
    let listing = hub.listing(&repo()).unwrap();
    let files: Vec<_> = listing.files.iter().collect();
    fs::write(world.blob(WEIGHTS), vec![0; 1_000]).unwrap();
    let mut progress = RecordedProgress::default();
    let damaged = hub.discard_damaged(&repo(), &listing, &files, &mut progress);
    assert_eq!(damaged.unwrap(), [WEIGHTS]);
    assert_eq!(
        (progress.total(), progress.advanced),
        (Some(world.bytes()), world.bytes())
    );
    assert!(!world.blob(WEIGHTS).exists());
    world.pull().unwrap();
    world.assert_complete();
}

#[test]
fn unwritable_cache_is_named() {
    let world = HubFixture::new(10);
    let blocked = world.folder().join("a file");
    fs::write(&blocked, "").unwrap();
    let options = HubOptions {
        cache_dir: Some(blocked.join("hub")),
        ..world.options()
    };
    let hub = loquat_store::hub::Hub::open(options).unwrap();
    let message = pull(&hub, &mut NoProgress).unwrap_err().to_string();
    assert!(
        message.contains("a file") && message.contains("HF_HUB_CACHE"),
        "{message}"
    );
}
