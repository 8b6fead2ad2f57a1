//! Chat replies, from the engine's events to a dialect's frames.
//!
//! [`ActiveReply`] decodes the events of every choice, [`ReplySegments`] cuts each choice into
//! reasoning, text and tool calls, and a [`ReplyWriter`] renders them in one dialect.

mod active;
mod attribution;
mod segments;
#[cfg(test)]
mod tests;
mod writer;

pub use active::{ActiveReply, ChoiceDelta, ReplyOptions};
pub use segments::{ReplySegments, Segment, SegmentEvent, SegmentKind};
pub use writer::{EventFrames, ReplyWriter, respond};
