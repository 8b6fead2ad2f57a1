//! Transfers over an unreliable network.

use std::fs;
use std::time::Duration;

use loquat_hubkit::{FakeFile, FakeRepo, HubFault, Site, TOKEN, noise};
use loquat_store::NoProgress;
use loquat_store::hub::{Hub, HubError, HubOptions, HubRepo, RemoteFile};

use super::fixture::{HubFixture, ID, WEIGHTS, files, pull, repo, tuning};
use crate::fixture::{RecordedFile, RecordedProgress};

const ALWAYS: usize = usize::MAX;

/// A hub with one file, too small for more than one connection.
fn one_stream() -> HubFixture {
    HubFixture::serving(FakeRepo::new(
        ID,
        vec![FakeFile::large(WEIGHTS, noise(60_000, 7))],
    ))
}

#[test]
fn second_pull_downloads_nothing() {
    let fixture = HubFixture::new(300_000);
    let mut progress = RecordedProgress::default();
    let path = pull(&fixture.hub(), &mut progress).unwrap();
    assert_eq!(path, fixture.snapshot());
    fixture.assert_complete();
    assert_eq!(fixture.server.sent(), fixture.bytes());
    let link = fs::read_link(fixture.snapshot().join("folder/a note.txt")).unwrap();
    assert!(link.starts_with("../../../blobs"), "{}", link.display());

    assert_eq!(progress.total(), Some(fixture.bytes()));
    assert_eq!((progress.advanced, progress.finishes), (fixture.bytes(), 1));
    for file in &fixture.repo.files {
        let bytes = file.content.len() as u64;
        let complete = RecordedFile {
            name: file.path.clone(),
            bytes,
            at: bytes,
            ended: true,
        };
        assert!(
            progress.files.values().any(|file| *file == complete),
            "{complete:?}"
        );
    }

    fixture.pull().unwrap();
    assert_eq!(fixture.server.sent(), fixture.bytes());
}

#[test]
fn large_file_is_downloaded_in_ranges() {
    let fixture = HubFixture::new(300_000);
    fixture.pull().unwrap();
    let requests = fixture.server.requests();
    let ranges = requests
        .iter()
        .filter(|request| request.site == Site::Large);
    let ranges: Vec<_> = ranges.filter_map(|request| request.range.clone()).collect();
    assert_eq!(ranges.len(), 4, "{ranges:?}");
}

#[test]
fn token_is_sent_only_to_the_hub() {
    let fixture = HubFixture::new(300_000);
    fixture.pull().unwrap();
    let expected = format!("Bearer {TOKEN}");
    for request in fixture.server.requests() {
        let sent = request.authorization.as_deref();
        match request.site {
            Site::Large => assert_eq!(sent, None),
            _ => assert_eq!(sent, Some(expected.as_str()), "{request:?}"),
        }
        let agent = request.user_agent.unwrap();
        assert!(agent.starts_with("loquat/"), "{agent}");
    }
}

#[test]
fn temporary_faults_are_retried() {
    let status = |status| HubFault::Status(status, Vec::new());
    let wait = |header, text: &str| HubFault::Status(429, vec![(header, text.to_owned())]);
    for (site, times, fault) in [
        (Site::Api, 2, status(500)),
        (Site::Api, 1, status(503)),
        (Site::Api, 1, wait("Retry-After", "0")),
        (Site::Api, 1, wait("RateLimit", "\"api\";r=0;t=1")),
        (Site::Resolve, 2, status(502)),
        (Site::Large, 1, status(408)),
        (Site::Large, 1, wait("Retry-After", "1")),
        // An expired address.
        (Site::Large, 1, status(403)),
        (Site::Large, 3, HubFault::Truncate(5_000)),
        (Site::Large, 3, HubFault::Truncate(0)),
        (Site::Large, 2, HubFault::Stall(40_000)),
        (Site::Large, ALWAYS, HubFault::IgnoreRange),
        (Site::Large, 1, HubFault::IgnoreRange),
        (Site::Large, 1, HubFault::RefuseRange),
        (Site::Small, 1, HubFault::Truncate(3)),
        (Site::Small, ALWAYS, HubFault::IgnoreRange),
    ] {
        let fixture = HubFixture::new(300_000);
        let what = format!("{site:?} {fault:?} {times} times");
        let mut tuning = tuning();
        if let HubFault::Stall(_) = fault {
            // A loaded machine may stall other streams too; they are retried.
            tuning.stall = Duration::from_secs(1);
            tuning.retry.retries = 60;
        }
        fixture.server.inject_fault(site, times, fault);
        let hub = Hub::open_tuned(fixture.options(), &tuning).unwrap();
        pull(&hub, &mut NoProgress).unwrap_or_else(|error| panic!("{what}: {error}"));
        fixture.assert_complete();
    }
}

