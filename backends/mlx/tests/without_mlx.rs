//! A build without the feature reports it. A separate program, so that it can run in its own build;
//! macOS may have MLX without the feature.

#![cfg(not(any(feature = "mlx", target_os = "macos")))]

use loquat_mlx::MlxBackend;
use loquat_session::{Backend, OpenError, Probe, SessionOptions};
use loquat_testkit::goldens;

#[test]
fn missing_mlx_names_the_remedy() {
    let Probe::Unavailable { why, remedy } = MlxBackend::AUTO.probe() else {
        panic!("a build without the feature has MLX");
    };
    assert!(why.contains("without the feature `mlx`"), "{why}");
    assert!(remedy.contains("cargo xtask mlx"), "{remedy}");
    let source = goldens::source(&goldens::family("llama")).unwrap();
    let options = SessionOptions::default();
    let planned = MlxBackend::AUTO.plan(&source, &options).map(drop);
    let opened = MlxBackend::AUTO
        .open(source, &options, &mut |_| {})
        .map(drop);
    for refused in [planned, opened] {
        assert!(
            matches!(&refused, Err(OpenError::Unavailable { why: again, .. }) if *again == why),
            "{refused:?}"
        );
    }
}
