//! The server over real sockets, with clients that are slow, broken, gone or too many: whatever
//! they do, it goes on serving, and nothing stays behind.

mod bodies;
mod disconnects;
mod framing;
mod http2;
mod limits;
mod many;
#[path = "../../src/testing/scripted.rs"]
#[allow(dead_code, reason = "the crate's own tests use more of it")]
mod scripted;
mod stopping;
mod tls;
mod wire;
mod world;
