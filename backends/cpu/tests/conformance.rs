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
        CpuBackend.open(source.clone(), &options, &mut |_| {})
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

#[test]
fn a_plan_foretells_the_session() {
    let folders = [goldens::family("llama"), goldens::family("qwen3")];
    for folder in folders.into_iter().chain(goldens::mlx().unwrap()) {
        for precision in [Precision::Fast, Precision::Reference] {
            let source = goldens::source(&folder).unwrap();
            let options = SessionOptions {
                precision,
                kv_tokens: Some(100),
                ..SessionOptions::default()
            };
            let plan = CpuBackend.plan(&source, &options).unwrap();
            let mut heard = Vec::new();
            let session = CpuBackend
                .open(source, &options, &mut |share| heard.push(share))
                .unwrap();
            assert_eq!(plan.memory, session.memory(), "{}", folder.display());
            assert_eq!(&plan.capabilities, session.capabilities());
            assert!(heard.is_sorted() && heard.last() == Some(&1.0), "{heard:?}");
        }
    }
}
