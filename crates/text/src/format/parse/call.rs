//! One call between a reader and the sink.

use super::json::Step;
use super::piece::Sink;
use super::schema::{ToolSignature, Types};

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not sent: the text may still turn out not to be a call.
    Waiting,
    /// Sent, with arguments to come.
    Started,
    Ended,
}

/// A reader's view of the call it reads.
pub(super) struct Call<'a> {
    pub sink: &'a mut Sink,
    pub tools: &'a [ToolSignature],
    /// Whether a call of a tool that does not exist is text.
    pub known_only: bool,
    pub progress: &'a mut Progress,
}

impl Call<'_> {
    /// Sends the call's start, or reports that this is not a call.
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
        tool.map_or(Types::ANY, |it| Types::for_parameter(&it.parameters, key))
    }
}

/// Reads one call between its markers.
///
/// A reader that fails before it sent the call's start leaves no trace. One that fails later
/// returns what it has read and not sent.
pub(super) trait Reader: std::fmt::Debug + Send {
    fn push(&mut self, c: char, call: &mut Call) -> Step;

    /// Arguments read but not sent.
    fn take_held(&mut self) -> String;
}

/// The longest name or identifier of a tool; more is no name.
pub(super) const MAX_NAME: usize = 256;

/// Whether a tool's name may contain a character: all characters that no format uses as syntax.
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
