//! The binary as a shell sees it: streams, exit codes, signals and terminals.
//!
//! The models are the test kit's tiny random ones. Tests that depend on what they generate use a
//! seed, temperature 0 or a bias.

mod adapters;
mod backends;
mod batch_equivalence;
mod bench;
#[cfg(unix)]
mod chat;
mod convert;
mod errors;
mod images;
mod inspect;
#[cfg(unix)]
mod kv_disk;
#[cfg(unix)]
mod line_editor;
mod maintenance;
#[cfg(unix)]
mod models;
#[cfg(unix)]
mod odd_paths;
mod render;
mod run;
mod sampling;
#[cfg(unix)]
mod serve;
mod streams;
mod structured_output;
mod support;
#[cfg(unix)]
mod terminal;
mod thinking;
mod tools;
