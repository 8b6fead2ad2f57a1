//! The engine under load, on a fake session and a virtual clock: one thread, no sleeping, and
//! every run the same.
//!
//! `property` throws thousands of random schedules at it; the others pin down one behaviour each.

mod choices;
mod constrained;
mod deadlines;
mod embedding;
mod fairness;
mod harness;
mod isolation;
mod pacing;
mod plan;
mod preemption;
mod prefix_reuse;
mod priorities;
mod property;
mod rng;
mod shared_prompts;
mod stalled_readers;
mod statistics;
