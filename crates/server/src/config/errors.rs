//! The errors of a configuration, each with its location.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// All errors, sorted by location.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError {
    pub location: Location,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Location {
    File(FileLocation),
    /// The file as a whole.
    WholeFile(PathBuf),
    Variable(String),
    /// Without its dashes.
    Flag(String),
    /// A model named on the command line.
    Argument(String),
}

/// A range of characters in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileLocation {
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The whole line.
    pub text: String,
    /// How many characters are marked.
    pub width: usize,
}

impl FileLocation {
    /// The location of a span of bytes; only its first line counts.
    pub fn from_span(path: PathBuf, text: &str, span: Range<usize>) -> Self {
        let start = floor(text, span.start);
        let begin = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let last = floor(text, span.end).clamp(start, end);
        Self {
            path,
            line: text[..begin].matches('\n').count() + 1,
            column: text[begin..start].chars().count() + 1,
            text: text[begin..end].trim_end_matches('\r').to_owned(),
            width: text[start..last].chars().count().max(1),
        }
    }
}

/// The last character boundary at or before `offset`.
fn floor(text: &str, offset: usize) -> usize {
    let mut offsets = (0..=offset.min(text.len())).rev();
    offsets.find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl Location {
    /// In the order of reading.
    fn order(&self) -> (u8, usize, usize) {
        match self {
            Self::WholeFile(_) => (0, 0, 0),
            Self::File(file) => (0, file.line, file.column),
            Self::Variable(_) => (1, 0, 0),
            Self::Flag(_) => (2, 0, 0),
            Self::Argument(_) => (3, 0, 0),
        }
    }
}

impl ConfigErrors {
    pub fn sorted(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by_key(|error| error.location.order());
        Self(errors)
    }

    /// An error of a whole file.
    pub fn for_file(path: PathBuf, message: String) -> Self {
        let location = Location::WholeFile(path);
        Self(vec![ConfigError { location, message }])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let noun = if count == 1 { "error" } else { "errors" };
        write!(f, "the configuration has {count} {noun}:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n{error}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, message } = self;
        match location {
            Location::WholeFile(path) => write!(f, "{}: {message}", path.display()),
            Location::Variable(name) => write!(f, "{name}: {message}"),
            Location::Flag(name) => write!(f, "--{name}: {message}"),
            Location::Argument(typed) => write!(f, "{typed}: {message}"),
            Location::File(file) => {
                let FileLocation {
                    path,
                    line,
                    column,
                    text,
                    width,
                } = file;
                writeln!(f, "{}:{line}:{column}: {message}", path.display())?;
                writeln!(f, "{line:>5} | {text}")?;
                // Keeps tabs, so that the marks align with the text.
                let before = text.chars().take(column - 1);
                let before: String = before
                    .map(|letter| if letter == '\t' { '\t' } else { ' ' })
                    .collect();
                write!(f, "      | {before}{}", "^".repeat(*width))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_count_characters_and_lines() {
        let text = "a = 1\nbé = \"ü\"\r\n\nlast";
        for (meant, line, column, width) in [
            ("a", 1, 1, 1),
            ("\"ü\"", 2, 6, 3),
            ("last", 4, 1, 4),
            ("\nlast", 3, 1, 1),
        ] {
            let start = text.find(meant).unwrap();
            let file = FileLocation::from_span("f".into(), text, start..start + meant.len());
            assert_eq!(
                (file.line, file.column, file.width),
                (line, column, width),
                "{meant}"
            );
        }
        assert_eq!(
            FileLocation::from_span("f".into(), text, 6..8).text,
            "bé = \"ü\""
        );
        let past_the_end = FileLocation::from_span("f".into(), text, 900..901);
        assert_eq!((past_the_end.line, past_the_end.width), (4, 1));
    }

    #[test]
    fn display_marks_the_line() {
        let file = FileLocation::from_span("f.toml".into(), "x = 1\n\tport = 99\n", 14..16);
        let error = ConfigError {
            location: Location::File(file),
            message: "too much".to_owned(),
        };
        let shown = "f.toml:2:9: too much\n    2 | \tport = 99\n      | \t       ^^";
        assert_eq!(error.to_string(), shown);
    }
}
