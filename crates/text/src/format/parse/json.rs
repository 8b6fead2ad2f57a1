//! JSON values, one character at a time.

/// The effect of a character on a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The value continues.
    More,
    /// The value ends with this character.
    Done,
    /// The value ended before this character, which belongs to the text after it.
    DoneBefore,
    /// The character is invalid here and was not consumed.
    Broken,
}

/// Reads one JSON value and passes it on as it was written, except that control characters in
/// strings, which models forget to escape, are escaped.
#[derive(Debug)]
pub(super) struct JsonReader {
    open: Vec<Container>,
    state: JsonState,
    /// A number or a literal name, which is validated when it is complete.
    word: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    Value,
    ValueOrClose,
    Key,
    KeyOrClose,
    Colon,
    CommaOrClose,
    String { key: bool, escape: Escape },
    Word,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    No,
    Backslash,
    /// This many hexadecimal digits remain.
    Hex(u8),
}

impl JsonReader {
    pub fn new() -> Self {
        Self {
            open: Vec::new(),
            state: JsonState::Value,
            word: String::new(),
        }
    }

    /// Text read but not passed on.
    pub fn take_held(&mut self) -> String {
        std::mem::take(&mut self.word)
    }

    pub fn push(&mut self, c: char, out: &mut String) -> Step {
        match self.state {
            JsonState::String { key, escape } => self.string(c, key, escape, out),
            JsonState::Word => self.word(c, out),
            _ if is_space(c) => {
                if !self.open.is_empty() {
                    out.push(c);
                }
                Step::More
            }
            JsonState::Value => self.value(c, out),
            JsonState::ValueOrClose if c == ']' => self.close(Container::Array, c, out),
            JsonState::ValueOrClose => self.value(c, out),
            JsonState::KeyOrClose if c == '}' => self.close(Container::Object, c, out),
            JsonState::KeyOrClose | JsonState::Key if c == '"' => {
                self.begin_string(true);
                pass(c, out)
            }
            JsonState::Colon if c == ':' => {
                self.state = JsonState::Value;
                pass(c, out)
            }
            JsonState::CommaOrClose => self.after_value(c, out),
            JsonState::Key | JsonState::KeyOrClose | JsonState::Colon => Step::Broken,
        }
    }

    fn value(&mut self, c: char, out: &mut String) -> Step {
        match c {
            '{' => self.begin(Container::Object, JsonState::KeyOrClose),
            '[' => self.begin(Container::Array, JsonState::ValueOrClose),
            '"' => self.begin_string(false),
            _ if is_word(c) => {
                self.state = JsonState::Word;
                self.word.push(c);
                return Step::More;
            }
            _ => return Step::Broken,
        }
        pass(c, out)
    }

    fn begin(&mut self, container: Container, state: JsonState) {
        self.open.push(container);
        self.state = state;
    }

    fn begin_string(&mut self, key: bool) {
        self.state = JsonState::String {
            key,
            escape: Escape::No,
        };
    }

    fn string(&mut self, c: char, key: bool, escape: Escape, out: &mut String) -> Step {
        let escape = match (escape, c) {
            (Escape::No, '"') => {
                out.push(c);
                return if key {
                    self.state = JsonState::Colon;
                    Step::More
                } else {
                    self.end_value()
                };
            }
            (Escape::No, '\\') => Escape::Backslash,
            (Escape::No, _) => Escape::No,
            (Escape::Backslash, 'u') => Escape::Hex(4),
            (Escape::Backslash, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::No,
            (Escape::Hex(1), _) if c.is_ascii_hexdigit() => Escape::No,
            (Escape::Hex(left), _) if c.is_ascii_hexdigit() => Escape::Hex(left - 1),
            (Escape::Backslash | Escape::Hex(_), _) => return Step::Broken,
        };
        self.state = JsonState::String { key, escape };
        if c.is_ascii_control() {
            escape_into(c, out);
        } else {
            out.push(c);
        }
        Step::More
    }

    fn word(&mut self, c: char, out: &mut String) -> Step {
        if is_word(c) {
            self.word.push(c);
            return Step::More;
        }
        if !is_json_word(&self.word) {
            return Step::Broken;
        }
        out.push_str(&self.word);
        self.word.clear();
        match self.end_value() {
            Step::Done => Step::DoneBefore,
            _ => self.push(c, out),
        }
    }

    fn after_value(&mut self, c: char, out: &mut String) -> Step {
        match (c, self.open.last()) {
            (',', Some(Container::Object)) => self.state = JsonState::Key,
            (',', Some(Container::Array)) => self.state = JsonState::Value,
            ('}', Some(_)) => return self.close(Container::Object, c, out),
            (']', Some(_)) => return self.close(Container::Array, c, out),
            _ => return Step::Broken,
        }
        pass(c, out)
    }

    fn close(&mut self, container: Container, c: char, out: &mut String) -> Step {
        if self.open.last() != Some(&container) {
            return Step::Broken;
        }
        self.open.pop();
        out.push(c);
        self.end_value()
    }

    fn end_value(&mut self) -> Step {
        self.state = JsonState::CommaOrClose;
        if self.open.is_empty() {
            Step::Done
        } else {
            Step::More
        }
    }
}

fn pass(c: char, out: &mut String) -> Step {
    out.push(c);
    Step::More
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

fn is_json_word(word: &str) -> bool {
    matches!(word, "true" | "false" | "null") || is_json_number(word)
}

/// Whether a word is a number by JSON's grammar; how large it is does not matter.
pub(super) fn is_json_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = word.strip_prefix('-').unwrap_or(word);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let leading_zero = whole.len() > 1 && whole.starts_with('0');
    digits(whole)
        && !leading_zero
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)))
}

/// Adds a character to the inside of a JSON string.
pub(super) fn escape_into(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| escape_into(c, &mut out));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, Step) {
        let mut reader = JsonReader::new();
        let mut out = String::new();
        for c in text.chars() {
            let step = reader.push(c, &mut out);
            if step != Step::More {
                return (out, step);
            }
        }
        (out, Step::More)
    }

    #[test]
    fn json_values_pass_unchanged() {
        for value in [
            "{}",
            "[]",
            "[ ]",
            r#"{"a": [1, -2.5e+3, true, false, null, {"b": "}]\"é\u00e9"}], "": 0}"#,
            r#""x""#,
        ] {
            assert_eq!(read(value), (value.to_owned(), Step::Done), "{value}");
            assert!(serde_json::from_str::<serde_json::Value>(value).is_ok());
        }
        assert_eq!(read("  12,"), ("12".to_owned(), Step::DoneBefore));
        assert_eq!(read("\"a\nb\u{1}\"").0, r#""a\nb\u0001""#);
    }

    #[test]
    fn invalid_json_is_rejected() {
        for value in [
            "}",
            "{,",
            "{\"a\"}",
            "{\"a\":}",
            "[1 2]",
            "[1,]",
            "{\"a\":1,}",
            "[}",
            "nul,",
            "01 ",
            "1. ",
            "-,",
            "\"\\x",
            "\"\\u12g",
            "{a",
            "'x'",
            "1e,",
            "+1,",
        ] {
            assert_eq!(read(value).1, Step::Broken, "{value}");
        }
    }
}
