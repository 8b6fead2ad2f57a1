//! Parses the notation: `name ::= …`, alternation, groups, repetition, strings and classes.

use std::collections::HashMap;

use super::{Class, Expression, Grammar};
use crate::{GrammarError, Result};

/// The nesting limit of groups, which are parsed recursively.
const MAX_DEPTH: usize = 100;

/// The limit of rules, and so of the depth of references.
const MAX_RULES: usize = 5000;

pub(super) fn parse(text: &str) -> Result<Grammar> {
    let mut parser = Parser {
        rest: text,
        position: Position { line: 1, column: 1 },
        names: HashMap::new(),
        rules: Vec::new(),
        depth: 0,
    };
    parser.grammar()
}

#[derive(Debug, Clone, Copy)]
struct Position {
    line: usize,
    column: usize,
}

impl Position {
    fn error(self, message: impl Into<String>) -> GrammarError {
        GrammarError::Gbnf {
            line: self.line,
            column: self.column,
            message: message.into(),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    position: Position,
    names: HashMap<&'a str, usize>,
    /// Where each rule was first mentioned, and its definition when known.
    rules: Vec<(Position, Option<Expression>)>,
    depth: usize,
}

/// Whether a line break ends the current rule.
#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    End,
    Space,
}

impl<'a> Parser<'a> {
    fn grammar(&mut self) -> Result<Grammar> {
        self.space(Breaks::Space);
        while !self.rest.is_empty() {
            self.rule()?;
            self.space(Breaks::Space);
        }
        let root = self.names.get("root").copied();
        let root = root.ok_or_else(|| self.position.error("the rule `root` is missing"))?;
        let names: HashMap<usize, &str> = self.names.iter().map(|(name, n)| (*n, *name)).collect();
        let rules = std::mem::take(&mut self.rules).into_iter().enumerate();
        let rules = rules.map(|(number, (position, rule))| {
            let name = names.get(&number).copied().unwrap_or_default();
            rule.ok_or_else(|| position.error(format!("the rule `{name}` is not defined")))
        });
        let rules = rules.collect::<Result<Vec<_>>>()?;
        Ok(Grammar { rules, root })
    }

    fn rule(&mut self) -> Result<()> {
        let position = self.position;
        let name = self.name()?;
        let number = self.number_of(name, position)?;
        self.space(Breaks::End);
        if !self.take("::=") {
            return Err(self
                .position
                .error(format!("`::=` must follow the name `{name}`")));
        }
        self.space(Breaks::Space);
        let expression = self.choice(Breaks::End)?;
        let slot = &mut self.rules[number].1;
        if slot.is_some() {
            return Err(position.error(format!("the rule `{name}` is defined twice")));
        }
        *slot = Some(expression);
        match self.peek() {
            None | Some('\n') => Ok(()),
            Some(other) => Err(self.position.error(format!("unexpected `{other}`"))),
        }
    }

    fn number_of(&mut self, name: &'a str, position: Position) -> Result<usize> {
        let next = self.rules.len();
        let number = *self.names.entry(name).or_insert(next);
        if number == next {
            self.rules.push((position, None));
        }
        if next >= MAX_RULES {
            Err(position.error(format!("there are more than {MAX_RULES} rules")))
        } else {
            Ok(number)
        }
    }

    fn choice(&mut self, breaks: Breaks) -> Result<Expression> {
        let mut alternatives = vec![self.sequence(breaks)?];
        while self.next_alternative(breaks) {
            self.space(Breaks::Space);
            alternatives.push(self.sequence(breaks)?);
        }
        Ok(match alternatives.len() {
            1 => alternatives.remove(0),
            _ => Expression::Choice(alternatives),
        })
    }

    /// Consumes a `|`, which may start a new line.
    fn next_alternative(&mut self, breaks: Breaks) -> bool {
        let (rest, position) = (self.rest, self.position);
        if breaks == Breaks::End {
            self.space(Breaks::Space);
        }
        let found = self.take("|");
        if !found {
            (self.rest, self.position) = (rest, position);
        }
        found
    }

