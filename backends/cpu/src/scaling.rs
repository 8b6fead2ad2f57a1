//! Estimates how steps scale to more threads than the machine has.
//!
//! Every parallel loop of a step runs on the calling thread, task by task, and each task is timed.
//! From these times follows what the loop would take on any number of threads that take tasks as the
//! pool's do. Everything else is serial. The estimate knows nothing of shared memory bandwidth, nor
//! of the time to hand over a loop: it is an upper limit, which shows work that does not scale.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::pool::next_run;

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Sums over loops.
#[derive(Default)]
struct Recording {
    threads: usize,
    loops: usize,
    one_thread: Duration,
    on_threads: Duration,
    /// Spent on recording.
    overhead: Duration,
}

/// What some steps would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingEstimate {
    /// Loops of more than one task.
    pub loops: usize,
    /// On one thread.
    pub total: Duration,
    /// Outside of loops of more than one task.
    pub serial: Duration,
    /// On the given number of threads.
    pub on_threads: Duration,
}

/// Runs `steps` on this thread alone and estimates what they would take on `threads`. They should
/// be steps of a session with as many threads, which decides how work is divided.
pub fn estimate_scaling<R>(threads: usize, steps: impl FnOnce() -> R) -> (R, ScalingEstimate) {
    RECORDING.set(Some(Recording {
        threads,
        ..Recording::default()
    }));
    let started = Instant::now();
    let result = steps();
    let elapsed = started.elapsed();
    let recorded = RECORDING.take().unwrap_or_default();
    let total = elapsed.saturating_sub(recorded.overhead);
    let serial = total.saturating_sub(recorded.one_thread);
    let estimate = ScalingEstimate {
        loops: recorded.loops,
        total,
        serial,
        on_threads: serial + recorded.on_threads,
    };
    (result, estimate)
}

/// Runs a loop here if this thread is recording; otherwise does nothing and returns false.
pub fn record_loop(tasks: usize, body: &(dyn Fn(usize) + Sync)) -> bool {
    let Some(mut recording) = RECORDING.take() else {
        return false;
    };
    let called = Instant::now();
    let mut times = Vec::with_capacity(tasks);
    let started = Instant::now();
    let mut before = started;
    for task in 0..tasks {
        body(task);
        let after = Instant::now();
        times.push(after - before);
        before = after;
    }
    recording.loops += 1;
    recording.one_thread += before - started;
    recording.on_threads += makespan(&times, recording.threads);
    recording.overhead += (started - called) + before.elapsed();
    RECORDING.set(Some(recording));
    true
}

/// The time until the last of `threads` finishes, when each takes the next run of tasks as soon as
/// it is done with the last.
fn makespan(tasks: &[Duration], threads: usize) -> Duration {
    let mut free: BinaryHeap<Reverse<Duration>> =
        (0..threads).map(|_| Reverse(Duration::ZERO)).collect();
    let (mut next, mut last) = (0, Duration::ZERO);
    while next < tasks.len() {
        let run = next_run(next, tasks.len(), threads);
        next = run.end;
        let Some(Reverse(start)) = free.pop() else {
            return tasks.iter().sum();
        };
        let end = start + tasks[run].iter().sum::<Duration>();
        last = last.max(end);
        free.push(Reverse(end));
    }
    last
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::pool::Pool;

    #[test]
    fn longest_thread_determines_the_time() {
        let millis = |all: &[u64]| -> Vec<Duration> {
            all.iter()
                .map(|millis| Duration::from_millis(*millis))
                .collect()
        };
        for (tasks, threads, expected) in [
            (&[][..], 4, 0),
            (&[5], 4, 5),
            (&[1, 1, 1, 1], 1, 4),
            (&[1, 1, 1, 1], 2, 2),
            (&[1, 1, 1, 1], 128, 1),
            (&[1, 9, 1, 1], 4, 9),
            // Two threads take two tasks, then one each.
            (&[1, 1, 1, 1, 1, 1, 1, 1], 2, 4),
        ] {
            let found = makespan(&millis(tasks), threads);
            assert_eq!(
                found,
                Duration::from_millis(expected),
                "{tasks:?} {threads}"
            );
        }
    }

    #[test]
    fn recorded_loops_run_every_task_here() {
        let mut pool = Pool::new(3).unwrap();
        let done = AtomicUsize::new(0);
        let here = std::thread::current().id();
        let (_, estimate) = estimate_scaling(8, || {
            for tasks in [0, 1, 7] {
                pool.run(tasks, &|_| {
                    assert_eq!(std::thread::current().id(), here);
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
        assert_eq!(estimate.loops, 1);
        assert!(estimate.on_threads <= estimate.total);
        // Not recording any more.
        assert!(!record_loop(3, &|_| {}));
    }
}
