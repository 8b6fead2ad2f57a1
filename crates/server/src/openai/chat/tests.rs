//! Lowering, and what a client sees.

mod lowering;
mod replies;
mod streams;
