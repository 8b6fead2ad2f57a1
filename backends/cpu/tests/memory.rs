//! A plan foretells the memory that a session takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, Session, SessionError, SessionOptions, StepBatch, StepOutput};
use loquat_testkit::goldens;

/// Counts the bytes that are allocated now, and the most since the count was reset.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Steps until KV or sequences run out. Buffers grow on the way: that must not leave them larger
/// than those made in one go.
fn fill(session: &mut dyn Session, output: &mut StepOutput) {
    let most = session.capabilities().max_step_tokens;
    let mut batch = StepBatch::default();
    for round in 1.. {
        let Ok(sequence) = session.create() else {
            return;
        };
        let tokens: Vec<u32> = (0..most.min(round * most.div_ceil(3)) as u32)
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

/// The only test of this file: it counts what the whole process allocates.
#[test]
fn what_is_allocated_stays_within_the_plan() {
    /// The session's own structures, which a large model has no more of.
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
        let before = LIVE.load(Ordering::Relaxed);
        let mut session = CpuBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap();
        MOST.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
        fill(&mut *session, &mut output);
        let allocated = (MOST.load(Ordering::Relaxed) - before) as u64;
        let planned = plan.resident_bytes;
        assert!(
            allocated <= planned + BOOKKEEPING,
            "{}: {allocated} bytes, planned {planned}",
            folder.display()
        );
    }
}
