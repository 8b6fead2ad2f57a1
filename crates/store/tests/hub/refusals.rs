//! What a hub refuses, and what we refuse a hub.

use std::fs;

use loquat_hubkit::{Access, Fault, Repo as Served, Site};
use loquat_store::NoProgress;
use loquat_store::hub::{Hub, HubError, HubOptions, Listing, RemoteFile, Repo};

use crate::world::{ID, World, files, pull, repo, tuning};

#[test]
fn access_is_refused_with_what_to_do() {
    let said: &[(Access, Option<&str>, &[&str])] = &[
        (
            Access::Gated,
            None,
            &["gated", "accept its terms", "HF_TOKEN"],
        ),
        (
            Access::Gated,
            Some("hf_other"),
            &["gated", "account that accepted", "HF_TOKEN"],
        ),
        (
            Access::GatedForAll,
            Some(loquat_hubkit::TOKEN),
            &["gated", "try again"],
        ),
        (
            Access::Private,
            None,
            &["does not exist", "private", "HF_TOKEN"],
        ),
    ];
    for (access, token, parts) in said {
        let mut served = Served::new(ID, files(1_000));
        served.access = *access;
        let world = World::of(served);
        let options = HubOptions {
            token: Some(token.unwrap_or("none").to_owned()),
            ..world.options()
        };
        let hub = Hub::open_tuned(options, &tuning()).unwrap();
        let message = pull(&hub, &mut NoProgress).unwrap_err().to_string();
        for part in parts.iter().chain(&[ID]) {
            assert!(
                message.contains(part),
                "{access:?}: {part:?} is not in: {message}"
            );
        }
        if *access != Access::Private {
            let page = format!("{}/{ID}", world.server.url());
            assert!(message.contains(&page), "{message}");
        }
        world.assert_nothing_half_written();
    }
}

#[test]
fn no_message_shows_a_login_or_a_signed_address() {
    let mut served = Served::new(ID, files(1_000));
    served.access = Access::Gated;
    let gated = World::of(served);
    let signed = "http://[storage/a?signature=s3cret".to_owned();
    let moved = World::new(1_000);
    let redirect = Fault::Status(302, vec![("Location", signed)]);
    moved.server.misbehave(Site::Resolve, 100, redirect);
    let failing = World::new(1_000);
    let status = Fault::Status(418, Vec::new());
    failing.server.misbehave(Site::Api, 100, status);
    for world in [gated, moved, failing] {
        let host = world.server.url().replace("http://", "");
        let options = HubOptions {
            endpoint: Some(format!("http://bob:s3cret@{host}")),
            token: Some("none".to_owned()),
            ..world.options()
        };
        let hub = Hub::open_tuned(options, &tuning()).unwrap();
        let message = pull(&hub, &mut NoProgress).unwrap_err().to_string();
        assert!(message.contains(&host), "{message}");
        assert!(
            !message.contains("bob") && !message.contains("s3cret"),
            "{message}"
        );
    }
}

#[test]
fn the_token_opens_what_is_gated_or_private() {
    for access in [Access::Gated, Access::Private] {
        let mut served = Served::new(ID, files(1_000));
        served.access = access;
        let world = World::of(served);
        world.pull().unwrap();
        world.assert_whole();
    }
}

#[test]
fn what_is_not_there_is_told_apart() {
    let world = World::new(1_000);
    let hub = world.hub();
    let at = |id: &str, revision: &str| Repo {
        id: id.to_owned(),
        revision: revision.to_owned(),
    };
    let missing = |repo: Repo| hub.listing(&repo).unwrap_err();
    let error = missing(at("someone/else", "main"));
    assert!(matches!(error, HubError::RepoNotFound { .. }), "{error}");
    let error = missing(at(ID, "no-such-branch"));
    assert!(
        matches!(error, HubError::RevisionNotFound { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("no-such-branch"), "{error}");

    let listing = hub.listing(&repo()).unwrap();
    let absent = RemoteFile {
        path: "absent.gguf".to_owned(),
        ..listing.files[0].clone()
    };
    let error = hub
        .fetch(&repo(), &listing, &[&absent], &mut NoProgress)
        .unwrap_err();
    assert!(matches!(error, HubError::FileNotFound { .. }), "{error}");
    assert!(error.to_string().contains("absent.gguf"), "{error}");
}

#[test]
fn a_hub_that_stays_unwell_is_given_up() {
    let status = |status, headers| Fault::Status(status, headers);
    let hour = vec![("Retry-After", "3600".to_owned())];
    for (fault, times, asked, said) in [
        (status(500, Vec::new()), 99, 5, "500"),
        (status(429, Vec::new()), 99, 5, "slow down"),
        // Longer than anybody would wait for a program that says nothing.
        (status(429, hour), 99, 1, "3600 seconds"),
        (status(401, Vec::new()), 99, 1, "HF_TOKEN"),
        (status(403, Vec::new()), 99, 1, "HF_TOKEN"),
        (status(418, Vec::new()), 99, 1, "418"),
        (status(302, Vec::new()), 99, 1, "nowhere"),
        (
            status(
                302,
                vec![("Location", "/api/models/someone/model".to_owned())],
            ),
            99,
            10,
            "redirects",
        ),
    ] {
        let world = World::new(10);
        let what = format!("{fault:?}");
        world.server.misbehave(Site::Api, times, fault);
        let message = world.hub().listing(&repo()).unwrap_err().to_string();
        assert!(message.contains(said), "{what}: {message}");
        assert_eq!(world.server.requests().len(), asked, "{what}");
    }
}

#[test]
fn a_path_out_of_the_snapshot_is_refused() {
    let world = World::new(10);
    let hub = world.hub();
    let right = hub.listing(&repo()).unwrap();
    for path in ["../../../../evil", "/evil", "a/../../evil", "..\\evil", ""] {
        let file = RemoteFile {
            path: path.to_owned(),
            ..right.files[0].clone()
        };
        let error = hub
            .fetch(&repo(), &right, &[&file], &mut NoProgress)
            .unwrap_err();
        assert!(
            matches!(error, HubError::BadAnswer { .. }),
            "{path}: {error}"
        );
    }
    let listing = Listing {
        commit: "../../evil".to_owned(),
        ..right
    };
    let file = &listing.files[0];
    let error = hub
        .fetch(&repo(), &listing, &[file], &mut NoProgress)
        .unwrap_err();
    assert!(matches!(error, HubError::BadRevision { .. }), "{error}");
    let outside = fs::read_dir(world.folder()).unwrap().count();
    assert!(outside <= 1, "only the cache may be there");

    for (id, revision) in [("../x", "main"), ("a/b/c", "main"), (ID, "../x"), (ID, "")] {
        let repo = Repo {
            id: id.to_owned(),
            revision: revision.to_owned(),
        };
        assert!(hub.listing(&repo).is_err() && hub.cached_listing(&repo).is_err());
    }
}

#[test]
fn a_hostile_listing_is_refused() {
    let served = Served::new(ID, vec![loquat_hubkit::File::small("../up", "x")]);
    let world = World::of(served);
    let message = world.pull().unwrap_err().to_string();
    assert!(message.contains("../up"), "{message}");
}
