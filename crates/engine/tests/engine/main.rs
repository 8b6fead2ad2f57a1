//! Tests of the engine's public API, with its own threads, on a fake session.

mod adapters;
mod concurrency;
mod device_sampling;
mod draining;
mod lifecycle;
mod output;
mod scheduling;
mod support;
