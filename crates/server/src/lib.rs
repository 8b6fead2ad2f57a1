//! Serves models over HTTP in the dialects of OpenAI, Anthropic and Ollama, with configuration,
//! keys, limits, metrics and a web page.
//!
//! The only crate that knows JSON wire types; each dialect lowers its requests to a chat or
//! generate request. It does not interpret conversations (`chat`), generate (`engine`), or find and
//! open models (an [`Opener`]).

// Unit tests share a test double with `tests/`, which names the crate.
#[cfg(test)]
extern crate self as loquat_server;

mod active_request;
mod admin;
mod anthropic;
mod app;
mod auth;
mod caller;
pub mod config;
mod dialect;
mod embed;
mod error;
mod field;
mod fill_in;
mod frames;
mod health;
mod http;
mod in_flight;
mod json_body;
mod llama_cpp;
mod logit_bias;
mod lowering;
mod media_data;
mod metrics;
mod models;
mod ollama;
mod openai;
mod openapi;
mod page;
mod reload;
mod remote_media;
mod reply;
mod router;
mod samplers;
mod sampling;
pub mod telemetry;
#[cfg(test)]
mod testing;
mod text_size;
mod tokens;
mod tool_types;
mod trim_memory;
mod union;
mod unknown_fields;
mod wire;

pub use config::Config;
pub use http::{Load, Observer, ServeError, Server, TlsError};
pub use metrics::{peak_resident_bytes, resident_bytes, resident_bytes_of};
pub use models::{ModelInfo, OpenFailure, Opened, Opener, Planned};
pub use openai::conversation_file::{
    ConversationFileError, messages_to_json, read_messages, read_tools,
};
pub use reload::{ReadConfig, Reconfigured, ReloadError, Reloading, SetLogLevel};
pub use trim_memory::trim_memory;
