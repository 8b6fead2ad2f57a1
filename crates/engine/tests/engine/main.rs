//! Tests of the engine's public API, with its own threads, on a fake session.

mod concurrency;
mod device_sampling;
mod draining_and_reload;
mod lifecycle;
mod output;
mod scheduling;
mod support;
