//! The real binary, as a shell sees it: streams, exit codes, signals and terminals.
//!
//! The models are the test kit's tiny random ones: gibberish, but the same for the same seed.

mod backends;
mod choosing;
mod converting;
#[cfg(unix)]
mod interactive;
#[cfg(unix)]
mod models;
mod refusals;
mod rendering;
mod reports;
#[cfg(unix)]
mod serving;
mod speaking;
mod streams;
mod structured;
mod support;
#[cfg(unix)]
mod terminal;
mod thinking;
mod tools;
mod upkeep;
