//! Measures the process of a session: memory against the plan, allocations of a decode step, CPU
//! time when idle. A separate program with one test, because everything else in the process would
//! be counted too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, Session, SessionError, SessionOptions, StepBatch, StepOutput};
use loquat_spec::{FeedForward, Inner, Mixer, ModelSpec};
use loquat_testkit::goldens;

struct CountingAllocator;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let live = LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn memory_allocations_and_idle_cpu_are_bounded() {
    memory_stays_within_plan();
    decode_step_allocates_nothing();
    #[cfg(unix)]
    idle::workers_sleep_after_a_step();
}

fn memory_stays_within_plan() {
    /// The session's own structures, which do not grow with the model.
    const BOOKKEEPING: u64 = 16 << 10;
    let (plain, quantized) = (goldens::all().unwrap(), goldens::mlx().unwrap());
    for folder in plain.into_iter().chain(quantized) {
        let source = goldens::source(&folder).unwrap();
        let options = SessionOptions {
            max_sequences: 8,
            max_step_tokens: source.spec.max_context.min(512),
            threads: Some(2),
            ..SessionOptions::default()
        };
        let plan = CpuBackend::AUTO.plan(&source, &options).unwrap();
        let mut output = StepOutput::default();
        let before = LIVE_BYTES.load(Ordering::Relaxed);
        let mut session = CpuBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap();
        PEAK_BYTES.store(LIVE_BYTES.load(Ordering::Relaxed), Ordering::Relaxed);
        fill(&mut *session, &mut output);
        let allocated = (PEAK_BYTES.load(Ordering::Relaxed) - before) as u64;
        let planned = plan.resident_bytes;
        assert!(
            allocated <= planned + BOOKKEEPING,
            "{}: {allocated} bytes, planned {planned}",
            folder.display()
        );
    }
}

/// Steps until KV or sequences run out. Buffers grow on the way, and must not end up larger than
/// buffers allocated at once.
fn fill(session: &mut dyn Session, output: &mut StepOutput) {
    let max = session.capabilities().max_step_tokens;
    let mut batch = StepBatch::default();
    for round in 1.. {
        let Ok(sequence) = session.create() else {
            return;
        };
        let tokens: Vec<u32> = (0..max.min(round * max.div_ceil(3)) as u32)
            .map(|i| i % 31)
            .collect();
        batch.clear();
        batch.push(sequence, &tokens, Emit::Greedy { positions: 20 });
        session.step(&batch, output).unwrap();
        match &output.rows()[0].error {
            None => {}
            Some(SessionError::KvExhausted { .. }) => return,
            Some(error) => panic!("{error}"),
        }
    }
}

/// For models of attention and dense feed-forwards. Others allocate a few small lists per layer.
fn decode_step_allocates_nothing() {
    const STEPS: usize = 8;
    let mut checked = 0;
    for folder in goldens::all().unwrap() {
        let source = goldens::source(&folder).unwrap();
        let spec = source.spec.clone();
        let mut session = CpuBackend::AUTO
            .open(source, &SessionOptions::default(), &mut |_| {})
            .unwrap();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let sequences = [(); 2].map(|()| session.create().unwrap());
        let mut step = |tokens: &[u32]| {
            batch.clear();
            for sequence in sequences {
                batch.push(sequence, tokens, Emit::Greedy { positions: 1 });
            }
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            session.step(&batch, &mut output).unwrap();
            let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert!(output.rows().iter().all(|row| row.error.is_none()));
            allocations
        };
        // The prompt and the first token after it allocate pages and buffers. If the context has
        // room, the prompt is longer than a piece of attention.
        let prompt = spec.max_context.min(310) - 10;
        let prompt: Vec<u32> = (0..prompt as u32).map(|i| i % 31).collect();
        for part in prompt.chunks(100) {
            step(part);
        }
        step(&[1]);
        // A worker allocates its own buffer with its first task, which may come late.
        let allocations = (0..STEPS).map(|_| step(&[1])).min();
        if is_plain(&spec) {
            assert_eq!(allocations, Some(0), "{}", folder.display());
            checked += 1;
        }
    }
    assert!(checked > 0);
}

/// Whether the model is attention and dense feed-forwards.
fn is_plain(spec: &ModelSpec) -> bool {
    spec.branches().all(|(_, branch)| {
        matches!(
            branch.inner,
            Inner::Mixer(Mixer::Attention(_)) | Inner::FeedForward(FeedForward::Dense(_))
        )
    })
}

#[cfg(unix)]
mod idle {
    use std::time::{Duration, Instant};

    use super::*;

    pub fn workers_sleep_after_a_step() {
        const WINDOW: Duration = Duration::from_millis(200);
        /// A few timer ticks; one spinning thread would use the whole window.
        const ALLOWED: Duration = Duration::from_millis(10);
        /// On a busy machine a worker may get to sleep late; one that never does is a bug.
        const DEADLINE: Duration = Duration::from_secs(60);
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
        let started = Instant::now();
        loop {
            let before = cpu_time();
            std::thread::sleep(WINDOW);
            let used = cpu_time() - before;
            if used < ALLOWED {
                return;
            }
            assert!(started.elapsed() < DEADLINE, "{used:?} in {WINDOW:?}");
        }
    }

    /// The CPU time that all threads of this process have used.
    fn cpu_time() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the system writes one `timespec`, which is valid.
        let outcome = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        assert_eq!(outcome, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}
