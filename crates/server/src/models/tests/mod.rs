//! The registry over an opener that counts, delays and fails.

mod double;
mod leases;
mod lengths;
mod room;
mod unloading;
