//! Template text to tokens, with Jinja2's white space control (`trim_blocks` and `lstrip_blocks`
//! are on, as `transformers` sets them).

use super::error::{Result, syntax};
use super::strings::{is_space, unescape};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside tags.
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    /// An operator or a bracket, as it is written.
    Symbol(&'static str),
    End,
}

#[derive(Debug)]
pub(super) struct Lexed {
    pub token: Token,
    pub line: u32,
}

/// Longest first, so that `**` is not two `*`.
const SYMBOLS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

pub(super) fn tokens(template: &str) -> Result<Vec<Lexed>> {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let source = template.strip_suffix('\n').unwrap_or(&template);
    let mut lexer = Lexer {
        rest: source,
        line: 1,
        at_line_start: true,
        tokens: Vec::new(),
    };
    lexer.root()?;
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    /// Whether the last token ended a line, so that the next tag may start one.
    at_line_start: bool,
    tokens: Vec<Lexed>,
}

/// `-` or `+` beside a tag's brackets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    Strip,
    Keep,
    Default,
}

impl<'s> Lexer<'s> {
    fn root(&mut self) -> Result<()> {
        while !self.rest.is_empty() {
            let Some(open) = next_tag(self.rest) else {
                let text = self.take(self.rest.len());
                self.data(text);
                return Ok(());
            };
            let text = self.take(open);
            let tag = self.take(2);
            if tag == "{%" && self.raw(text)? {
                continue;
            }
            let control = self.control();
            self.data(before_tag(text, control, tag == "{{", self.at_line_start));
            match tag {
                "{#" => self.comment()?,
                "{{" => {
                    self.push(Token::VariableBegin);
                    self.tag("}}")?;
                }
                _ => {
                    self.push(Token::BlockBegin);
                    self.tag("%}")?;
                }
            }
        }
        Ok(())
    }

    /// The next `length` bytes, which are counted into the line number.
    fn take(&mut self, length: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += taken.matches('\n').count() as u32;
        taken
    }

