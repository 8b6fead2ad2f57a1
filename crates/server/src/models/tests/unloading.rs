use std::time::Duration;

use loquat_engine::{GenerateRequest, Generation, SamplingParams};

use super::double::{Double, becomes, config, serve, states};
use crate::models::{KeepAlive, Lease, Models};

const IDLE: Duration = Duration::from_secs(60);

/// A model that is unloaded when idle.
fn impatient() -> Models {
    let mut config = config(&[("a", 1)], None);
    config.models[0].idle_unload = Some(IDLE);
    serve(&config, Double::default()).0
}

fn state(models: &Models) -> &'static str {
    states(models)[0].1
}

fn ask(lease: &Lease, max_tokens: usize) -> Generation {
    let request = GenerateRequest {
        prompt: vec![1, 2, 3],
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    };
    lease.engine().submit(request).expect("a place")
}

#[tokio::test(start_paused = true)]
async fn what_is_idle_for_long_enough_is_closed_and_opened_again() {
    let models = impatient();
    let lease = models.lease("a").await.expect("the model");
    tokio::time::sleep(IDLE * 2).await;
    assert_eq!(state(&models), "ready", "it is in use");
    drop(lease);
    tokio::time::sleep(IDLE / 2).await;
    assert_eq!(state(&models), "ready");
    drop(models.lease("a").await.expect("the model"));
    tokio::time::sleep(IDLE * 3 / 4).await;
    assert_eq!(state(&models), "ready", "it was used since");
    assert!(models.status()[0].expires.is_some());
    tokio::time::sleep(IDLE / 2).await;
    becomes(&models, "a", "unloaded").await;
    let status = &models.status()[0];
    assert!(status.stats.is_none() && status.expires.is_none());
    assert!(status.info.is_some(), "what was seen stays known");
    models.lease("a").await.expect("the model");
}

#[tokio::test(start_paused = true)]
async fn a_clients_word_on_idling_counts_until_the_model_is_unloaded() {
    let models = impatient();
    let open = || async { models.lease("a").await.expect("the model") };
    drop(open().await);
    models.keep_alive("a", KeepAlive::Forever).expect("a");
    tokio::time::sleep(IDLE * 10).await;
    assert_eq!(state(&models), "ready");
    assert_eq!(models.status()[0].expires, None);
    models.keep_alive("a", KeepAlive::For(IDLE * 2)).expect("a");
    drop(open().await);
    tokio::time::sleep(IDLE * 3 / 2).await;
    assert_eq!(state(&models), "ready");
    let lease = open().await;
    models
        .keep_alive("a", KeepAlive::For(Duration::ZERO))
        .expect("a");
    assert_eq!(state(&models), "ready", "it is in use");
    drop(lease);
    becomes(&models, "a", "unloaded").await;
    drop(open().await);
    tokio::time::sleep(IDLE / 2).await;
    assert_eq!(state(&models), "ready", "the configuration counts again");
    assert!(models.keep_alive("b", KeepAlive::Forever).is_err());
}

#[tokio::test]
async fn unloading_ends_the_engine_and_nothing_before_it() {
    let (models, double) = serve(&config(&[("a", 1)], None), Double::default());
    let lease = models.lease("a").await.expect("the model");
    let generation = ask(&lease, 4);
    let unloading = tokio::spawn({
        let models = models.clone();
        async move { models.unload("a").await }
    });
    becomes(&models, "a", "draining").await;
    let next = tokio::spawn({
        let models = models.clone();
        async move { models.lease("a").await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!unloading.is_finished() && !next.is_finished());
    let whole = generation.collect().await.expect("a whole answer");
    assert_eq!(whole.tokens.len(), 4);
    // Nobody reads it, so that it ends with its engine or not at all.
    let witness = ask(&lease, 1000);
    drop(lease);
    unloading.await.expect("no panic").expect("a");
    assert!(witness.collect().await.is_err());
    let lease = next.await.expect("no panic").expect("the model");
    assert_eq!(double.opened("a"), 2);
    ask(&lease, 4).collect().await.expect("a whole answer");
}

#[tokio::test]
async fn what_was_drained_is_refused_until_it_is_loaded() {
    let (models, double) = serve(&config(&[("a", 1)], None), Double::default());
    drop(models.lease("a").await.expect("the model"));
    models.drain("a").await.expect("a");
    assert_eq!(state(&models), "drained");
    let refused = models.lease("a").await.err();
    assert_eq!(refused.and_then(|error| error.code), Some("model_drained"));
    models.load("a").await.expect("the model");
    models.lease("a").await.expect("the model");
    assert_eq!(double.opened("a"), 2);
}

#[tokio::test]
async fn a_model_whose_engine_ended_is_opened_anew() {
    let (models, double) = serve(&config(&[("a", 1)], None), Double::default());
    models
        .lease("a")
        .await
        .expect("the model")
        .engine()
        .shutdown();
    let lease = models.lease("a").await.expect("the model");
    ask(&lease, 4).collect().await.expect("a whole answer");
    assert_eq!(double.opened("a"), 2);
}

#[tokio::test]
async fn closing_waits_for_requests_and_openings_and_takes_no_more() {
    let double = Double {
        delay: Duration::from_millis(30),
        ..Double::default()
    };
    let (models, _) = serve(&config(&[("a", 1), ("b", 1)], None), double);
    let lease = models.lease("a").await.expect("the model");
    let late = tokio::spawn({
        let models = models.clone();
        async move { models.lease("b").await }
    });
    becomes(&models, "b", "loading").await;
    let closing = tokio::spawn({
        let models = models.clone();
        async move { models.close().await }
    });
    while !models.inner.lock().closing {
        tokio::task::yield_now().await;
    }
    assert!(models.lease("a").await.is_err());
    assert!(late.await.expect("no panic").is_err());
    becomes(&models, "b", "unloaded").await;
    assert!(!closing.is_finished(), "`a` is in use");
    ask(&lease, 4).collect().await.expect("a whole answer");
    drop(lease);
    closing.await.expect("no panic");
    assert_eq!(state(&models), "unloaded");
}
