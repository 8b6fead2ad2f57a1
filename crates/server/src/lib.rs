//! Models over HTTP, in the dialects that clients already speak: OpenAI, Anthropic, Ollama; with
//! what it takes to operate them: configuration, keys, limits, metrics, a page to look at.
//!
//! The only crate that knows JSON wire types; each dialect lowers its own to a chat or generate
//! request. What it leaves to others: what a conversation means (`chat`), generating (`engine`),
//! and finding, opening and naming backends (whoever implements [`Opener`]).

// The test double of `tests/` names the crate from without.
#[cfg(test)]
extern crate self as loquat_server;

mod admin;
mod anthropic;
mod app;
mod auth;
mod caller;
mod chat_turn;
pub mod config;
mod dialect;
mod embed;
mod error;
mod frames;
mod health;
mod http;
mod in_flight;
mod metrics;
mod models;
mod ollama;
mod openai;
mod openapi;
mod page;
mod reload;
mod router;
mod sampling;
mod segments;
pub mod telemetry;
#[cfg(test)]
mod testing;
mod tokens;
mod turn;
mod union;
mod wire;

pub use config::Config;
pub use http::{Load, Observer, ServeError, Server, TlsError};
pub use metrics::{peak_resident_bytes, resident_bytes, resident_bytes_of};
pub use models::{ModelInfo, OpenFailure, Opened, Opener, Planned};
pub use reload::{ReadConfig, Reconfigured, ReloadError, Reloading, SetLogLevel};
