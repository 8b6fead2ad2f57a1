//! A session that has nothing to do leaves the processor alone.

#![cfg(unix)]

use std::time::Duration;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SessionOptions, StepBatch, StepOutput};
use loquat_testkit::goldens;

/// What all threads of this process have computed so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the system writes one `timespec`, which is there.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(outcome, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The only test of this file: it measures the whole process.
#[test]
fn workers_rest_soon_after_a_step() {
    const WATCHED: Duration = Duration::from_millis(200);
    /// What a few ticks of the system may cost; one spinning thread would take it all.
    const ALLOWED: Duration = Duration::from_millis(10);
    let folder = goldens::all().unwrap().remove(0);
    let options = SessionOptions {
        threads: Some(4),
        ..SessionOptions::default()
    };
    let source = goldens::source(&folder).unwrap();
    let mut session = CpuBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap();
    let mut batch = StepBatch::default();
    let emit = Emit::Greedy { positions: 1 };
    batch.push(session.create().unwrap(), &[1, 2, 3], emit);
    session.step(&batch, &mut StepOutput::default()).unwrap();
    // Longer than workers spin.
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time();
    std::thread::sleep(WATCHED);
    let used = cpu_time() - before;
    assert!(used < ALLOWED, "{used:?} in {WATCHED:?}");
}
