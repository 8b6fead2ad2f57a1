//! Values in the notations of Python and of Gemma, turned into JSON one character at a time.

use super::json::{Step, escape_into, is_json_number, quoted};
use super::matching::Scan;
use super::python::{Escape, hex_into, number, unescape};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    /// `{'a': [1, True, None], "b": (1, 2)}`
    Python,
    /// `{a:[1,true],b:<quote>text<quote>}`: bare keys, and strings between this marker.
    Gemma(&'static str),
}

/// Reads one value of a notation and writes it as JSON.
#[derive(Debug)]
pub(super) struct LiteralReader {
    notation: Notation,
    /// The closing brackets to come, the innermost last.
    open: Vec<char>,
    state: LiteralState,
    /// Whether the next element needs a comma before it; Python allows one after the last.
    comma: bool,
    /// Text that cannot be classified so far.
    held: String,
}

#[derive(Debug)]
enum LiteralState {
    /// A value, or the end of an array.
    Value,
    /// A key, or the end of an object.
    Key,
    BareKey,
    Colon,
    AfterValue,
    Word,
    /// Within the opening of a marked string.
    Mark {
        key: bool,
    },
    /// A string up to a marker.
    Marked {
        key: bool,
        scan: Scan<()>,
    },
    /// A string up to a quotation mark.
    Quoted {
        key: bool,
        quote: char,
        escape: Escape,
    },
}

impl LiteralReader {
    pub fn new(notation: Notation) -> Self {
        Self {
            notation,
            open: Vec::new(),
            state: LiteralState::Value,
            comma: false,
            held: String::new(),
        }
    }

    /// Text read but not passed on.
    pub fn take_held(&mut self) -> String {
        match &mut self.state {
            LiteralState::Marked { scan, .. } => scan.take_held(),
            _ => std::mem::take(&mut self.held),
        }
    }

    pub fn push(&mut self, c: char, out: &mut String) -> Step {
        match &mut self.state {
            LiteralState::Marked { key, scan } => {
                let key = *key;
                let mut text = String::new();
                let end = scan.push(c, &mut text).is_some();
                text.chars().for_each(|c| escape_into(c, out));
                if end {
                    self.end_string(key, out)
                } else {
                    Step::More
                }
            }
            LiteralState::Quoted { key, quote, escape } => {
                let (key, quote, escape) = (*key, *quote, *escape);
                self.quoted(c, key, quote, escape, out)
            }
            LiteralState::Mark { key } => {
                let key = *key;
                self.mark(c, key)
            }
            LiteralState::Word => self.word(c, out),
            LiteralState::BareKey => self.bare_key(c, out),
            _ if c.is_whitespace() => Step::More,
            LiteralState::Value => self.value(c, out),
            LiteralState::Key => self.key(c, out),
            LiteralState::Colon if c == ':' => {
                self.state = LiteralState::Value;
                out.push(':');
                Step::More
            }
            LiteralState::Colon => Step::Broken,
            LiteralState::AfterValue => self.after_value(c, out),
        }
    }

    fn value(&mut self, c: char, out: &mut String) -> Step {
        if self.closes(c) && c != '}' {
            return self.close(out);
        }
        let container = match c {
            '{' => Some(('{', '}')),
            '[' => Some(('[', ']')),
            '(' if self.notation == Notation::Python => Some(('[', ')')),
            _ => None,
        };
        if let Some((bracket, closing)) = container {
            self.separate(out);
            out.push(bracket);
            self.open.push(closing);
            self.state = if bracket == '{' {
                LiteralState::Key
            } else {
                LiteralState::Value
            };
            return Step::More;
        }
        if self.begin_string(c, false, out) {
            return Step::More;
        }
        if matches!(c, ',' | '}' | ']' | ')' | ':') {
            return Step::Broken;
        }
        self.separate(out);
        self.state = LiteralState::Word;
        self.held.push(c);
        Step::More
    }

