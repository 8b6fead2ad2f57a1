//! Bytes that arrive, whatever the network does.

use std::fs;
use std::time::Duration;

use loquat_hubkit::{Fault, File, Repo as Served, Site, TOKEN, noise};
use loquat_store::NoProgress;
use loquat_store::hub::{Hub, HubError, HubOptions, RemoteFile, Repo};

use crate::world::{ID, Told, WEIGHTS, World, files, pull, repo, tuning};

/// Forever, as far as a test is concerned.
const ALWAYS: usize = usize::MAX;

/// A hub with one file, too small for more than one connection.
fn one_stream() -> World {
    World::of(Served::new(
        ID,
        vec![File::large(WEIGHTS, noise(60_000, 7))],
    ))
}

#[test]
fn a_pull_places_every_file_once_and_the_next_asks_for_none() {
    let world = World::new(300_000);
    let mut told = Told::default();
    let path = pull(&world.hub(), &mut told).unwrap();
    assert_eq!(path, world.snapshot());
    world.assert_whole();
    assert_eq!(world.server.sent(), world.bytes());
    let link = fs::read_link(world.snapshot().join("folder/a note.txt")).unwrap();
    assert!(link.starts_with("../../../blobs"), "{}", link.display());

    assert_eq!(told.total, Some(world.bytes()));
    assert_eq!((told.advanced, told.finishes), (world.bytes(), 1));
    for file in &world.repo.files {
        let bytes = file.content.len() as u64;
        let whole = (file.path.clone(), bytes, bytes, true);
        assert!(told.files.values().any(|told| *told == whole), "{whole:?}");
    }

    world.pull().unwrap();
    assert_eq!(world.server.sent(), world.bytes());
}

#[test]
fn a_large_file_comes_in_several_ranges_at_once() {
    let world = World::new(300_000);
    world.pull().unwrap();
    let requests = world.server.requests();
    let ranges = requests
        .iter()
        .filter(|request| request.site == Site::Large);
    let ranges: Vec<_> = ranges.filter_map(|request| request.range.clone()).collect();
    assert_eq!(ranges.len(), 4, "{ranges:?}");
}

#[test]
fn the_token_is_shown_to_the_hub_and_to_nobody_else() {
    let world = World::new(300_000);
    world.pull().unwrap();
    let ours = format!("Bearer {TOKEN}");
    for request in world.server.requests() {
        let shown = request.authorization.as_deref();
        match request.site {
            Site::Large => assert_eq!(shown, None),
            _ => assert_eq!(shown, Some(ours.as_str()), "{request:?}"),
        }
        let agent = request.user_agent.unwrap();
        assert!(agent.starts_with("loquat/"), "{agent}");
    }
}

#[test]
fn what_goes_wrong_for_a_while_is_survived() {
    let status = |status| Fault::Status(status, Vec::new());
    let wait = |header, text: &str| Fault::Status(429, vec![(header, text.to_owned())]);
    for (site, times, fault) in [
        (Site::Api, 2, status(500)),
        (Site::Api, 1, status(503)),
        (Site::Api, 1, wait("Retry-After", "0")),
        (Site::Api, 1, wait("RateLimit", "\"api\";r=0;t=1")),
        (Site::Resolve, 2, status(502)),
        (Site::Large, 1, status(408)),
        (Site::Large, 1, wait("Retry-After", "1")),
        // An address that has expired.
        (Site::Large, 1, status(403)),
        (Site::Large, 3, Fault::Truncate(5_000)),
        (Site::Large, 3, Fault::Truncate(0)),
        (Site::Large, 2, Fault::Stall(40_000)),
        (Site::Large, ALWAYS, Fault::IgnoreRange),
        (Site::Large, 1, Fault::IgnoreRange),
        (Site::Large, 1, Fault::RefuseRange),
        (Site::Small, 1, Fault::Truncate(3)),
        (Site::Small, ALWAYS, Fault::IgnoreRange),
    ] {
        let world = World::new(300_000);
        let what = format!("{site:?} {fault:?} {times} times");
        let mut tuning = tuning();
        if let Fault::Stall(_) = fault {
            tuning.stall = Duration::from_secs(1);
        }
        world.server.misbehave(site, times, fault);
        let hub = Hub::open_tuned(world.options(), &tuning).unwrap();
        pull(&hub, &mut NoProgress).unwrap_or_else(|error| panic!("{what}: {error}"));
        world.assert_whole();
    }
}

