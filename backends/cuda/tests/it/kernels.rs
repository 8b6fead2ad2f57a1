//! Every kernel against the interpreter, on random operations. Needs a GPU.

use loquat_cuda::interpret::Interpreter;
use loquat_cuda::random_ops::{compare_devices, needs_fast_path, tolerance};
use loquat_cuda::{CudaBackend, Gpu};
use loquat_session::{Backend, Probe};

const CASES: usize = 60;

#[test]
fn kernels_compute_what_the_interpreter_does() {
    if let Probe::Unavailable { why, .. } = CudaBackend::AUTO.probe() {
        eprintln!("not run: {why}");
        return;
    }
    let mut gpu = Gpu::open(0).unwrap();
    let found = compare_devices(&mut Interpreter::default(), &mut gpu, 7, CASES);
    let wrong: Vec<_> = found
        .iter()
        .filter(|case| gpu.has_fast_path() || !needs_fast_path(case.op))
        .filter(|case| {
            case.failure.is_some() || !case.equal_nan || case.max_rel > tolerance(case.op)
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} cases: {:#?}",
        wrong.len(),
        found.len(),
        &wrong[..wrong.len().min(12)]
    );
}
