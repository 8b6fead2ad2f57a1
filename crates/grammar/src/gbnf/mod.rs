//! llama.cpp's grammar notation, rewritten in Lark's.
//!
//! What does not recurse becomes a terminal, as large as possible: a terminal is matched by an
//! automaton, which is both exact and fast. Where terminals and recursive rules meet, a terminal
//! takes as much text as it can.

mod parse;
mod write;

use crate::Result;

/// The same language in Lark, beginning with `root`.
pub(crate) fn to_lark(text: &str) -> Result<String> {
    parse::parse(text).map(|grammar| write::write(&grammar))
}

/// Rules by number.
#[derive(Debug, PartialEq)]
struct Grammar {
    rules: Vec<Expression>,
    root: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Expression {
    Literal(String),
    Class(Class),
    Rule(usize),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    Repeat {
        what: Box<Expression>,
        least: u32,
        most: Option<u32>,
    },
}

/// One character: of these ranges, or of none of them.
#[derive(Debug, Clone, PartialEq)]
struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}
