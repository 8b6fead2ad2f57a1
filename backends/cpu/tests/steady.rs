//! A step that decodes asks the system for no memory: of plain models of attention and dense
//! feed-forwards. Others note down what they chose or keep, a few small lists for each layer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SessionOptions, StepBatch, StepOutput};
use loquat_spec::{FeedForward, Inner, Mixer, ModelSpec};
use loquat_testkit::goldens;

/// Counts how often memory is asked for.
struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The only test of this file: it counts what the whole process asks for.
#[test]
fn a_decode_step_allocates_nothing() {
    const STEPS: usize = 4;
    let mut steady = 0;
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
            let before = ASKED.load(Ordering::Relaxed);
            session.step(&batch, &mut output).unwrap();
            let asked = ASKED.load(Ordering::Relaxed) - before;
            assert!(output.rows().iter().all(|row| row.error.is_none()));
            asked
        };
        // Pages are taken and buffers grow with the prompt and the first token after it. Where
        // the context has room, the prompt is longer than a piece of attention.
        let prompt = spec.max_context.min(310) - 10;
        let prompt: Vec<u32> = (0..prompt as u32).map(|i| i % 31).collect();
        for part in prompt.chunks(100) {
            step(part);
        }
        step(&[1]);
        // A worker that gets its first task late makes its own buffer then.
        let asked = (0..STEPS).map(|_| step(&[1])).min();
        if is_plain(&spec) {
            assert_eq!(asked, Some(0), "{}", folder.display());
            steady += 1;
        }
    }
    assert!(steady > 0);
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