#[test]
fn without_ranges_broken_download_restarts() {
    let fixture = HubFixture::new(300_000);
    fixture
        .server
        .inject_fault(Site::Large, 1, HubFault::RefuseRange);
    fixture
        .server
        .inject_fault(Site::Large, 2, HubFault::Truncate(70_000));
    fixture.pull().unwrap();
    fixture.assert_complete();
}

#[test]
fn changed_file_is_restarted() {
    for (site, path) in [(Site::Resolve, WEIGHTS), (Site::Small, "config.json")] {
        let files = files(300_000);
        let only = files.into_iter().filter(|file| file.path == path).collect();
        let fixture = HubFixture::serving(FakeRepo::new(ID, only));
        let cut = if site == Site::Small {
            Site::Small
        } else {
            Site::Large
        };
        fixture.server.inject_fault(cut, 1, HubFault::Truncate(10));
        assert!(fixture.pull_without_retries().is_err());

        fixture.server.inject_fault(site, 1, HubFault::Changed);
        let mut progress = RecordedProgress::default();
        pull(&fixture.hub(), &mut progress).unwrap();
        fixture.assert_complete();
        assert!(
            progress.notes[0].contains("changed"),
            "{:?}",
            progress.notes
        );
        assert_eq!(progress.advanced, fixture.bytes());
    }
}

#[test]
fn file_that_keeps_changing_is_an_error() {
    let fixture = one_stream();
    fixture
        .server
        .inject_fault(Site::Large, ALWAYS, HubFault::Truncate(10));
    for _ in 0..10 {
        fixture
            .server
            .inject_fault(Site::Resolve, 1, HubFault::IgnoreRange);
        fixture
            .server
            .inject_fault(Site::Resolve, 1, HubFault::Changed);
    }
    let message = fixture.pull().unwrap_err().to_string();
    assert!(
        message.contains(WEIGHTS) && message.contains("changing"),
        "{message}"
    );
    assert!(fixture.entries("blobs").is_empty());
    fixture.assert_nothing_half_written();
}

#[test]
fn wrong_content_is_discarded_and_named() {
    for (site, path, kind) in [
        (Site::Large, WEIGHTS, "SHA-256"),
        (Site::Small, "config.json", "git hash"),
    ] {
        let fixture = HubFixture::new(300_000);
        fixture.server.inject_fault(site, 8, HubFault::Corrupt);
        let error = fixture.pull().unwrap_err();
        let HubError::WrongHash(wrong) = &error else {
            panic!("{error}");
        };
        assert_eq!(wrong.kind, kind);
        assert_ne!(wrong.found, wrong.expected);
        let message = error.to_string();
        let file = fixture.file(&wrong.file);
        for part in [&wrong.file, ID, &file.etag(), &wrong.found] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
        assert!(!fixture.blob(path).exists() && !fixture.snapshot().join(path).exists());
        fixture.assert_nothing_half_written();
    }
}

#[test]
fn interrupted_pull_resumes() {
    let fixture = one_stream();
    fixture
        .server
        .inject_fault(Site::Large, 1, HubFault::Truncate(50_000));
    fixture.pull_without_retries().unwrap_err();
    assert_eq!(fixture.server.sent(), 50_000);
    let mut progress = RecordedProgress::default();
    pull(&fixture.hub(), &mut progress).unwrap();
    fixture.assert_complete();
    assert_eq!(fixture.server.sent(), fixture.bytes());
    assert_eq!(progress.advanced, fixture.bytes());
}

#[test]
fn damaged_partial_file_is_downloaded_again() {
    let fixture = HubFixture::new(300_000);
    fixture
        .server
        .inject_fault(Site::Large, 4, HubFault::Truncate(50_000));
    fixture.pull_without_retries().unwrap_err();
    let part = fixture.root().join(format!(
        "blobs/{}.loquat.incomplete",
        fixture.file(WEIGHTS).etag()
    ));
    let mut bytes = fs::read(&part).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(&part, bytes).unwrap();
    let mut progress = RecordedProgress::default();
    pull(&fixture.hub(), &mut progress).unwrap();
    fixture.assert_complete();
    assert!(
        progress.notes[0].contains("damaged"),
        "{:?}",
        progress.notes
    );
}

