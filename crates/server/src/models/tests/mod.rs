//! The registry with an opener that counts, waits and fails.

mod fake_opener;
mod leases;
mod memory;
mod names;
mod prompt_limits;
mod unloading;
mod watchdog;