#[test]
fn a_server_without_ranges_whose_connections_break_is_asked_from_the_beginning() {
    let world = World::new(300_000);
    world.server.misbehave(Site::Large, 1, Fault::RefuseRange);
    world
        .server
        .misbehave(Site::Large, 2, Fault::Truncate(70_000));
    world.pull().unwrap();
    world.assert_whole();
}

#[test]
fn a_file_that_changes_midway_is_begun_anew_and_not_mixed() {
    for (site, path) in [(Site::Resolve, WEIGHTS), (Site::Small, "config.json")] {
        let files = files(300_000);
        let only = files.into_iter().filter(|file| file.path == path).collect();
        let world = World::of(Served::new(ID, only));
        let cut = if site == Site::Small {
            Site::Small
        } else {
            Site::Large
        };
        world.server.misbehave(cut, 1, Fault::Truncate(10));
        assert!(world.pull_impatiently().is_err());

        world.server.misbehave(site, 1, Fault::Changed);
        let mut told = Told::default();
        pull(&world.hub(), &mut told).unwrap();
        world.assert_whole();
        assert!(told.notes[0].contains("changed"), "{:?}", told.notes);
        assert_eq!(told.advanced, world.bytes());
    }
}

#[test]
fn a_file_that_keeps_changing_is_given_up() {
    let world = one_stream();
    world
        .server
        .misbehave(Site::Large, ALWAYS, Fault::Truncate(10));
    for _ in 0..10 {
        world.server.misbehave(Site::Resolve, 1, Fault::IgnoreRange);
        world.server.misbehave(Site::Resolve, 1, Fault::Changed);
    }
    let message = world.pull().unwrap_err().to_string();
    assert!(
        message.contains(WEIGHTS) && message.contains("changing"),
        "{message}"
    );
    assert!(world.entries("blobs").is_empty());
    world.assert_nothing_half_written();
}

#[test]
fn wrong_content_is_kept_out_and_named() {
    for (site, path, kind) in [
        (Site::Large, WEIGHTS, "SHA-256"),
        (Site::Small, "config.json", "git hash"),
    ] {
        let world = World::new(300_000);
        world.server.misbehave(site, 8, Fault::Corrupt);
        let error = world.pull().unwrap_err();
        let HubError::WrongHash(wrong) = &error else {
            panic!("{error}");
        };
        assert_eq!(wrong.kind, kind);
        assert_ne!(wrong.found, wrong.expected);
        let message = error.to_string();
        let file = world.file(&wrong.file);
        for part in [&wrong.file, ID, &file.etag(), &wrong.found] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
        assert!(!world.blob(path).exists() && !world.snapshot().join(path).exists());
        world.assert_nothing_half_written();
    }
}

#[test]
fn an_interrupted_pull_is_taken_up_where_it_ended() {
    let world = one_stream();
    world
        .server
        .misbehave(Site::Large, 1, Fault::Truncate(50_000));
    world.pull_impatiently().unwrap_err();
    assert_eq!(world.server.sent(), 50_000);
    let mut told = Told::default();
    pull(&world.hub(), &mut told).unwrap();
    world.assert_whole();
    assert_eq!(world.server.sent(), world.bytes());
    assert_eq!(told.advanced, world.bytes());
}

#[test]
fn damage_to_what_was_here_is_found_and_mended() {
    let world = World::new(300_000);
    world
        .server
        .misbehave(Site::Large, 4, Fault::Truncate(50_000));
    world.pull_impatiently().unwrap_err();
    let part = world.root().join(format!(
        "blobs/{}.loquat.incomplete",
        world.file(WEIGHTS).etag()
    ));
    let mut bytes = fs::read(&part).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    fs::write(&part, bytes).unwrap();
    let mut told = Told::default();
    pull(&world.hub(), &mut told).unwrap();
    world.assert_whole();
    assert!(told.notes[0].contains("damaged"), "{:?}", told.notes);
}

