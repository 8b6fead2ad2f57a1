//! The hub's public API against a server that injects faults.

mod cache;
mod concurrency;
mod disk;
mod fixture;
mod kills;
mod offline;
mod refusals;
mod tls;
mod transfers;
