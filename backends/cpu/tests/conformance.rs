//! The session contract, judged on every block kind and both precisions.

use loquat_cpu::CpuBackend;
use loquat_session::conformance::{Subject, run};
use loquat_session::{Backend, Precision, SessionOptions};
use loquat_testkit::goldens;

fn judge(folder: &std::path::Path, precision: Precision) {
    let source = goldens::source(folder).unwrap();
    let open = |options: &SessionOptions| {
        let options = SessionOptions {
            precision,
            ..options.clone()
        };
        CpuBackend.open(source.clone(), &options)
    };
    let subject = Subject {
        open: &open,
        tolerance: 0.0,
    };
    for (check, outcome) in run(&subject) {
        if let Err(reason) = outcome {
            panic!("{} ({precision:?}), {check}: {reason}", folder.display());
        }
    }
}

#[test]
fn every_family_conforms() {
    for family in goldens::FAMILIES {
        for precision in [Precision::Fast, Precision::Reference] {
            judge(&goldens::family(family), precision);
        }
    }
}

#[test]
fn quantized_checkpoints_conform() {
    for folder in goldens::mlx().unwrap() {
        judge(&folder, Precision::Fast);
    }
}
