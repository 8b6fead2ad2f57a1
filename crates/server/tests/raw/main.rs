//! The server over real sockets, with clients that are slow, broken, gone or too many. The server
//! keeps serving and releases their resources.

mod adapter_requests;
mod adapters;
mod bodies;
mod concurrency;
mod disconnects;
mod framing;
mod http2;
mod http_client;
mod images;
mod limits;
mod prompt_embeds;
mod remote_media;
#[path = "../../src/testing/scripted.rs"]
#[allow(dead_code, reason = "the crate's own tests use more of it")]
mod scripted;
mod shutdown;
mod test_server;
mod tls;
mod videos;