    fn sequence(&mut self, breaks: Breaks) -> Result<Expression> {
        let mut elements = Vec::new();
        self.space(breaks);
        while let Some(element) = self.element()? {
            self.space(breaks);
            let element = self.repeated(element)?;
            self.space(breaks);
            elements.push(element);
        }
        Ok(match elements.len() {
            1 => elements.remove(0),
            _ => Expression::Sequence(elements),
        })
    }

    fn element(&mut self) -> Result<Option<Expression>> {
        let position = self.position;
        let element = match self.peek() {
            Some('"') => Expression::Literal(self.literal()?),
            Some('[') => Expression::Class(self.class()?),
            Some('.') => {
                self.take(".");
                Expression::Class(Class {
                    negated: true,
                    ranges: Vec::new(),
                })
            }
            Some('(') => self.group()?,
            Some(c) if is_name(c) => {
                let name = self.name()?;
                Expression::Rule(self.number_of(name, position)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(element))
    }

    fn group(&mut self) -> Result<Expression> {
        let position = self.position;
        self.take("(");
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(position.error(format!(
                "groups are nested more than {MAX_DEPTH} levels deep"
            )));
        }
        let inner = self.choice(Breaks::Space)?;
        self.space(Breaks::Space);
        self.depth -= 1;
        if self.take(")") {
            Ok(inner)
        } else {
            Err(position.error("unclosed `(`"))
        }
    }

    fn repeated(&mut self, what: Expression) -> Result<Expression> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => self.bounds()?,
            _ => return Ok(what),
        };
        self.advance(1);
        Ok(Expression::Repeat {
            what: Box::new(what),
            min,
            max,
        })
    }

