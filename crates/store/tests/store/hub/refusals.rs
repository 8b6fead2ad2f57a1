//! Errors of the hub, and hub responses that the client refuses.

use std::fs;

use loquat_hubkit::{Access, FakeRepo, HubFault, Site};
use loquat_store::NoProgress;
use loquat_store::hub::{Hub, HubError, HubOptions, HubRepo, Listing, RemoteFile};

use super::fixture::{HubFixture, ID, files, pull, repo, tuning};

#[test]
fn refused_access_names_remedy() {
    let cases: &[(Access, Option<&str>, &[&str])] = &[
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
    for (access, token, parts) in cases {
        let mut served = FakeRepo::new(ID, files(1_000));
        served.access = *access;
        let fixture = HubFixture::serving(served);
        let options = HubOptions {
            token: Some(token.unwrap_or("none").to_owned()),
            ..fixture.options()
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
            let page = format!("{}/{ID}", fixture.server.url());
            assert!(message.contains(&page), "{message}");
        }
        fixture.assert_nothing_half_written();
    }
}

#[test]
fn messages_hide_logins_and_signed_addresses() {
    let mut served = FakeRepo::new(ID, files(1_000));
    served.access = Access::Gated;
    let gated = HubFixture::serving(served);
    let signed = "http://[storage/a?signature=s3cret".to_owned();
    let moved = HubFixture::new(1_000);
    let redirect = HubFault::Status(302, vec![("Location", signed)]);
    moved.server.inject_fault(Site::Resolve, 100, redirect);
    let failing = HubFixture::new(1_000);
    let status = HubFault::Status(418, Vec::new());
    failing.server.inject_fault(Site::Api, 100, status);
    for fixture in [gated, moved, failing] {
        let host = fixture.server.url().replace("http://", "");
        let options = HubOptions {
            endpoint: Some(format!("http://bob:s3cret@{host}")),
            token: Some("none".to_owned()),
            ..fixture.options()
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
fn token_opens_gated_and_private_repos() {
    for access in [Access::Gated, Access::Private] {
        let mut served = FakeRepo::new(ID, files(1_000));
        served.access = access;
        let fixture = HubFixture::serving(served);
        fixture.pull().unwrap();
        fixture.assert_complete();
    }
}

#[test]
fn missing_repo_revision_and_file_differ() {
    let fixture = HubFixture::new(1_000);
    let hub = fixture.hub();
    let at = |id: &str, revision: &str| HubRepo {
        id: id.to_owned(),
        revision: revision.to_owned(),
    };
    let missing = |repo: HubRepo| hub.listing(&repo).unwrap_err();
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
        .download(&repo(), &listing, &[&absent], &mut NoProgress)
        .unwrap_err();
    assert!(matches!(error, HubError::FileNotFound { .. }), "{error}");
    assert!(error.to_string().contains("absent.gguf"), "{error}");
}

#[test]
fn persistent_fault_ends_retries() {
    let status = |status, headers| HubFault::Status(status, headers);
    let hour = vec![("Retry-After", "3600".to_owned())];
    for (fault, times, asked, said) in [
        (status(500, Vec::new()), 99, 5, "500"),
        (status(429, Vec::new()), 99, 5, "limits the request rate"),
        // A longer wait than is acceptable without output.
        (status(429, hour), 99, 1, "3600 seconds"),
        (status(401, Vec::new()), 99, 1, "HF_TOKEN"),
        (status(403, Vec::new()), 99, 1, "HF_TOKEN"),
        (status(418, Vec::new()), 99, 1, "418"),
        (status(302, Vec::new()), 99, 1, "no location"),
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
        let fixture = HubFixture::new(10);
        let what = format!("{fault:?}");
        fixture.server.inject_fault(Site::Api, times, fault);
        let message = fixture.hub().listing(&repo()).unwrap_err().to_string();
        assert!(message.contains(said), "{what}: {message}");
        assert_eq!(fixture.server.requests().len(), asked, "{what}");
    }
}

#[test]
fn path_outside_snapshot_is_refused() {
    let fixture = HubFixture::new(10);
    let hub = fixture.hub();
    let right = hub.listing(&repo()).unwrap();
    for path in ["../../../../evil", "/evil", "a/../../evil", "..\\evil", ""] {
        let file = RemoteFile {
            path: path.to_owned(),
            ..right.files[0].clone()
        };
        let error = hub
            .download(&repo(), &right, &[&file], &mut NoProgress)
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
        .download(&repo(), &listing, &[file], &mut NoProgress)
        .unwrap_err();
    assert!(matches!(error, HubError::BadRevision { .. }), "{error}");
    let outside = fs::read_dir(fixture.folder()).unwrap().count();
    assert!(outside <= 1, "only the cache may be there");

    for (id, revision) in [("../x", "main"), ("a/b/c", "main"), (ID, "../x"), (ID, "")] {
        let repo = HubRepo {
            id: id.to_owned(),
            revision: revision.to_owned(),
        };
        assert!(hub.listing(&repo).is_err() && hub.cached_listing(&repo).is_err());
    }
}

#[test]
fn hostile_listing_is_refused() {
    let served = FakeRepo::new(ID, vec![loquat_hubkit::FakeFile::small("../up", "x")]);
    let fixture = HubFixture::serving(served);
    let message = fixture.pull().unwrap_err().to_string();
    assert!(message.contains("../up"), "{message}");
}
