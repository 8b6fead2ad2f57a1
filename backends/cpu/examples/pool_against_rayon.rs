//! Compares the backend's thread pool with rayon on loops like those of a decode step.
//!
//! `cargo run --release -p loquat-cpu --example pool_against_rayon [threads]`
//!
//! A step is a few hundred short parallel loops with a barrier after each. Rounds of the two pools
//! alternate, so that both run under the same conditions; the medians go into ADR 0005.

#[path = "../src/affinity.rs"]
mod affinity;
#[path = "../src/pool.rs"]
mod pool;
#[expect(dead_code, reason = "the pool's own hook is unused here")]
#[path = "../src/scaling.rs"]
mod scaling;

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use pool::Pool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Loops in a step: about ten for each of 24 layers.
const LOOPS: usize = 240;
/// Pieces that a loop is divided into, as for a matrix of a small model.
const TASKS: usize = 48;
const ROUNDS: usize = 101;
/// The time of a loop on one thread without a pool.
const LOOP_MICROS: [u64; 5] = [2, 5, 10, 20, 50];
/// Longer than the threads of either pool spin, so that the pools do not disturb each other.
const PARK_TIME: Duration = Duration::from_millis(2);
/// The engine's time between two steps.
const BETWEEN_STEPS: Duration = Duration::from_micros(100);

fn main() -> Result<(), Box<dyn Error>> {
    let cores = affinity::cores().map_or(1, |cores| cores.len());
    let processors = affinity::processor_count().unwrap_or(cores);
    let threads = match std::env::args().nth(1) {
        Some(threads) => threads.parse()?,
        None => cores,
    };
    println!("{threads} threads on {cores} cores ({processors} processors)");
    println!("| work per loop | one thread | Loquat's pool | rayon |");
    println!("|---:|---:|---:|---:|");

    let mut pool = Pool::new(threads)?;
    assert_eq!(pool.threads(), threads);
    let rayon = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()?;
    let spins_per_micro = calibrate();
    for micros in LOOP_MICROS {
        let spins = (spins_per_micro * micros as f64 / TASKS as f64).ceil() as u64;
        let body = |_task: usize| work(spins);
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(step(|| (0..TASKS).for_each(body)));
            times[1].push(step(|| pool.run(TASKS, &body)));
            // One `install` for the whole step: the calling thread joins the pool once.
            times[2].push(rayon.install(|| step(|| (0..TASKS).into_par_iter().for_each(body))));
        }
        let [single, pool, rayon] = times.map(micros_per_loop);
        println!("| {micros} µs | {single:.2} µs | {pool:.2} µs | {rayon:.2} µs |");
    }
    Ok(())
}

/// The time of a step's loops, after an untimed step that wakes the pool's threads.
fn step(mut run_loop: impl FnMut()) -> Duration {
    std::thread::sleep(PARK_TIME);
    (0..LOOPS).for_each(|_| run_loop());
    let pause = Instant::now();
    while pause.elapsed() < BETWEEN_STEPS {
        std::hint::spin_loop();
    }
    let started = Instant::now();
    (0..LOOPS).for_each(|_| run_loop());
    started.elapsed()
}

/// Arithmetic without memory accesses, so that only the distribution of work differs.
fn work(spins: u64) {
    let mut value = black_box(1u64);
    for _ in 0..spins {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// Spins of [`work`] in a microsecond; the best of some tries.
fn calibrate() -> f64 {
    const SPINS: u64 = 1_000_000;
    let once = || {
        let started = Instant::now();
        work(SPINS);
        started.elapsed().as_secs_f64() * 1e6
    };
    let fastest = (0..10).map(|_| once()).fold(f64::INFINITY, f64::min);
    SPINS as f64 / fastest
}

fn micros_per_loop(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6 / LOOPS as f64
}
