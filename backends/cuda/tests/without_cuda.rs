//! A build without the feature reports it. A separate program, so that it can run in its own build.

#![cfg(not(feature = "cuda"))]

use loquat_cuda::CudaBackend;
use loquat_session::{Backend, OpenError, Probe, SessionOptions};
use loquat_testkit::goldens;

#[test]
fn missing_kernels_name_the_remedy() {
    let Probe::Unavailable { why, remedy } = CudaBackend::AUTO.probe() else {
        panic!("a build without the feature has kernels");
    };
    assert!(why.contains("without the feature `cuda`"), "{why}");
    assert!(remedy.contains("cargo xtask cuda"), "{remedy}");
    let source = goldens::source(&goldens::family("llama")).unwrap();
    let options = SessionOptions::default();
    let planned = CudaBackend::AUTO.plan(&source, &options).map(drop);
    let opened = CudaBackend::AUTO
        .open(source, &options, &mut |_| {})
        .map(drop);
    for refused in [planned, opened] {
        assert!(
            matches!(&refused, Err(OpenError::Unavailable { why: again, .. }) if *again == why),
            "{refused:?}"
        );
    }
}