    fn key(&mut self, c: char, out: &mut String) -> Step {
        if c == '}' {
            return self.close(out);
        }
        if self.begin_string(c, true, out) {
            return Step::More;
        }
        if self.notation == Notation::Python || matches!(c, ',' | ':' | '{' | '[' | ']') {
            return Step::Broken;
        }
        self.separate(out);
        self.state = LiteralState::BareKey;
        self.held.push(c);
        Step::More
    }

    /// Starts a string if `c` opens one.
    fn begin_string(&mut self, c: char, key: bool, out: &mut String) -> bool {
        let marked = match self.notation {
            Notation::Gemma(mark) => mark.starts_with(c),
            Notation::Python => false,
        };
        let quote = c == '"' || (c == '\'' && self.notation == Notation::Python);
        if !marked && !quote {
            return false;
        }
        self.separate(out);
        self.state = if marked {
            self.held.push(c);
            LiteralState::Mark { key }
        } else {
            LiteralState::Quoted {
                key,
                quote: c,
                escape: Escape::No,
            }
        };
        out.push('"');
        true
    }

    fn mark(&mut self, c: char, key: bool) -> Step {
        let Notation::Gemma(mark) = self.notation else {
            return Step::Broken;
        };
        self.held.push(c);
        if !mark.starts_with(&self.held) {
            self.held.pop();
            return Step::Broken;
        }
        if self.held == mark {
            self.held.clear();
            let scan = Scan::new(vec![(mark, ())]);
            self.state = LiteralState::Marked { key, scan };
        }
        Step::More
    }

    fn quoted(
        &mut self,
        c: char,
        key: bool,
        quote: char,
        escape: Escape,
        out: &mut String,
    ) -> Step {
        let escape = match escape {
            Escape::No if c == quote => return self.end_string(key, out),
            Escape::No if c == '\\' => Escape::Backslash,
            Escape::No => {
                escape_into(c, out);
                Escape::No
            }
            Escape::Backslash => unescape(c, out),
            Escape::Hex { kind, left, value } => {
                let Some(digit) = c.to_digit(16) else {
                    return Step::Broken;
                };
                let value = value << 4 | digit;
                if left > 1 {
                    let left = left - 1;
                    Escape::Hex { kind, left, value }
                } else if hex_into(kind, value, out) {
                    Escape::No
                } else {
                    return Step::Broken;
                }
            }
        };
        self.state = LiteralState::Quoted { key, quote, escape };
        Step::More
    }

    fn end_string(&mut self, key: bool, out: &mut String) -> Step {
        out.push('"');
        if key {
            self.state = LiteralState::Colon;
            return Step::More;
        }
        self.end_value()
    }

    fn bare_key(&mut self, c: char, out: &mut String) -> Step {
        match c {
            ':' => {
                let key = std::mem::take(&mut self.held);
                out.push_str(&quoted(key.trim_end()));
                out.push(':');
                self.state = LiteralState::Value;
                Step::More
            }
            '{' | '}' | '[' | ']' | ',' | '\n' => Step::Broken,
            _ => {
                self.held.push(c);
                Step::More
            }
        }
    }

    fn word(&mut self, c: char, out: &mut String) -> Step {
        let ends = match self.notation {
            Notation::Python => c.is_whitespace() || matches!(c, ',' | ')' | ']' | '}' | ':'),
            Notation::Gemma(_) => matches!(c, ',' | ']' | '}'),
        };
        if !ends {
            self.held.push(c);
            return Step::More;
        }
        let Some(json) = self.word_as_json() else {
            return Step::Broken;
        };
        out.push_str(&json);
        self.held.clear();
        match self.end_value() {
            Step::Done => Step::DoneBefore,
            _ => self.push(c, out),
        }
    }