#[test]
fn partial_file_of_python_client_is_resumed() {
    let right = noise(300_000, 7)[..200_000].to_vec();
    let wrong = vec![0; 200_000];
    // The partial file, and how many bytes of the weights are sent.
    for (name, left, sent) in [
        ("right", right, 100_000),
        ("wrong", wrong, 100_000 + 300_000),
        ("all of it", noise(300_000, 7), 0),
        ("longer", noise(300_001, 7), 300_000),
    ] {
        let fixture = HubFixture::serving(FakeRepo::new(
            ID,
            vec![FakeFile::large(WEIGHTS, noise(300_000, 7))],
        ));
        let blob = fixture.blob(WEIGHTS);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(blob.with_extension("incomplete"), left).unwrap();
        fixture.pull().unwrap();
        assert_eq!(fixture.server.sent(), sent, "{name}");
        fs::remove_file(blob.with_extension("incomplete")).ok();
        fixture.assert_complete();
    }
}

#[test]
fn mirror_without_hashes_is_asked_per_file() {
    let mut served = FakeRepo::new(ID, files(300_000));
    served.lists_hashes = false;
    let fixture = HubFixture::serving(served);
    let listing = fixture.hub().listing(&repo()).unwrap();
    assert!(listing.files.iter().all(|file| file.size.is_none()));
    fixture.pull().unwrap();
    fixture.assert_complete();
    let requests = fixture.server.requests();
    let heads = requests.iter().filter(|request| request.method == "HEAD");
    assert!(heads.clone().count() >= 3);
    assert!(heads.into_iter().all(|head| head.site != Site::Large));
}

#[test]
fn only_requested_files_are_downloaded() {
    let fixture = HubFixture::new(300_000);
    let hub = fixture.hub();
    let listing = hub.listing(&repo()).unwrap();
    let config = listing.files.iter().find(|file| file.path == "config.json");
    let snapshot = hub
        .download(&repo(), &listing, &[config.unwrap()], &mut NoProgress)
        .unwrap();
    assert!(snapshot.join("config.json").exists());
    assert_eq!(fixture.entries("snapshots").len(), 1);
}

#[test]
fn revisions_are_cached_under_their_names() {
    let mut served = FakeRepo::new(ID, files(1_000));
    served.refs = vec!["main".to_owned(), "refs/pr/1".to_owned()];
    let fixture = HubFixture::serving(served);
    let hub = fixture.hub();
    for revision in ["refs/pr/1", &fixture.repo.commit] {
        let repo = HubRepo {
            id: ID.to_owned(),
            revision: revision.to_owned(),
        };
        let listing = hub.listing(&repo).unwrap();
        assert_eq!(listing.commit, fixture.repo.commit);
        let files: Vec<&RemoteFile> = listing.files.iter().collect();
        hub.download(&repo, &listing, &files, &mut NoProgress)
            .unwrap();
        hub.set_ref(&repo, &listing).unwrap();
    }
    // A commit needs no ref.
    let refs: Vec<_> = fixture.entries("refs").into_keys().collect();
    assert_eq!(refs, ["refs/pr/1"]);
}

#[test]
fn empty_files_are_downloaded() {
    let fixture = HubFixture::serving(FakeRepo::new(
        ID,
        vec![
            FakeFile::small("empty", ""),
            FakeFile::large("void.bin", ""),
        ],
    ));
    fixture.pull().unwrap();
    for name in ["empty", "void.bin"] {
        assert_eq!(fs::read(fixture.snapshot().join(name)).unwrap(), b"");
    }
}

#[test]
fn unreachable_hub_is_named() {
    let fixture = HubFixture::new(10);
    let options = HubOptions {
        // A reserved port without a listener.
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        ..fixture.options()
    };
    let hub = Hub::open_tuned(options, &tuning()).unwrap();
    let message = pull(&hub, &mut NoProgress).unwrap_err().to_string();
    assert!(
        message.contains("127.0.0.1:1") && message.contains("HF_ENDPOINT"),
        "{message}"
    );
}
