//! One call on its way from a reader to the sink.

use super::json::Step;
use super::piece::Sink;
use super::schema::{ToolSignature, Types};

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not sent yet: what was read may still turn out to be text.
    Waiting,
    /// Sent, with arguments to come.
    Started,
    Ended,
}

/// What a reader needs to tell of the call it reads.
pub(super) struct Call<'a> {
    pub sink: &'a mut Sink,
    pub tools: &'a [ToolSignature],
    /// Whether a call of a tool that does not exist is text.
    pub known_only: bool,
    pub progress: &'a mut Progress,
}

impl Call<'_> {
    /// Sends the call's beginning, or says that this is none.
    pub fn start(&mut self, name: &str, id: Option<String>) -> bool {
        if name.is_empty() {
            return false;
        }
        if self.known_only && !self.tools.iter().any(|tool| tool.name == name) {
            return false;
        }
        self.sink.start(name, id);
        *self.progress = Progress::Started;
        true
    }

    pub fn arguments(&mut self, fragment: &str) {
        self.sink.arguments(fragment);
    }

    pub fn end(&mut self) {
        self.sink.end();
        *self.progress = Progress::Ended;
    }

    /// The types that a parameter of a tool may have.
    pub fn types(&self, name: &str, key: &str) -> Types {
        let tool = self.tools.iter().find(|tool| tool.name == name);
        tool.map_or(Types::ANY, |it| Types::of_parameter(&it.parameters, key))
    }
}

/// Reads one call between its markers.
///
/// A reader that breaks before it sent the call's beginning leaves no trace; one that breaks later
/// can say what it has read and not sent.
pub(super) trait Reader: std::fmt::Debug + Send {
    fn push(&mut self, c: char, call: &mut Call) -> Step;

    /// What was read of the arguments but not sent.
    fn take_held(&mut self) -> String;
}

/// The longest name or identifier of a tool; more is no name.
pub(super) const MAX_NAME: usize = 256;

/// Whether a character may stand in a tool's name: all that no format uses for its own ends.
pub(super) fn is_name(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"<>[](){}\"'`,;=|".contains(c)
}

/// Adds a character to a name, unless the name grows out of all measure.
pub(super) fn push_name(name: &mut String, c: char) -> Step {
    if name.len() >= MAX_NAME {
        return Step::Broken;
    }
    name.push(c);
    Step::More
}