    fn push(&mut self, token: Token) {
        let line = self.line;
        self.tokens.push(Lexed { token, line });
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.to_owned()));
        }
    }

    fn control(&mut self) -> Control {
        let control = match self.rest.as_bytes().first() {
            Some(b'-') => Control::Strip,
            Some(b'+') => Control::Keep,
            _ => return Control::Default,
        };
        self.take(1);
        control
    }

    fn take_space(&mut self) -> &'s str {
        let end = self.rest.find(|c| !is_space(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    /// Reads a raw block after its `{%`, with the text before it; `false` if there is none.
    fn raw(&mut self, before: &str) -> Result<bool> {
        let Some((control, after)) = raw_tag(self.rest, "raw") else {
            return Ok(false);
        };
        let trims = after.strip_prefix("-%}");
        let Some(after) = trims.or_else(|| after.strip_prefix("%}")) else {
            return Ok(false);
        };
        self.data(before_tag(before, control, false, self.at_line_start));
        self.take(self.rest.len() - after.len());
        let skipped = if trims.is_some() {
            self.take_space()
        } else {
            ""
        };
        self.at_line_start = skipped.ends_with('\n');

        let mut searched = 0;
        while let Some(found) = self.rest[searched..].find("{%") {
            let open = searched + found;
            searched = open + 2;
            let Some((control, after)) = raw_tag(&self.rest[searched..], "endraw") else {
                continue;
            };
            if !["%}", "-%}", "+%}"]
                .iter()
                .any(|end| after.starts_with(end))
            {
                continue;
            }
            let close = self.rest.len() - after.len();
            let text = before_tag(&self.rest[..open], control, false, self.at_line_start);
            self.data(text);
            self.take(close);
            self.tag_end("%}");
            return Ok(true);
        }
        syntax(self.line, "`{% raw %}` without `{% endraw %}`")
    }

    fn comment(&mut self) -> Result<()> {
        let Some(close) = self.rest.find("#}") else {
            return syntax(self.line, "`{#` without `#}`");
        };
        let marked = self.rest[..close].ends_with(['-', '+']);
        self.take(close - usize::from(marked));
        self.tag_end("#}");
        Ok(())
    }

    /// Skips a tag's closing bracket, with its control sign and the white space it strips. Returns
    /// whether there was one.
    fn tag_end(&mut self, end: &str) -> bool {
        let (length, control) = match self.rest.strip_prefix(end) {
            Some(_) => (end.len(), Control::Default),
            None if self.rest.get(1..).is_some_and(|rest| rest.starts_with(end)) => {
                match self.rest.as_bytes()[0] {
                    b'-' => (end.len() + 1, Control::Strip),
                    b'+' if end != "}}" => (end.len() + 1, Control::Keep),
                    _ => return false,
                }
            }
            None => return false,
        };
        self.take(length);
        let skipped = match control {
            Control::Strip => self.take_space(),
            Control::Default if end != "}}" && self.rest.starts_with('\n') => self.take(1),
            _ => "",
        };
        self.at_line_start = skipped.ends_with('\n');
        true
    }

    /// The inside of a tag, up to and with its closing bracket.
    fn tag(&mut self, end: &'static str) -> Result<()> {
        let mut brackets: Vec<&'static str> = Vec::new();
        loop {
            self.take_space();
            if brackets.is_empty() {
                let line = self.line;
                if self.tag_end(end) {
                    let token = match end {
                        "}}" => Token::VariableEnd,
                        _ => Token::BlockEnd,
                    };
                    self.tokens.push(Lexed { token, line });
                    return Ok(());
                }
            }
            let Some(first) = self.rest.chars().next() else {
                return syntax(self.line, format!("the template ends before `{end}`"));
            };
            match first {
                '0'..='9' => self.number()?,
                '\'' | '"' => self.string(first)?,
                c if c == '_' || c.is_alphanumeric() => self.name()?,
                _ => self.symbol(&mut brackets)?,
            }
        }
    }

    fn name(&mut self) -> Result<()> {
        let part = |c: char| c == '_' || c.is_alphanumeric();
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let name = self.take(end);
        if name.starts_with(char::is_numeric) {
            return syntax(self.line, format!("`{name}` is not a name"));
        }
        self.push(Token::Name(name.to_owned()));
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let mut escaped = false;
        let close = self.rest[1..].find(|c| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some(close) = close else {
            return syntax(self.line, "a string is not closed");
        };
        let line = self.line;
        let text = &self.take(close + 2)[1..=close];
        let text = unescape(text).map_err(|fault| fault.at(line))?;
        self.tokens.push(Lexed {
            token: Token::Str(text),
            line,
        });
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let after_dot =
            matches!(self.tokens.last(), Some(last) if last.token == Token::Symbol("."));
        if let Some(length) = float_length(self.rest).filter(|_| !after_dot) {
            let text = self.take(length).replace('_', "");
            let number = text.parse().unwrap_or(f64::INFINITY);
            self.push(Token::Float(number));
            return Ok(());
        }
        let (digits, radix) = integer_digits(self.rest);
        let text = self.take(digits.1);
        match i128::from_str_radix(&text[digits.0..].replace('_', ""), radix) {
            Ok(number) => {
                self.push(Token::Int(number));
                Ok(())
            }
            Err(_) => syntax(self.line, format!("the number {text} is too large")),
        }
    }

    fn symbol(&mut self, brackets: &mut Vec<&'static str>) -> Result<()> {
        let Some(symbol) = SYMBOLS.iter().find(|s| self.rest.starts_with(**s)) else {
            let found = self.rest.chars().next().unwrap_or_default();
            return syntax(self.line, format!("unexpected character {found:?}"));
        };
        match *symbol {
            "{" => brackets.push("}"),
            "(" => brackets.push(")"),
            "[" => brackets.push("]"),
            close @ ("}" | ")" | "]") => match brackets.pop() {
                Some(wanted) if wanted == close => {}
                Some(wanted) => {
                    return syntax(
                        self.line,
                        format!("unexpected `{close}`, expected `{wanted}`"),
                    );
                }
                None => return syntax(self.line, format!("unexpected `{close}`")),
            },
            _ => {}
        }
        self.take(symbol.len());
        self.push(Token::Symbol(symbol));
        Ok(())
    }
}

/// The position of the next `{%`, `{{` or `{#`.
fn next_tag(text: &str) -> Option<usize> {
    let pairs = text.as_bytes().windows(2);
    pairs
        .enumerate()
        .find(|(_, pair)| matches!(pair, [b'{', b'%' | b'{' | b'#']))
        .map(|(at, _)| at)
}

/// The text before a tag, without the white space that the tag strips.
fn before_tag(text: &str, control: Control, variable: bool, at_line_start: bool) -> &str {
    match control {
        Control::Strip => text.trim_end_matches(is_space),
        Control::Default if !variable => {
            let line = text.rfind('\n').map_or(0, |newline| newline + 1);
            let starts_line = line > 0 || at_line_start;
            if starts_line && text[line..].chars().all(is_space) {
                &text[..line]
            } else {
                text
            }
        }
        _ => text,
    }
}

/// `raw` or `endraw` after its `{%`: the control sign, and the text after the word.
fn raw_tag<'s>(text: &'s str, word: &str) -> Option<(Control, &'s str)> {
    let (control, text) = match text.as_bytes().first()? {
        b'-' => (Control::Strip, &text[1..]),
        b'+' => (Control::Keep, &text[1..]),
        _ => (Control::Default, text),
    };
    let after = text.trim_start_matches(is_space).strip_prefix(word)?;
    Some((control, after.trim_start_matches(is_space)))
}

/// The length of the floating-point number that `text` starts with.
fn float_length(text: &str) -> Option<usize> {
    let whole = digits(text, 0)?;
    let fraction = match text.as_bytes().get(whole) {
        Some(b'.') => digits(text, whole + 1),
        _ => None,
    };
    let mantissa = fraction.unwrap_or(whole);
    let exponent = match text.as_bytes().get(mantissa) {
        Some(b'e' | b'E') => {
            let signed = matches!(text.as_bytes().get(mantissa + 1), Some(b'+' | b'-'));
            digits(text, mantissa + 1 + usize::from(signed))
        }
        _ => None,
    };
    exponent.or(fraction)
}

/// The end of the digits from `start` on; single underscores may separate them.
fn digits(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    if !digit(start) {
        return None;
    }
    let mut end = start + 1;
    while digit(end) || (bytes.get(end) == Some(&b'_') && digit(end + 1)) {
        end += 1;
    }
    Some(end)
}

/// The range of the digits of the integer that `text` starts with, and their radix.
fn integer_digits(text: &str) -> ((usize, usize), u32) {
    let bytes = text.as_bytes();
    let run = |start: usize, radix: u32| {
        let digit = |at: usize| bytes.get(at).is_some_and(|b| (*b as char).is_digit(radix));
        let mut end = start;
        while digit(end) || (bytes.get(end) == Some(&b'_') && digit(end + 1)) {
            end += 1;
        }
        end
    };
    if bytes[0] == b'0' {
        let radix = match bytes.get(1) {
            Some(b'b' | b'B') => 2,
            Some(b'o' | b'O') => 8,
            Some(b'x' | b'X') => 16,
            _ => 10,
        };
        if radix != 10 && run(2, radix) > 2 {
            return ((2, run(2, radix)), radix);
        }
        let zeros = bytes.iter().take_while(|b| **b == b'0').count();
        return ((0, zeros), 10);
    }
    ((0, run(0, 10)), 10)
}
