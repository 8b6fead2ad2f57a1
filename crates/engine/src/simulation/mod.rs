//! The engine under load, on a fake session and a virtual clock: one thread, no sleeping, and
//! every run the same.
//!
//! `property` throws thousands of random schedules at it; the others pin down one behaviour each.

mod choices;
mod deadlines;
mod dice;
mod embedding;
mod fairness;
mod guided;
mod harness;
mod isolation;
mod pacing;
mod plan;
mod preemption;
mod priorities;
mod property;
mod reuse;
mod siblings;
mod stalls;
mod totals;
