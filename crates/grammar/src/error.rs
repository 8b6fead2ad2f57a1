//! Errors of grammars.

use crate::source::Notation;

/// Every error of this crate. All but [`Vocabulary`](Self::Vocabulary) are caused by the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("`{keyword}` at `{pointer}` of the schema is not supported: {why}")]
    Unsupported {
        keyword: String,
        /// The schema with the keyword, as a JSON pointer from `#`.
        pointer: String,
        why: String,
    },

    #[error("`{keyword}` at `{pointer}` of the schema is {found}; it must be {expected}")]
    BadKeyword {
        keyword: String,
        pointer: String,
        found: String,
        expected: &'static str,
    },

    #[error("`{pointer}` of the schema is {found}; it must be an object or a boolean")]
    NotASchema { pointer: String, found: String },

    #[error("no value satisfies the schema: {why}")]
    Unsatisfiable { why: String },

    #[error("the {notation} is too large: more than {limit} {what}")]
    TooLarge {
        notation: Notation,
        what: &'static str,
        limit: usize,
    },

    #[error("the {notation} cannot be used: {reason}")]
    Refused { notation: Notation, reason: String },

    #[error("the GBNF grammar is invalid at line {line}, column {column}: {message}")]
    Gbnf {
        line: usize,
        column: usize,
        message: String,
    },

    #[error("the choice is empty; it needs at least one string")]
    EmptyChoice,

    #[error("the answer cannot continue in its grammar: {reason}")]
    Stuck { reason: String },

    #[error("the {notation} cannot be compiled now: no thread: {reason}")]
    NoThread { notation: Notation, reason: String },

    #[error("the model's vocabulary cannot be constrained: {reason}")]
    Vocabulary { reason: String },
}

impl GrammarError {
    /// Whether the request is at fault, rather than the model.
    pub fn is_request_fault(&self) -> bool {
        !matches!(self, Self::Vocabulary { .. } | Self::NoThread { .. })
    }
}

/// The relevant part of an llguidance message, without excerpts, state or backtrace.
pub(crate) fn reason(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let first = first.strip_prefix("panic: ").unwrap_or(first);
    if first == "NoExtensionBias" {
        return "it admits no text".to_string();
    }
    let (position, first) = split_position(first);
    // The regular expression's error is the last line, below the excerpt.
    let error = message
        .lines()
        .find_map(|line| line.strip_prefix("error: "));
    let what = error.unwrap_or(first);
    match position {
        Some((line, column)) => format!("line {line}, column {column}: {what}"),
        None => what.to_string(),
    }
}

/// `at 3(7): …` or `3(7): …`
fn split_position(message: &str) -> (Option<(usize, usize)>, &str) {
    let bare = message.strip_prefix("at ").unwrap_or(message);
    let split = bare.split_once("): ").and_then(|(position, rest)| {
        let (line, column) = position.split_once('(')?;
        Some(((line.parse().ok()?, column.parse().ok()?), rest))
    });
    match split {
        Some((place, rest)) => (Some(place), rest),
        None => (None, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_reduced_to_its_reason() {
        let cases = [
            ("no start rule found", "no start rule found"),
            ("panic: attempt to add\n<backtrace>\nx", "attempt to add"),
            (
                "3(7): lexer error\n   1 | a",
                "line 3, column 7: lexer error",
            ),
            (
                "at 1(8): invalid regex \"(?=a)\": regex parse error:\n  (?=a)\n  ^\nerror: no look",
                "line 1, column 8: no look",
            ),
            ("f(x): y", "f(x): y"),
        ];
        for (message, expected) in cases {
            assert_eq!(reason(message), expected);
        }
    }
}