    fn word_as_json(&self) -> Option<String> {
        let word = self.held.trim_end();
        match (word, self.notation) {
            ("True" | "true", _) => Some("true".to_owned()),
            ("False" | "false", _) => Some("false".to_owned()),
            ("None" | "null", _) => Some("null".to_owned()),
            _ if is_json_number(word) => Some(word.to_owned()),
            (_, Notation::Python) => number(word),
            (_, Notation::Gemma(_)) => Some(quoted(word)),
        }
    }

    fn after_value(&mut self, c: char, out: &mut String) -> Step {
        if self.closes(c) {
            return self.close(out);
        }
        if c != ',' {
            return Step::Broken;
        }
        self.comma = true;
        self.state = match self.open.last() {
            Some('}') => LiteralState::Key,
            _ => LiteralState::Value,
        };
        Step::More
    }

    fn closes(&self, c: char) -> bool {
        self.open.last() == Some(&c)
    }

    fn close(&mut self, out: &mut String) -> Step {
        let closing = self.open.pop();
        out.push(if closing == Some('}') { '}' } else { ']' });
        self.end_value()
    }

    fn separate(&mut self, out: &mut String) {
        if std::mem::take(&mut self.comma) {
            out.push(',');
        }
    }

    fn end_value(&mut self) -> Step {
        self.comma = false;
        self.state = LiteralState::AfterValue;
        if self.open.is_empty() {
            Step::Done
        } else {
            Step::More
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(notation: Notation, text: &str) -> Option<String> {
        let mut reader = LiteralReader::new(notation);
        let mut out = String::new();
        for c in text.chars() {
            match reader.push(c, &mut out) {
                Step::More => {}
                Step::Done | Step::DoneBefore => return Some(out),
                Step::Broken => return None,
            }
        }
        None
    }

    #[test]
    fn python_literals() {
        for (python, json) in [
            (
                "{'a': [1, True, None, ], \"b\": (1, 2)}",
                r#"{"a":[1,true,null],"b":[1,2]}"#,
            ),
            (
                r#""it's \"x\" \n \d \x41 \u00e9 \U0001F600""#,
                r#""it's \"x\" \n \\d A é 😀""#,
            ),
            (r#"'say "hi" \'there\''"#, r#""say \"hi\" 'there'""#),
            (r#"'\ud83d\ude00'"#, r#""\ud83d\ude00""#),
            ("[.5, 1., -1_000, +2, 1e3]", "[0.5,1.0,-1000,2,1e3]"),
            ("[]", "[]"),
            ("{}", "{}"),
            ("[[], {}, ()]", "[[],{},[]]"),
        ] {
            assert_eq!(
                read(Notation::Python, python).as_deref(),
                Some(json),
                "{python}"
            );
            assert!(serde_json::from_str::<serde_json::Value>(json).is_ok());
        }
        for broken in [
            "[oops]", "{a: 1}", "[1 2]", "{1}", "[)", "'\\xzz'", "[,]", "{'a' 1}",
        ] {
            assert_eq!(read(Notation::Python, broken), None, "{broken}");
        }
    }

    #[test]
    fn gemma_literals() {
        let gemma = Notation::Gemma("<|\"|>");
        for (text, json) in [
            (
                r#"{a:<|"|>x, "y" }<|"|>,b:1}"#,
                r#"{"a":"x, \"y\" }","b":1}"#,
            ),
            (
                r#"{a:[true,null,-2.5],b:{<|"|>c d<|"|>:<|"|><|"|>}}"#,
                r#"{"a":[true,null,-2.5],"b":{"c d":""}}"#,
            ),
            ("{a:bare words}", r#"{"a":"bare words"}"#),
            ("{}", "{}"),
            (r#"{a:"x\n"}"#, r#"{"a":"x\n"}"#),
        ] {
            assert_eq!(read(gemma, text).as_deref(), Some(json), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(json).is_ok());
        }
        for broken in ["{a}", "{a:}", "{a:<|x", "{:1}"] {
            assert_eq!(read(gemma, broken), None, "{broken}");
        }
    }
}
