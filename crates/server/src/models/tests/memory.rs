use super::fake_opener::{FakeOpener, config, serve, states};
use crate::error::ErrorKind;
use crate::models::Models;

fn ready(models: &Models) -> Vec<String> {
    let ready = states(models).into_iter();
    ready
        .filter(|(_, state)| *state == "ready")
        .map(|(name, _)| name)
        .collect()
}

#[tokio::test]
async fn least_recently_used_are_evicted() {
    let sizes = [("a", 4), ("b", 4), ("c", 4), ("d", 10)];
    let (models, opener) = serve(&config(&sizes, Some(10)), FakeOpener::default());
    // The model to lease, and the loaded models afterwards.
    let steps: [(&str, &[&str]); 7] = [
        ("a", &["a"]),
        ("b", &["a", "b"]),
        ("a", &["a", "b"]),
        ("c", &["a", "c"]),
        ("b", &["b", "c"]),
        ("d", &["d"]),
        ("a", &["a"]),
    ];
    for (model, loaded) in steps {
        drop(models.lease(model).await.expect(model));
        assert_eq!(ready(&models), loaded, "after {model}");
    }
    assert_eq!(opener.opened("a"), 2);
}

#[tokio::test]
async fn models_in_use_are_not_evicted() {
    let sizes = [("a", 6), ("b", 6), ("c", 3), ("d", 11)];
    let (models, opener) = serve(&config(&sizes, Some(10)), FakeOpener::default());
    let lease = models.lease("a").await.expect("a");
    drop(models.lease("c").await.expect("c"));
    for _ in 0..2 {
        let error = models.lease("b").await.err().expect("does not fit");
        assert_eq!(error.kind, ErrorKind::Overloaded);
        assert_eq!(error.code, Some("model_no_room"));
        let expected = "needs 6 bytes of memory, and models in use leave 4 bytes of 10 bytes";
        assert!(error.message.contains(expected), "{}", error.message);
        assert!(error.retry_after.is_some());
        assert_eq!(ready(&models), ["a", "c"], "evicts no more than needed");
    }
    drop(lease);
    models.lease("b").await.expect("b");
    assert_eq!(ready(&models), ["b", "c"]);
    let error = models.lease("d").await.err().expect("too large");
    assert_eq!(error.kind, ErrorKind::Internal);
    assert_eq!(error.code, Some("model_too_large"));
    assert_eq!(opener.opened("d"), 0);
}

#[tokio::test]
async fn models_that_do_not_fit_take_turns() {
    let (models, opener) = serve(
        &config(&[("a", 6), ("b", 6)], Some(10)),
        FakeOpener::default(),
    );
    let requests = (0..40).map(|turn| {
        let models = models.clone();
        let name = ["a", "b"][turn % 2];
        tokio::spawn(async move {
            // Retries while the other model is in use.
            loop {
                match models.lease(name).await {
                    Ok(lease) => return lease.id.clone() == name,
                    Err(error) => assert_eq!(error.code, Some("model_no_room")),
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        })
    });
    for request in requests.collect::<Vec<_>>() {
        assert!(request.await.expect("no panic"));
    }
    assert!(opener.opened("a") >= 1 && opener.opened("b") >= 1);
    assert_eq!(ready(&models).len(), 1);
}
