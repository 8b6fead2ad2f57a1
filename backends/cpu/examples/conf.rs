use loquat_cpu::CpuBackend;
use loquat_session::conformance::{Subject, run};
use loquat_session::*;
use loquat_testkit::goldens;
fn main() {
    for f in std::env::args().skip(1) {
        let path = std::path::Path::new(&f);
        let Ok(source) = goldens::source(path) else {
            println!("{f} does not load");
            continue;
        };
        for precision in [Precision::Fast, Precision::Reference] {
            let open = |options: &SessionOptions| {
                CpuBackend::AUTO.open(
                    source.clone(),
                    &SessionOptions {
                        precision,
                        ..options.clone()
                    },
                    &mut |_| {},
                )
            };
            let subject = Subject {
                open: &open,
                tolerance: 0.0,
            };
            let t = std::time::Instant::now();
            let mut bad = String::new();
            for (check, outcome) in run(&subject) {
                if let Err(e) = outcome {
                    bad += &format!("\n    {check}: {e}");
                }
            }
            println!(
                "{} {precision:?} {:.1}s {}",
                path.file_name().unwrap().to_string_lossy(),
                t.elapsed().as_secs_f32(),
                if bad.is_empty() { "ok" } else { &bad }
            );
        }
    }
}
