use super::double::{Double, config, serve, states};
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
async fn the_longest_unused_make_room() {
    let sizes = [("a", 4), ("b", 4), ("c", 4), ("d", 10)];
    let (models, double) = serve(&config(&sizes, Some(10)), Double::default());
    // Each in turn, and what is open then.
    let steps: [(&str, &[&str]); 7] = [
        ("a", &["a"]),
        ("b", &["a", "b"]),
        ("a", &["a", "b"]),
        ("c", &["a", "c"]),
        ("b", &["b", "c"]),
        ("d", &["d"]),
        ("a", &["a"]),
    ];
    for (model, open) in steps {
        drop(models.lease(model).await.expect(model));
        assert_eq!(ready(&models), open, "after {model}");
    }
    assert_eq!(double.opened("a"), 2);
}

#[tokio::test]
async fn what_is_in_use_stays_and_others_are_told() {
    let sizes = [("a", 6), ("b", 6), ("c", 3), ("d", 11)];
    let (models, double) = serve(&config(&sizes, Some(10)), Double::default());
    let lease = models.lease("a").await.expect("a");
    drop(models.lease("c").await.expect("c"));
    for _ in 0..2 {
        let error = models.lease("b").await.err().expect("no room");
        assert_eq!(error.kind, ErrorKind::Overloaded);
        assert_eq!(error.code, Some("model_no_room"));
        let what = "needs 6 bytes of memory, and models in use leave 4 bytes of 10 bytes";
        assert!(error.message.contains(what), "{}", error.message);
        assert!(error.retry_after.is_some());
        assert_eq!(ready(&models), ["a", "c"], "nobody goes in vain");
    }
    drop(lease);
    models.lease("b").await.expect("b");
    assert_eq!(ready(&models), ["b", "c"]);
    let error = models.lease("d").await.err().expect("too large");
    assert_eq!(error.kind, ErrorKind::Internal);
    assert_eq!(error.code, Some("model_too_large"));
    assert_eq!(double.opened("d"), 0);
}

#[tokio::test]
async fn two_that_do_not_fit_together_take_turns() {
    let (models, double) = serve(&config(&[("a", 6), ("b", 6)], Some(10)), Double::default());
    let asked = (0..40).map(|turn| {
        let models = models.clone();
        let name = ["a", "b"][turn % 2];
        tokio::spawn(async move {
            // Who finds the other in use comes again.
            loop {
                match models.lease(name).await {
                    Ok(lease) => return lease.id.clone() == name,
                    Err(error) => assert_eq!(error.code, Some("model_no_room")),
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        })
    });
    for asked in asked.collect::<Vec<_>>() {
        assert!(asked.await.expect("no panic"));
    }
    assert!(double.opened("a") >= 1 && double.opened("b") >= 1);
    assert_eq!(ready(&models).len(), 1);
}
