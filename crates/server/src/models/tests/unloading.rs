use std::time::Duration;

use loquat_engine::{GenerateRequest, Generation, SamplingParams};

use super::fake_opener::{FakeOpener, becomes, config, serve, states};
use crate::models::{KeepAlive, Lease, Models};

const IDLE: Duration = Duration::from_secs(60);

/// A model that is unloaded when idle.
fn idle_unloading() -> Models {
    let mut config = config(&[("a", 1)], None);
    config.models[0].idle_unload = Some(IDLE);
    serve(&config, FakeOpener::default()).0
}

fn state(models: &Models) -> &'static str {
    states(models)[0].1
}

fn submit(lease: &Lease, max_tokens: usize) -> Generation {
    let request = GenerateRequest {
        prompt: vec![1, 2, 3],
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    };
    lease.engine().submit(request).expect("accepted")
}

#[tokio::test(start_paused = true)]
async fn idle_model_is_unloaded_and_reloaded() {
    let models = idle_unloading();
    let lease = models.lease("a").await.expect("the model");
    tokio::time::sleep(IDLE * 2).await;
    assert_eq!(state(&models), "ready", "it is in use");
    drop(lease);
    tokio::time::sleep(IDLE / 2).await;
    assert_eq!(state(&models), "ready");
    drop(models.lease("a").await.expect("the model"));
    tokio::time::sleep(IDLE * 3 / 4).await;
    assert_eq!(state(&models), "ready", "it was used again");
    assert!(models.status()[0].expires.is_some());
    tokio::time::sleep(IDLE / 2).await;
    becomes(&models, "a", "unloaded").await;
    let status = &models.status()[0];
    assert!(status.stats.is_none() && status.expires.is_none());
    assert!(status.info.is_some(), "its inspection is kept");
    models.lease("a").await.expect("the model");
}

#[tokio::test(start_paused = true)]
async fn keep_alive_lasts_until_unloaded() {
    let models = idle_unloading();
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
    assert_eq!(state(&models), "ready", "the configuration applies again");
    assert!(models.keep_alive("b", KeepAlive::Forever).is_err());
}

#[tokio::test]
async fn unloading_waits_for_leases() {
    let (models, opener) = serve(&config(&[("a", 1)], None), FakeOpener::default());
    let lease = models.lease("a").await.expect("the model");
    let generation = submit(&lease, 4);
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
    let completion = generation.collect().await.expect("a completion");
    assert_eq!(completion.tokens.len(), 4);
    // Its output is not read, so it ends only with the engine.
    let witness = submit(&lease, 1000);
    drop(lease);
    unloading.await.expect("no panic").expect("a");
    assert!(witness.collect().await.is_err());
    let lease = next.await.expect("no panic").expect("the model");
    assert_eq!(opener.opened("a"), 2);
    submit(&lease, 4).collect().await.expect("a completion");
}

#[tokio::test]
async fn drained_model_is_refused_until_loaded() {
    let (models, opener) = serve(&config(&[("a", 1)], None), FakeOpener::default());
    drop(models.lease("a").await.expect("the model"));
    models.drain("a").await.expect("a");
    assert_eq!(state(&models), "drained");
    let refused = models.lease("a").await.err();
    assert_eq!(refused.and_then(|error| error.code), Some("model_drained"));
    models.load("a").await.expect("the model");
    models.lease("a").await.expect("the model");
    assert_eq!(opener.opened("a"), 2);
}

#[tokio::test]
async fn model_with_dead_engine_is_reopened() {
    let (models, opener) = serve(&config(&[("a", 1)], None), FakeOpener::default());
    models
        .lease("a")
        .await
        .expect("the model")
        .engine()
        .shutdown();
    let lease = models.lease("a").await.expect("the model");
    submit(&lease, 4).collect().await.expect("a completion");
    assert_eq!(opener.opened("a"), 2);
}

#[tokio::test]
async fn closing_waits_for_requests_and_openings() {
    let sizes = [("a", 1), ("b", 1)];
    let (models, opener) = serve(&config(&sizes, None), FakeOpener::default());
    let lease = models.lease("a").await.expect("the model");
    let release = opener.block_next();
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
    drop(release);
    assert!(late.await.expect("no panic").is_err());
    becomes(&models, "b", "unloaded").await;
    assert!(!closing.is_finished(), "`a` is in use");
    submit(&lease, 4).collect().await.expect("a completion");
    drop(lease);
    closing.await.expect("no panic");
    assert_eq!(state(&models), "unloaded");
}
