//! Grammars in Lark's notation, from requests or generated for them.

use serde_json::Value;

use crate::source::Notation;
use crate::{GrammarError, Result, schema};

/// The nesting limit of brackets, into which llguidance recurses.
const MAX_DEPTH: usize = 100;

/// The limit of rules and terminals; llguidance recurses from one to the next.
const MAX_RULES: usize = 10_000;

/// A string as Lark writes it.
pub(crate) fn literal(text: &str) -> String {
    // JSON allows this character, Lark does not.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// One of `choices`. Terminals match greedily, so a choice that is a prefix of another excludes
/// neither.
pub(crate) fn choice(choices: &[String]) -> Result<String> {
    if choices.is_empty() {
        return Err(GrammarError::EmptyChoice);
    }
    let literals: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
    Ok(format!("start: CHOICE\nCHOICE: {}\n", literals.join(" | ")))
}

/// Text that matches `pattern` completely.
pub(crate) fn regex(pattern: &str) -> Result<String> {
    if pattern.is_empty() {
        return Ok("start: \"\"\n".to_string());
    }
    let mut escaped = String::with_capacity(pattern.len() + 2);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '/' => escaped.push_str("\\/"),
            '\\' => match characters.next() {
                Some(next) => escaped.extend(['\\', next]),
                None => {
                    return Err(GrammarError::Refused {
                        notation: Notation::Regex,
                        reason: "it ends with a backslash".to_string(),
                    });
                }
            },
            other => escaped.push(other),
        }
    }
    Ok(format!("start: /{escaped}/\n"))
}

/// Rejects input that would crash llguidance, and lowers the schemas of `%json` blocks.
pub(crate) fn prepare(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut code = String::new();
    let mut scanner = Scanner::new(text);
    while let Some(piece) = scanner.next()? {
        match piece {
            Piece::Text(text) => {
                out.push_str(text);
                code.push_str(if text.chars().nth(1).is_none() {
                    text
                } else {
                    " "
                });
            }
            Piece::Schema(schema, written) => out.push_str(&block(&schema, written)?),
        }
    }
    check_attributes(&code)?;
    Ok(out)
}

/// Refuses attributes of rules that have no effect here, because requests set sampling.
fn check_attributes(code: &str) -> Result<()> {
    for attribute in ["temperature", "max_tokens"] {
        let mut found = code.match_indices(attribute);
        if found.any(|(at, _)| code[at + attribute.len()..].trim_start().starts_with('=')) {
            return Err(GrammarError::Refused {
                notation: Notation::Lark,
                reason: format!("`{attribute}` of a rule is not supported"),
            });
        }
    }
    Ok(())
}

/// A lowered schema with its original number of line breaks, so that messages about later lines
/// name the right ones.
fn block(schema: &Value, written: &str) -> Result<String> {
    let lowered = schema::prepare(schema)?.to_string();
    let breaks = "\n".repeat(written.matches('\n').count());
    Ok(match lowered.split_at_checked(1) {
        Some((open, rest)) => format!("%json {open}{breaks}{rest}"),
        None => lowered,
    })
}

enum Piece<'a> {
    Text(&'a str),
    /// A `%json` block's schema, and the block as written.
    Schema(Value, &'a str),
}

/// Scans a grammar for code: skips strings, regular expressions and comments.
struct Scanner<'a> {
    rest: &'a str,
    depth: usize,
    rules: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            depth: 0,
            rules: 0,
        }
    }

    fn next(&mut self) -> Result<Option<Piece<'a>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if let Some(after) = self.rest.strip_prefix("%json") {
            return self.schema(after).map(Some);
        }
        let length = self.code_or_quoted();
        let (piece, rest) = self.rest.split_at(length);
        self.check(piece)?;
        self.rest = rest;
        Ok(Some(Piece::Text(piece)))
    }

    fn schema(&mut self, after: &'a str) -> Result<Piece<'a>> {
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let refuse = |reason: String| GrammarError::Refused {
            notation: Notation::Lark,
            reason,
        };
        let schema = match values.next() {
            Some(Ok(schema)) => schema,
            Some(Err(error)) => {
                return Err(refuse(format!("a `%json` block is invalid JSON: {error}")));
            }
            None => return Err(refuse("`%json` needs a schema".to_string())),
        };
        let length = self.rest.len() - after.len() + values.byte_offset();
        let (written, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(Piece::Schema(schema, written))
    }

    /// The length of the quoted text at the start, or of one character.
    fn code_or_quoted(&self) -> usize {
        let text = self.rest;
        let to_line_end = || text.find('\n').unwrap_or(text.len());
        match text.as_bytes() {
            [b'#', ..] | [b'/', b'/', ..] => to_line_end(),
            [quote @ (b'"' | b'/'), ..] => quoted(text, *quote),
            _ => text.chars().next().map_or(0, char::len_utf8),
        }
    }

    fn check(&mut self, piece: &str) -> Result<()> {
        match piece {
            "(" | "[" | "{" => self.depth += 1,
            ")" | "]" | "}" => self.depth = self.depth.saturating_sub(1),
            ":" => self.rules += 1,
            _ => {}
        }
        let too_large = |what, limit| GrammarError::TooLarge {
            notation: Notation::Lark,
            what,
            limit,
        };
        if self.depth > MAX_DEPTH {
            return Err(too_large("nested brackets", MAX_DEPTH));
        }
        if self.rules > MAX_RULES {
            return Err(too_large("rules", MAX_RULES));
        }
        Ok(())
    }
}

/// The length of the text that `quote` opens, or one if it is not closed in its line.
fn quoted(text: &str, quote: u8) -> usize {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'\n' if quote == b'"' => return 1,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            byte if byte == quote => return index + 1,
            _ => {}
        }
    }
    1
}
