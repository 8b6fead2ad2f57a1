//! Chat requests lowered, generated and parsed through the public API.

mod formats;
mod prompts;
mod replies;
mod support;
