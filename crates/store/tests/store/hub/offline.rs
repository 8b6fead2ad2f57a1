//! Without a network.

use loquat_store::NoProgress;
use loquat_store::hub::{Hub, HubError, HubOptions, HubRepo};

use super::fixture::{HubFixture, ID, WEIGHTS, pull, repo, tuning};

fn offline(world: &HubFixture) -> Hub {
    let options = HubOptions {
        offline: true,
        ..world.options()
    };
    Hub::open_tuned(options, &tuning()).unwrap()
}

#[test]
fn cached_model_needs_no_request() {
    let world = HubFixture::new(1_000);
    world.pull().unwrap();
    let before = world.server.requests().len();
    let found = pull(&offline(&world), &mut NoProgress).unwrap();
    assert_eq!(found, world.snapshot());
    assert_eq!(world.server.requests().len(), before);

    let by_commit = HubRepo {
        id: ID.to_owned(),
        revision: world.repo.commit.clone(),
    };
    let listing = offline(&world).listing(&by_commit).unwrap();
    let mut online = world.hub().listing(&repo()).unwrap();
    online.files.sort_by(|one, other| one.path.cmp(&other.path));
    for (cached, listed) in listing.files.iter().zip(&online.files) {
        assert_eq!((&cached.path, cached.size), (&listed.path, listed.size));
        assert_eq!(cached.sha256, listed.sha256);
    }
}

#[test]
fn offline_names_missing_model() {
    let world = HubFixture::new(1_000);
    let error = offline(&world).listing(&repo()).unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    let message = error.to_string();
    for part in [ID, "main", "--offline", "HF_HUB_OFFLINE"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(world.server.requests().is_empty());
}

#[test]
fn offline_names_missing_files() {
    let world = HubFixture::new(1_000);
    let hub = world.hub();
    let listing = hub.listing(&repo()).unwrap();
    let config = listing.files.iter().find(|file| file.path == "config.json");
    hub.download(&repo(), &listing, &[config.unwrap()], &mut NoProgress)
        .unwrap();
    let all: Vec<_> = listing.files.iter().collect();
    let error = offline(&world)
        .download(&repo(), &listing, &all, &mut NoProgress)
        .unwrap_err();
    let HubError::FilesNotCached { files, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(files, &["folder/a note.txt", WEIGHTS]);
    assert!(error.to_string().contains(WEIGHTS), "{error}");
}
