use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::double::{Double, becomes, config, serve, states};
use crate::error::ErrorKind;
use crate::models::slot::REMEMBERED;

#[tokio::test]
async fn many_first_requests_open_once() {
    let double = Double {
        delay: Duration::from_millis(30),
        ..Double::default()
    };
    let (models, double) = serve(&config(&[("a", 1)], None), double);
    let asked = (0..8).map(|_| {
        let models = models.clone();
        tokio::spawn(async move { models.lease("a").await })
    });
    let asked: Vec<_> = asked.collect();
    let mut leases = Vec::new();
    for asked in asked {
        leases.push(asked.await.expect("no panic").expect("the model"));
    }
    assert_eq!(double.opened("a"), 1);
    assert_eq!(models.status()[0].leases, 8);
    let ninth = leases[0].clone();
    assert_eq!(models.status()[0].leases, 9);
    leases.clear();
    drop(ninth);
    assert_eq!(models.status()[0].leases, 0);
}

#[tokio::test]
async fn an_opening_goes_on_when_nobody_waits() {
    let double = Double {
        delay: Duration::from_millis(30),
        ..Double::default()
    };
    let (models, double) = serve(&config(&[("a", 1)], None), double);
    let impatient = tokio::time::timeout(Duration::from_millis(5), models.lease("a")).await;
    assert!(impatient.is_err());
    assert_eq!(states(&models), [("a".to_owned(), "loading")]);
    becomes(&models, "a", "ready").await;
    models.lease("a").await.expect("the model");
    assert_eq!(double.opened("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_for_a_while_then_tried_again() {
    let double = Double {
        failures: AtomicUsize::new(2),
        ..Double::default()
    };
    let (models, double) = serve(&config(&[("a", 1)], None), double);
    // How long to wait before asking, whether there is a model, how often it was opened by then.
    let cases = [
        (Duration::ZERO, false, 1),
        (Duration::ZERO, false, 1),
        (REMEMBERED / 2, false, 1),
        (REMEMBERED, false, 2),
        (REMEMBERED, true, 3),
    ];
    for (wait, there, opened) in cases {
        tokio::time::sleep(wait).await;
        match models.lease("a").await {
            Ok(_) => assert!(there),
            Err(error) => {
                assert!(!there);
                assert_eq!(error.kind, ErrorKind::Internal);
                assert_eq!(error.code, Some("model_load_failed"));
                assert!(!error.message.contains("secret"), "{}", error.message);
            }
        }
        assert_eq!(double.opened("a"), opened);
    }
}

#[tokio::test]
async fn an_operator_need_not_wait_for_a_failure_to_be_forgotten() {
    let double = Double {
        failures: AtomicUsize::new(1),
        ..Double::default()
    };
    let (models, double) = serve(&config(&[("a", 1)], None), double);
    assert!(models.lease("a").await.is_err());
    assert_eq!(states(&models), [("a".to_owned(), "failed")]);
    models.load("a").await.expect("the model");
    assert_eq!(double.opened("a"), 2);
}

#[tokio::test]
async fn names_aliases_and_strangers() {
    let mut config = config(&[("a", 1), ("b", 1)], None);
    config.models[1].aliases = vec!["gpt".to_owned(), "a".to_owned()];
    let (models, _) = serve(&config, Double::default());
    for (asked, found) in [
        ("a", Some("a")),
        ("gpt", Some("b")),
        ("c", None),
        ("", None),
    ] {
        assert_eq!(models.name_of(asked).ok().as_deref(), found, "{asked}");
        let lease = models.lease(asked).await.ok();
        assert_eq!(lease.as_ref().map(|lease| lease.id.as_str()), found);
    }
    let stranger = models.name_of("c").expect_err("nobody");
    assert_eq!(stranger.kind, ErrorKind::NotFound);
    assert_eq!(stranger.code, Some("model_not_found"));
    assert!(!stranger.message.contains("`a`"));
}

#[tokio::test]
async fn what_is_not_open_is_looked_at_once() {
    let (models, double) = serve(&config(&[("a", 5), ("b", 6)], None), Double::default());
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
    assert_eq!(double.plans.load(Ordering::Relaxed), 2);
    assert_eq!(double.opened("a"), 0);
}

#[tokio::test]
async fn preloading_is_pending_until_it_is_done() {
    let mut config = config(&[("a", 1), ("b", 1), ("c", 1)], None);
    config.models[0].preload = true;
    config.models[2].preload = true;
    let (models, double) = serve(&config, Double::default());
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
    assert_eq!(pending(), [""; 0], "it was there");
    assert_eq!(double.opened("b"), 0);
}

#[tokio::test]
async fn the_configuration_says_how_to_sample() {
    let sampled = |sampling: serde_json::Value| async move {
        let mut config = config(&[("a", 1)], None);
        config.models[0].sampling = sampling.as_object().expect("an object").clone();
        let (models, _) = serve(&config, Double::default());
        models.lease("a").await
    };
    let lease = sampled(json!({ "top_k": 7 })).await.expect("the model");
    assert_eq!(lease.sampling().top_k, 7);
    let wrong = sampled(json!({ "top_k": "many" })).await.err();
    assert_eq!(
        wrong.and_then(|error| error.code),
        Some("model_load_failed")
    );
}
