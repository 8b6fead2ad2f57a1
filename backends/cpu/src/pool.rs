//! A persistent pool for many small parallel loops.
//!
//! A decode step is a few hundred loops of some microseconds each. Workers spin briefly for the
//! next one, then park, so that an idle session uses no CPU. A loop is handed over through atomics
//! alone. Threads take its tasks in runs that shrink towards the end. The loop does not wait for a
//! delayed worker that holds no tasks.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{affinity, scaling};

/// How long a worker spins for the next loop before it parks: longer than the engine takes
/// between two steps, far too short to notice.
const SPIN: Duration = Duration::from_micros(200);

/// Loads of an atomic before a waiting thread yields its core: tens of microseconds, in which most
/// waits between two loops of a step end.
const SPIN_LOADS: u32 = 1024;

/// How long a worker computes before it yields its core between two loops. Otherwise the system
/// would preempt it within a loop, after a time slice of some milliseconds, and all threads would
/// wait.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);

/// The job is open for workers to join.
const OPEN: u32 = 1 << 31;

pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Raised once per loop; workers watch it.
    epoch: AtomicUsize,
    /// [`OPEN`] and the number of workers inside the current job.
    gate: AtomicU32,
    /// Written only while the gate is closed and no worker is inside, read only from inside.
    job: UnsafeCell<Job>,
    /// The first task that is not taken.
    next: AtomicUsize,
    threads: usize,
    panicked: AtomicBool,
    stop: AtomicBool,
    parked: AtomicUsize,
    parking: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is all that is not `Sync` by itself. Its rule above keeps writing and reading
// apart: joining acquires what opening the gate released, and closing it acquires what leaving
// released.
unsafe impl Sync for Shared {}
// SAFETY: as above; the body is shared between threads only as `Sync`.
unsafe impl Send for Shared {}

/// The loop's body, its lifetime erased; see [`Pool::run`] for why that is sound.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

impl Pool {
    /// A pool of `threads`, the caller's among them.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            gate: AtomicU32::new(0),
            job: UnsafeCell::new(Job {
                body: &|_| {},
                tasks: 0,
            }),
            next: AtomicUsize::new(0),
            threads,
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            parking: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self {
            shared,
            workers: Vec::new(),
        };
        let cores: Option<Arc<[usize]>> = affinity::cores()
            .filter(|cores| cores.len() == threads)
            .map(Arc::from);
        for index in 1..threads {
            let (shared, cores) = (Arc::clone(&pool.shared), cores.clone());
            let name = format!("loquat-cpu-{index}");
            let worker = std::thread::Builder::new().name(name);
            pool.workers.push(worker.spawn(move || {
                if let Some(cores) = cores {
                    affinity::restrict_to(&cores);
                }
                shared.work();
            })?);
        }
        Ok(pool)
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` once for each of `0..tasks`, on any thread, and returns when all are done.
    /// A panic in a task is passed on to the caller.
    pub fn run(&mut self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(body);
            return;
        }
        if scaling::record_loop(tasks, body) {
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers read the job only after joining through
        // the open gate, and this function closes the gate and waits until no worker is inside
        // before it returns or unwinds, so `body` outlives every use.
        let body = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body)
        };
        // SAFETY: the last loop closed the gate and waited until no worker was inside, and `&mut
        // self` excludes other loops.
        unsafe { *shared.job.get() = Job { body, tasks } };
        shared.next.store(0, Ordering::Relaxed);
        shared.gate.store(OPEN, Ordering::Release);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.parked.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&shared.parking);
            shared.wake.notify_all();
        }

        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while let Some(run) = shared.take(tasks) {
                run.for_each(body);
            }
        }));
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0u32;
        while shared.gate.load(Ordering::Acquire) != 0 {
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            // On a busy machine the worker may need this core to finish.
            if looks.is_multiple_of(SPIN_LOADS) {
                std::thread::yield_now();
            }
        }
        let worker_panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
        assert!(!worker_panicked, "a task of the CPU backend panicked");
    }
}

impl Shared {
    fn work(&self) {
        let (mut seen, mut yielded_at) = (0, Instant::now());
        while !self.stop.load(Ordering::Acquire) {
            seen = self.await_epoch(seen, &mut yielded_at);
            if self.join() {
                let run = AssertUnwindSafe(|| self.run_tasks());
                if catch_unwind(run).is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
                self.gate.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Enters the current job unless it has closed.
    fn join(&self) -> bool {
        self.gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
                (gate & OPEN != 0).then_some(gate + 1)
            })
            .is_ok()
    }

    /// Runs tasks of the job that the worker has joined.
    fn run_tasks(&self) {
        // SAFETY: this worker is inside, and until it leaves the job stays and its body lives.
        let (body, tasks) = unsafe {
            let job = *self.job.get();
            (&*job.body, job.tasks)
        };
        while let Some(run) = self.take(tasks) {
            run.for_each(body);
        }
    }

    /// The next tasks for the calling thread.
    fn take(&self, tasks: usize) -> Option<Range<usize>> {
        let run = |next: usize| next_run(next, tasks, self.threads);
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                (next < tasks).then(|| run(next).end)
            });
        taken.ok().map(run)
    }

    /// Spins, then parks, until the epoch has moved past `seen`.
    fn await_epoch(&self, seen: usize, yielded_at: &mut Instant) -> usize {
        let started = Instant::now();
        if started - *yielded_at > YIELD_INTERVAL {
            std::thread::yield_now();
            *yielded_at = started;
        }
        loop {
            for _ in 0..SPIN_LOADS {
                let epoch = self.epoch.load(Ordering::Acquire);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() > SPIN {
                break;
            }
            std::thread::yield_now();
        }
        let mut guard = lock(&self.parking);
        self.parked.fetch_add(1, Ordering::SeqCst);
        while self.epoch.load(Ordering::SeqCst) == seen {
            guard = match self.wake.wait(guard) {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        *yielded_at = Instant::now();
        self.epoch.load(Ordering::SeqCst)
    }
}

/// The tasks that a thread takes when `next` is the first that is not taken: long runs first, to
/// reduce contention, and single tasks at the end, so that no thread waits long for another.
pub fn next_run(next: usize, tasks: usize, threads: usize) -> Range<usize> {
    next..next + ((tasks - next) / (2 * threads)).max(1)
}

/// No code panics while holding these locks, so poisoning can be ignored.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.parking);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // Panics are caught in the worker's loop.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..20 {
                    pool.run(tasks, &|task| {
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 20)
                );
            }
        }
    }

    #[test]
    fn parked_workers_wake() {
        let mut pool = Pool::new(3).unwrap();
        std::thread::sleep(SPIN * 20);
        let seen = Mutex::new(std::collections::HashSet::new());
        // Each task waits for the other, which only a woken worker can run.
        pool.run(2, &|_| {
            lock(&seen).insert(std::thread::current().id());
            let started = Instant::now();
            while lock(&seen).len() < 2 && started.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
        });
        assert_eq!(lock(&seen).len(), 2);
    }

    #[test]
    fn panic_reaches_caller_and_pool_survives() {
        let mut pool = Pool::new(2).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|task| assert!(task != 40, "task 40"));
        }));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        pool.run(64, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 64);
    }
}