    /// `{3}`, `{3,}` or `{3,5}` up to its closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>)> {
        let position = self.position;
        let invalid = || position.error("a repetition is written `{3}`, `{3,}` or `{3,5}`");
        let end = self.rest.find('}').ok_or_else(invalid)?;
        let inside = &self.rest[1..end];
        let count = |text: &str| text.trim().parse::<u32>().map_err(|_| invalid());
        let bounds = match inside.split_once(',') {
            None => (count(inside)?, Some(count(inside)?)),
            Some((min, max)) if max.trim().is_empty() => (count(min)?, None),
            Some((min, max)) => (count(min)?, Some(count(max)?)),
        };
        if bounds.1.is_some_and(|max| max < bounds.0) {
            return Err(
                position.error("the second number of a repetition must not be below the first")
            );
        }
        self.advance(inside.chars().count() + 1);
        Ok(bounds)
    }

    fn literal(&mut self) -> Result<String> {
        let position = self.position;
        self.take("\"");
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(position.error("unclosed string")),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.take("\"");
        Ok(text)
    }

    fn class(&mut self) -> Result<Class> {
        let position = self.position;
        self.take("[");
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(position.error("unclosed `[`")),
                Some(']') => break,
                Some(_) => ranges.push(self.range()?),
            }
        }
        self.take("]");
        if ranges.is_empty() && !negated {
            Err(position.error("empty character class"))
        } else {
            Ok(Class { negated, ranges })
        }
    }

    /// A character, or two with a dash between them. A final dash is literal.
    fn range(&mut self) -> Result<(char, char)> {
        let position = self.position;
        let first = self.character()?;
        if !self.rest.starts_with('-') || self.rest.starts_with("-]") {
            return Ok((first, first));
        }
        self.take("-");
        match self.peek() {
            None | Some('\n') => Err(position.error("the range has no end")),
            Some(_) => {
                let last = self.character()?;
                if first <= last {
                    Ok((first, last))
                } else {
                    Err(position.error("the range ends before it starts"))
                }
            }
        }
    }

    /// One character of a string or a class, escaped or not.
    fn character(&mut self) -> Result<char> {
        let position = self.position;
        let plain = self.peek().unwrap_or_default();
        self.advance(1);
        if plain != '\\' {
            return Ok(plain);
        }
        let escape = self.peek();
        self.advance(1);
        match escape {
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('x') => self.code(2, position),
            Some('u') => self.code(4, position),
            Some('U') => self.code(8, position),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(c),
            Some(other) => Err(position.error(format!("`\\{other}` is not an escape"))),
            None => Err(position.error("expected a character after the backslash")),
        }
    }

    fn code(&mut self, digits: usize, position: Position) -> Result<char> {
        let invalid = || position.error(format!("expected {digits} hexadecimal digits"));
        let text = self.rest.get(..digits).ok_or_else(invalid)?;
        let code = u32::from_str_radix(text, 16).map_err(|_| invalid())?;
        self.advance(digits);
        char::from_u32(code)
            .ok_or_else(|| position.error(format!("{text} is not a character code")))
    }

    fn name(&mut self) -> Result<&'a str> {
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let name = &self.rest[..end];
        if name.is_empty() {
            return Err(self.position.error("expected the name of a rule"));
        }
        self.advance(name.chars().count());
        Ok(name)
    }

    /// Skips blanks and comments, and line breaks that do not end a rule.
    fn space(&mut self, breaks: Breaks) {
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\r' => self.advance(1),
                '\n' if breaks == Breaks::Space => self.advance(1),
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.advance(self.rest[..end].chars().count());
                }
                _ => break,
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.rest.starts_with(expected);
        if found {
            self.advance(expected.chars().count());
        }
        found
    }

    fn advance(&mut self, characters: usize) {
        for _ in 0..characters {
            let mut rest = self.rest.chars();
            match rest.next() {
                Some('\n') => {
                    self.position = Position {
                        line: self.position.line + 1,
                        column: 1,
                    }
                }
                Some(_) => self.position.column += 1,
                None => return,
            }
            self.rest = rest.as_str();
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_line_and_column() {
        let cases = [
            ("", 1, 1, "`root` is missing"),
            ("root ::= item\n", 1, 10, "`item` is not defined"),
            ("root = \"a\"", 1, 6, "`::=`"),
            ("root ::= \"a\nb\"", 1, 10, "unclosed string"),
            ("root ::= [a-", 1, 11, "no end"),
            ("root ::= [a", 1, 10, "unclosed `[`"),
            ("root ::= [z-a]", 1, 11, "ends before"),
            ("root ::= []", 1, 10, "empty character class"),
            ("root ::= (\"a\"", 1, 10, "unclosed `(`"),
            ("root ::= \"a\"\nroot ::= \"b\"", 2, 1, "defined twice"),
            ("root ::= \"\\q\"", 1, 11, "not an escape"),
            ("root ::= \"\\xg0\"", 1, 11, "2 hexadecimal digits"),
            ("root ::= \"\\uD800\"", 1, 11, "D800"),
            ("root ::= \"a\"{3,2}", 1, 13, "below the first"),
            ("root ::= \"a\"{x}", 1, 13, "written"),
            ("root ::= \"a\" )", 1, 14, "`)`"),
            ("root ::= \"é\" $", 1, 14, "`$`"),
        ];
        for (text, line, column, message) in cases {
            match parse(text) {
                Err(GrammarError::Gbnf {
                    line: l,
                    column: c,
                    message: m,
                }) => {
                    assert_eq!((l, c), (line, column), "{text:?}: {m}");
                    assert!(m.contains(message), "{text:?}: {m}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let deep = format!("root ::= {}", "(".repeat(100_000));
        assert!(parse(&deep).is_err());
    }

    #[test]
    fn rules_may_span_lines() {
        let spellings = [
            "root ::= \"a\" | \"b\"",
            "root ::=\n  \"a\" |\n  \"b\"\n",
            "# first\nroot ::= \"a\" # one\n  | \"b\" # two\n",
            "root ::= (\n\"a\"\n|\n\"b\"\n)\r\n",
        ];
        let parsed: Vec<Grammar> = spellings.map(|text| parse(text).expect(text)).into();
        for other in &parsed[1..] {
            assert_eq!(&parsed[0], other);
        }
    }
}
