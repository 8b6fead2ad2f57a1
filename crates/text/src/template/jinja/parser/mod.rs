//! Tokens to a tree, by Jinja2's grammar.

mod expressions;
mod statements;

use std::collections::HashSet;
use std::sync::Arc;

use super::ast::{Block, Body, SpecialNames};
use super::error::{FaultKind, Result, TemplateFault, syntax};
use super::lexer::{self, Lexed, Token};

/// The nesting limit of brackets, operators and blocks. Python's compiler allows 200 brackets and
/// 20 loops.
const MAX_DEPTH: usize = 100;

/// A parsed template.
pub(super) struct Parsed {
    pub body: Body,
    pub blocks: Vec<Arc<Block>>,
    /// Every name that is read somewhere.
    pub names: HashSet<Arc<str>>,
}

pub(super) fn parse(template: &str) -> Result<Parsed> {
    let mut parser = Parser {
        tokens: lexer::tokens(template)?,
        at: 0,
        depth: 0,
        in_loop: false,
        in_for: false,
        uses: [0; 3],
        blocks: Vec::new(),
        names: HashSet::new(),
        unknown: Vec::new(),
    };
    let body = parser.body(&[])?;
    parser.refuse_unknown(0)?;
    Ok(Parsed {
        body,
        blocks: parser.blocks,
        names: parser.names,
    })
}

struct Parser {
    tokens: Vec<Lexed>,
    at: usize,
    depth: usize,
    /// Whether `break` and `continue` have a loop to act on.
    in_loop: bool,
    /// Whether `loop` is reserved.
    in_for: bool,
    /// How often `caller`, `kwargs` and `varargs` were read.
    uses: [usize; 3],
    blocks: Vec<Arc<Block>>,
    names: HashSet<Arc<str>>,
    /// Filters and tests that do not exist. Jinja2 reports them when compiling, except under a
    /// condition, where they fail only when reached.
    unknown: Vec<(String, u32)>,
}

impl Parser {
    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    fn token(&self) -> &Token {
        &self.tokens[self.at].token
    }

    fn ahead(&self) -> &Token {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.at + 1).min(last)].token
    }

    /// Passes a token; the end is never passed.
    fn advance(&mut self) -> Token {
        if self.at + 1 == self.tokens.len() {
            return Token::End;
        }
        self.at += 1;
        std::mem::replace(&mut self.tokens[self.at - 1].token, Token::End)
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.token(), Token::Symbol(found) if *found == symbol)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(found) if found == name)
    }

    /// Skips this symbol if it comes next.
    fn skip_symbol(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        if found {
            self.advance();
        }
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    fn expect_symbol(&mut self, symbol: &str) -> Result<()> {
        if self.skip_symbol(symbol) {
            Ok(())
        } else {
            self.unexpected(&format!("`{symbol}`"))
        }
    }

    fn expect_name(&mut self) -> Result<Arc<str>> {
        match self.token() {
            Token::Name(name) => {
                let name = Arc::from(name.as_str());
                self.advance();
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.skip_name(word) {
            Ok(())
        } else {
            self.unexpected(&format!("`{word}`"))
        }
    }

    fn expect_block_end(&mut self) -> Result<()> {
        match self.token() {
            Token::BlockEnd => {
                self.advance();
                Ok(())
            }
            _ => self.unexpected("`%}`"),
        }
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let found = match self.token() {
            Token::Data(_) => "text".to_owned(),
            Token::VariableBegin => "`{{`".to_owned(),
            Token::VariableEnd => "`}}`".to_owned(),
            Token::BlockBegin => "`{%`".to_owned(),
            Token::BlockEnd => "`%}`".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Str(_) => "a string".to_owned(),
            Token::Int(_) | Token::Float(_) => "a number".to_owned(),
            Token::Symbol(symbol) => format!("`{symbol}`"),
            Token::End => "the end of the template".to_owned(),
        };
        syntax(self.line(), format!("expected {wanted}, found {found}"))
    }

    /// Parses something one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            let reason = "the template nests too deep";
            return Err(TemplateFault::new(FaultKind::Limit, reason).at(self.line()));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Parses conditional code, in which unknown filters may never be reached.
    fn conditional<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.unknown.len();
        let result = inner(self);
        self.unknown.truncate(before);
        result
    }

    /// Refuses unknown filters noted since there were `before` of them.
    fn refuse_unknown(&self, before: usize) -> Result<()> {
        match self.unknown.get(before) {
            Some((reason, line)) => {
                let fault = TemplateFault::new(FaultKind::Unsupported, reason.as_str());
                Err(fault.at(*line))
            }
            None => Ok(()),
        }
    }

    /// Parses a body that Jinja2 compiles separately, and records which special names it reads.
    fn frame<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, SpecialNames)> {
        let (unknown, uses) = (self.unknown.len(), self.uses);
        let result = inner(self)?;
        self.refuse_unknown(unknown)?;
        let used = |at: usize| self.uses[at] > uses[at];
        let uses = SpecialNames {
            caller: used(0),
            kwargs: used(1),
            varargs: used(2),
        };
        Ok((result, uses))
    }
}
