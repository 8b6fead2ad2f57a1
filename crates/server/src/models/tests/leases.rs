use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::fake_opener::{FakeOpener, becomes, config, serve, states};
use crate::error::ErrorKind;
use crate::models::slot::RETRY_DELAY;

#[tokio::test]
async fn many_first_requests_open_once() {
    let (models, opener) = serve(&config(&[("a", 1)], None), FakeOpener::default());
    let requests = (0..8).map(|_| {
        let models = models.clone();
        tokio::spawn(async move { models.lease("a").await })
    });
    let requests: Vec<_> = requests.collect();
    let mut leases = Vec::new();
    for request in requests {
        leases.push(request.await.expect("no panic").expect("the model"));
    }
    assert_eq!(opener.opened("a"), 1);
    assert_eq!(models.status()[0].leases, 8);
    let ninth = leases[0].clone();
    assert_eq!(models.status()[0].leases, 9);
    leases.clear();
    drop(ninth);
    assert_eq!(models.status()[0].leases, 0);
}

#[tokio::test]
async fn opening_continues_when_nobody_waits() {
    let (models, opener) = serve(&config(&[("a", 1)], None), FakeOpener::default());
    let release = opener.block_next();
    let mut request = Box::pin(models.lease("a"));
    assert!(futures_util::poll!(&mut request).is_pending());
    drop(request);
    assert_eq!(states(&models), [("a".to_owned(), "loading")]);
    drop(release);
    becomes(&models, "a", "ready").await;
    models.lease("a").await.expect("the model");
    assert_eq!(opener.opened("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn failure_is_reported_until_the_next_attempt() {
    let opener = FakeOpener {
        failures: AtomicUsize::new(2),
        ..FakeOpener::default()
    };
    let (models, opener) = serve(&config(&[("a", 1)], None), opener);
    // How long to wait, whether the lease succeeds, and the number of openings.
    let cases = [
        (Duration::ZERO, false, 1),
        (Duration::ZERO, false, 1),
        (RETRY_DELAY / 2, false, 1),
        (RETRY_DELAY, false, 2),
        (RETRY_DELAY, true, 3),
    ];
    for (wait, succeeds, opened) in cases {
        tokio::time::sleep(wait).await;
        match models.lease("a").await {
            Ok(_) => assert!(succeeds),
            Err(error) => {
                assert!(!succeeds);
                assert_eq!(error.kind, ErrorKind::Internal);
                assert_eq!(error.code, Some("model_load_failed"));
                assert!(!error.message.contains("secret"), "{}", error.message);
            }
        }
        assert_eq!(opener.opened("a"), opened);
    }
}

#[tokio::test]
async fn load_retries_after_a_failure() {
    let opener = FakeOpener {
        failures: AtomicUsize::new(1),
        ..FakeOpener::default()
    };
    let (models, opener) = serve(&config(&[("a", 1)], None), opener);
    assert!(models.lease("a").await.is_err());
    assert_eq!(states(&models), [("a".to_owned(), "failed")]);
    models.load("a").await.expect("the model");
    assert_eq!(opener.opened("a"), 2);
}

#[tokio::test]
async fn names_and_aliases_are_resolved() {
    let mut config = config(&[("a", 1), ("b", 1)], None);
    config.models[1].aliases = vec!["gpt".to_owned(), "a".to_owned()];
    let (models, _) = serve(&config, FakeOpener::default());
    for (name, found) in [
        ("a", Some("a")),
        ("gpt", Some("b")),
        ("c", None),
        ("", None),
    ] {
        assert_eq!(models.resolve_name(name).ok().as_deref(), found, "{name}");
        let lease = models.lease(name).await.ok();
        assert_eq!(lease.as_ref().map(|lease| lease.id.as_str()), found);
    }
    let error = models.resolve_name("c").expect_err("unknown");
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert_eq!(error.code, Some("model_not_found"));
    assert!(!error.message.contains("`a`"));
}

#[tokio::test]
async fn files_are_inspected_once() {
    let (models, opener) = serve(&config(&[("a", 5), ("b", 6)], None), FakeOpener::default());
    assert!(models.status().iter().all(|status| status.info.is_none()));
    for _ in 0..2 {
        let listed = models.list().await;
        let listed: Vec<_> = listed
            .iter()
            .map(|status| (status.resident_bytes, status.info.is_some()))
            .collect();
        assert_eq!(listed, [(Some(5), true), (Some(6), true)]);
        let shown = models.show("b").await.expect("b");
        assert_eq!(shown.resident_bytes, Some(6));
    }
    assert_eq!(opener.plans.load(Ordering::Relaxed), 2);
    assert_eq!(opener.opened("a"), 0);
}

#[tokio::test]
async fn preloading_is_pending_until_loaded() {
    let mut config = config(&[("a", 1), ("b", 1), ("c", 1)], None);
    config.models[0].preload = true;
    config.models[2].preload = true;
    let (models, opener) = serve(&config, FakeOpener::default());
    let pending = || -> Vec<_> {
        let pending = models.pending().into_iter();
        pending.map(|status| status.name).collect()
    };
    assert_eq!(pending(), ["a", "c"]);
    models.preload();
    becomes(&models, "a", "ready").await;
    becomes(&models, "c", "ready").await;
    assert_eq!(pending(), [""; 0]);
    models.unload("a").await.expect("a");
    assert_eq!(pending(), [""; 0], "it was loaded");
    assert_eq!(opener.opened("b"), 0);
}

#[tokio::test]
async fn configuration_sets_sampling_parameters() {
    let leased = |sampling: serde_json::Value| async move {
        let mut config = config(&[("a", 1)], None);
        config.models[0].sampling = sampling.as_object().expect("an object").clone();
        let (models, _) = serve(&config, FakeOpener::default());
        models.lease("a").await
    };
    let lease = leased(json!({ "top_k": 7 })).await.expect("the model");
    assert_eq!(lease.sampling().top_k, 7);
    let error = leased(json!({ "top_k": "many" })).await.err();
    assert_eq!(
        error.and_then(|error| error.code),
        Some("model_load_failed")
    );
}