#[test]
fn what_python_left_of_a_file_is_used_if_it_is_right() {
    let right = noise(300_000, 7)[..200_000].to_vec();
    let wrong = vec![0; 200_000];
    // What is there, and how many bytes of the weights are still sent.
    for (name, left, sent) in [
        ("right", right, 100_000),
        ("wrong", wrong, 100_000 + 300_000),
        ("all of it", noise(300_000, 7), 0),
        ("longer", noise(300_001, 7), 300_000),
    ] {
        let world = World::of(Served::new(
            ID,
            vec![File::large(WEIGHTS, noise(300_000, 7))],
        ));
        let blob = world.blob(WEIGHTS);
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(blob.with_extension("incomplete"), left).unwrap();
        world.pull().unwrap();
        assert_eq!(world.server.sent(), sent, "{name}");
        fs::remove_file(blob.with_extension("incomplete")).ok();
        world.assert_whole();
    }
}

#[test]
fn a_mirror_that_lists_names_only_is_asked_for_the_rest() {
    let mut served = Served::new(ID, files(300_000));
    served.lists_hashes = false;
    let world = World::of(served);
    let listing = world.hub().listing(&repo()).unwrap();
    assert!(listing.files.iter().all(|file| file.size.is_none()));
    world.pull().unwrap();
    world.assert_whole();
    let requests = world.server.requests();
    let heads = requests.iter().filter(|request| request.method == "HEAD");
    assert!(heads.clone().count() >= 3);
    assert!(heads.into_iter().all(|head| head.site != Site::Large));
}

#[test]
fn only_the_files_that_were_asked_for_come() {
    let world = World::new(300_000);
    let hub = world.hub();
    let listing = hub.listing(&repo()).unwrap();
    let config = listing.files.iter().find(|file| file.path == "config.json");
    let snapshot = hub
        .fetch(&repo(), &listing, &[config.unwrap()], &mut NoProgress)
        .unwrap();
    assert!(snapshot.join("config.json").exists());
    assert_eq!(world.entries("snapshots").len(), 1);
}

#[test]
fn revisions_are_asked_for_and_kept_under_their_names() {
    let mut served = Served::new(ID, files(1_000));
    served.refs = vec!["main".to_owned(), "refs/pr/1".to_owned()];
    let world = World::of(served);
    let hub = world.hub();
    for revision in ["refs/pr/1", &world.repo.commit] {
        let repo = Repo {
            id: ID.to_owned(),
            revision: revision.to_owned(),
        };
        let listing = hub.listing(&repo).unwrap();
        assert_eq!(listing.commit, world.repo.commit);
        let files: Vec<&RemoteFile> = listing.files.iter().collect();
        hub.fetch(&repo, &listing, &files, &mut NoProgress).unwrap();
    }
    // A commit needs no ref: it is its own.
    let refs: Vec<_> = world.entries("refs").into_keys().collect();
    assert_eq!(refs, ["refs/pr/1"]);
}

#[test]
fn an_empty_file_is_a_file() {
    let world = World::of(Served::new(
        ID,
        vec![File::small("empty", ""), File::large("void.bin", "")],
    ));
    world.pull().unwrap();
    for name in ["empty", "void.bin"] {
        assert_eq!(fs::read(world.snapshot().join(name)).unwrap(), b"");
    }
}

#[test]
fn a_hub_that_nobody_answers_at_is_named() {
    let world = World::new(10);
    let options = HubOptions {
        // Reserved, so nobody listens there.
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        ..world.options()
    };
    let hub = Hub::open_tuned(options, &tuning()).unwrap();
    let message = pull(&hub, &mut NoProgress).unwrap_err().to_string();
    assert!(
        message.contains("127.0.0.1:1") && message.contains("HF_ENDPOINT"),
        "{message}"
    );
}
