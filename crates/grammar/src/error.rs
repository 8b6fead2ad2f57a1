//! Errors of grammars.

use crate::source::Notation;

/// Every error of this crate. All but [`Vocabulary`](Self::Vocabulary) are caused by the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema uses a keyword that is not supported.
    #[error("`{keyword}` at `{pointer}` of the schema is not supported: {why}")]
    Unsupported {
        /// The keyword.
        keyword: String,
        /// The schema with the keyword, as a JSON pointer from `#`.
        pointer: String,
        /// Why it is not supported.
        why: String,
    },

    /// A keyword of the schema has an invalid value.
    #[error("`{keyword}` at `{pointer}` of the schema is {found}; it must be {expected}")]
    BadKeyword {
        /// The keyword.
        keyword: String,
        /// The schema with the keyword, as a JSON pointer from `#`.
        pointer: String,
        /// Its value, for display.
        found: String,
        /// What the keyword accepts.
        expected: &'static str,
    },

    /// The schema, or one inside it, is neither an object nor a boolean.
    #[error("`{pointer}` of the schema is {found}; it must be an object or a boolean")]
    NotASchema {
        /// Its position, as a JSON pointer from `#`.
        pointer: String,
        /// What is there, for display.
        found: String,
    },

    /// The schema admits no value.
    #[error("no value satisfies the schema: {why}")]
    Unsatisfiable {
        /// What contradicts what.
        why: String,
    },

    /// The grammar exceeds a limit.
    #[error("the {notation} is too large: more than {limit} {what}")]
    TooLarge {
        /// How it was written.
        notation: Notation,
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: usize,
    },

    /// The grammar does not parse or cannot be compiled.
    #[error("the {notation} cannot be used: {reason}")]
    Refused {
        /// How it was written.
        notation: Notation,
        /// What is wrong.
        reason: String,
    },

    /// A GBNF grammar does not parse.
    #[error("the GBNF grammar is invalid at line {line}, column {column}: {message}")]
    Gbnf {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },

    /// A choice of no strings.
    #[error("the choice is empty; it needs at least one string")]
    EmptyChoice,

    /// The text so far has no continuation in the grammar.
    #[error("the answer cannot continue in its grammar: {reason}")]
    Stuck {
        /// Why.
        reason: String,
    },

    /// The system refused a thread to compile on.
    #[error("the {notation} cannot be compiled now: no thread: {reason}")]
    NoThread {
        /// How the grammar was written.
        notation: Notation,
        /// The system's message.
        reason: String,
    },

    /// The tokenizer's vocabulary cannot be used for constraints.
    #[error("the model's vocabulary cannot be constrained: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
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
