//! Conversations and tools in JSON, as OpenAI's API has them.
//!
//! A key that is not known is refused by name, unless it is null, which is how clients write what
//! they leave out.

mod messages;
mod object;
mod tools;

pub use messages::{messages, to_json};
pub use tools::tools;

#[cfg(test)]
mod tests;
