//! Behaviour without a network.

use loquat_store::NoProgress;
use loquat_store::hub::{Hub, HubError, HubOptions, HubRepo};

use super::fixture::{HubFixture, ID, WEIGHTS, pull, repo, tuning};

fn offline(fixture: &HubFixture) -> Hub {
    let options = HubOptions {
        offline: true,
        ..fixture.options()
    };
    Hub::open_tuned(options, &tuning()).unwrap()
}

#[test]
fn cached_model_needs_no_request() {
    let fixture = HubFixture::new(1_000);
    fixture.pull().unwrap();
    let before = fixture.server.requests().len();
    let found = pull(&offline(&fixture), &mut NoProgress).unwrap();
    assert_eq!(found, fixture.snapshot());
    assert_eq!(fixture.server.requests().len(), before);

    let by_commit = HubRepo {
        id: ID.to_owned(),
        revision: fixture.repo.commit.clone(),
    };
    let listing = offline(&fixture).listing(&by_commit).unwrap();
    let mut online = fixture.hub().listing(&repo()).unwrap();
    online.files.sort_by(|one, other| one.path.cmp(&other.path));
    for (cached, listed) in listing.files.iter().zip(&online.files) {
        assert_eq!((&cached.path, cached.size), (&listed.path, listed.size));
        assert_eq!(cached.sha256, listed.sha256);
    }
}

#[test]
fn offline_names_missing_model() {
    let fixture = HubFixture::new(1_000);
    let error = offline(&fixture).listing(&repo()).unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    let message = error.to_string();
    for part in [ID, "main", "--offline", "HF_HUB_OFFLINE"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(fixture.server.requests().is_empty());
}

#[test]
fn offline_names_missing_files() {
    let fixture = HubFixture::new(1_000);
    let hub = fixture.hub();
    let listing = hub.listing(&repo()).unwrap();
    let config = listing.files.iter().find(|file| file.path == "config.json");
    hub.download(&repo(), &listing, &[config.unwrap()], &mut NoProgress)
        .unwrap();
    let all: Vec<_> = listing.files.iter().collect();
    let error = offline(&fixture)
        .download(&repo(), &listing, &all, &mut NoProgress)
        .unwrap_err();
    let HubError::FilesNotCached { files, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(files, &["folder/a note.txt", WEIGHTS]);
    assert!(error.to_string().contains(WEIGHTS), "{error}");
}
