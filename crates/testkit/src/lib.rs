//! Development only: golden fixtures, tiny models and a fake session

pub mod adapters;
pub mod docs;
pub mod fake_session;
pub mod gguf;
pub mod gif;
pub mod goldens;
pub mod real;
pub mod vision;
