//! Why a template could not be read or rendered, and on which line.

use std::fmt;

/// The interpreter's result type.
pub(crate) type Result<T, E = TemplateFault> = std::result::Result<T, E>;

/// The kind of fault, which decides the blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The text is not a template.
    Syntax,
    /// The template called `raise_exception`.
    Raised,
    /// The template uses something this program does not have.
    Unsupported,
    /// Rendering took more time, memory or nesting than a template may.
    Limit,
    /// The template and the conversation do not fit together.
    Failed,
}

/// A failure inside a template: the reason as Jinja2 would put it, and the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFault {
    pub(crate) kind: FaultKind,
    pub(crate) reason: String,
    /// From 1; unknown until a statement has seen the fault pass.
    line: Option<u32>,
}

impl TemplateFault {
    pub(crate) fn new(kind: FaultKind, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            line: None,
        }
    }

    /// Adds the line unless one is set: the innermost line is the right one.
    pub(crate) fn at(mut self, line: u32) -> Self {
        self.line.get_or_insert(line);
        self
    }

    /// The line of the template, from 1.
    pub fn line(&self) -> Option<u32> {
        self.line
    }
}

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for TemplateFault {}

/// The template and the conversation do not fit together.
pub(super) fn fail<T>(reason: impl Into<String>) -> Result<T> {
    Err(TemplateFault::new(FaultKind::Failed, reason))
}

/// Python could, this program cannot.
pub(super) fn unsupported<T>(reason: impl Into<String>) -> Result<T> {
    Err(TemplateFault::new(FaultKind::Unsupported, reason))
}

pub(super) fn syntax<T>(line: u32, reason: impl Into<String>) -> Result<T> {
    Err(TemplateFault::new(FaultKind::Syntax, reason).at(line))
}
