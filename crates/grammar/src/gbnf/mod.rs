//! llama.cpp's grammar notation, rewritten in Lark's.
//!
//! Lark matches terminals with an automaton, which is fast but greedy, unlike this notation: in
//! `[a-z]* "b"` the class must not consume the last `b`. So each part without recursion becomes one
//! terminal, as large as possible. A terminal that could consume what must follow it is split into
//! smaller ones, down to single characters if necessary.

mod automaton;
mod parse;
mod split;
mod tree;
mod write;

use crate::Result;

/// The same language in Lark, starting with `root`.
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
        min: u32,
        max: Option<u32>,
    },
}

/// One character: of these ranges, or of none of them.
#[derive(Debug, Clone, PartialEq)]
struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}
