//! The hub through its public door, against a hub of our own that misbehaves.
#![cfg(unix)]

mod cache;
mod disk;
mod kills;
mod offline;
mod refusals;
mod shared;
mod transfers;
mod world;
