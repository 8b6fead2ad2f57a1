//! llama.cpp's grammar notation, rewritten in Lark's.
//!
//! Lark's terminals are matched by an automaton, which is fast, and each as far as it goes, which
//! is not what this notation means: in `[a-z]* "b"` the class must leave the last `b` alone. So
//! what does not recurse becomes one terminal, as large as possible, and where a terminal could
//! take what has to follow it, it is split into smaller ones, down to single characters if need
//! be.

mod automaton;
mod parse;
mod split;
mod tree;
mod write;

use crate::Result;

/// The same language in Lark, beginning with `root`.
pub(crate) fn to_lark(text: &str) -> Result<String> {
    let mut tree = tree::Tree::new(&parse::parse(text)?);
    split::split(&mut tree);
    Ok(write::write(&tree))
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
