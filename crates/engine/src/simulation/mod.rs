//! The engine under load, on a fake session and a virtual clock: one thread, no sleeping, and
//! every run the same.
//!
//! `property` runs thousands of random schedules; the other modules test one behaviour each.

mod choices;
mod constrained;
mod deadlines;
mod disk;
mod embedding;
mod fairness;
mod harness;
mod isolation;
mod media;
mod pacing;
mod plan;
mod preemption;
mod prefix_reuse;
mod priorities;
mod property;
mod rng;
mod shared_prompts;
mod speculation;
mod stalled_readers;
mod statistics;
