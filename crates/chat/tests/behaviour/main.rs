//! Chat requests lowered, generated and parsed through the public API.

mod formats;
mod prompts;
mod replies;
#[cfg(feature = "serde")]
mod storage;
mod support;
