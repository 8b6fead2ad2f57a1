//! What is wrong with a configuration: all of it, each with its place.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// Everything that is wrong, in the order of its places.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

#[derive(Debug, Clone, PartialEq)]
pub struct Mistake {
    pub place: Place,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    File(Spot),
    /// The file as a whole.
    WholeFile(PathBuf),
    Variable(String),
    /// Without its dashes.
    Flag(String),
    /// A model that was typed.
    Argument(String),
}

/// Some letters of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Spot {
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// In letters, from 1.
    pub column: usize,
    /// The whole line.
    pub text: String,
    /// How many letters of it are meant.
    pub width: usize,
}

impl Spot {
    /// Where a span of bytes stands in a text; what it has on further lines is left out.
    pub fn of(path: PathBuf, text: &str, span: Range<usize>) -> Self {
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

/// The last boundary between letters up to here.
fn floor(text: &str, offset: usize) -> usize {
    let mut offsets = (0..=offset.min(text.len())).rev();
    offsets.find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl Place {
    /// In the order of reading.
    fn order(&self) -> (u8, usize, usize) {
        match self {
            Self::WholeFile(_) => (0, 0, 0),
            Self::File(spot) => (0, spot.line, spot.column),
            Self::Variable(_) => (1, 0, 0),
            Self::Flag(_) => (2, 0, 0),
            Self::Argument(_) => (3, 0, 0),
        }
    }
}

impl Mistakes {
    pub fn sorted(mut mistakes: Vec<Mistake>) -> Self {
        mistakes.sort_by_key(|mistake| mistake.place.order());
        Self(mistakes)
    }

    /// One that a file has as a whole.
    pub fn of_file(path: PathBuf, message: String) -> Self {
        let place = Place::WholeFile(path);
        Self(vec![Mistake { place, message }])
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let noun = if count == 1 { "mistake" } else { "mistakes" };
        write!(f, "the configuration has {count} {noun}:")?;
        self.0
            .iter()
            .try_for_each(|mistake| write!(f, "\n{mistake}"))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, message } = self;
        match place {
            Place::WholeFile(path) => write!(f, "{}: {message}", path.display()),
            Place::Variable(name) => write!(f, "{name}: {message}"),
            Place::Flag(name) => write!(f, "--{name}: {message}"),
            Place::Argument(typed) => write!(f, "{typed}: {message}"),
            Place::File(spot) => {
                let Spot {
                    path,
                    line,
                    column,
                    text,
                    width,
                } = spot;
                writeln!(f, "{}:{line}:{column}: {message}", path.display())?;
                writeln!(f, "{line:>5} | {text}")?;
                // Tabs stay, so that the marks stand below what they mean.
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
    fn spots_count_letters_and_lines() {
        let text = "a = 1\nbé = \"ü\"\r\n\nlast";
        for (meant, line, column, width) in [
            ("a", 1, 1, 1),
            ("\"ü\"", 2, 6, 3),
            ("last", 4, 1, 4),
            ("\nlast", 3, 1, 1),
        ] {
            let start = text.find(meant).unwrap();
            let spot = Spot::of("f".into(), text, start..start + meant.len());
            assert_eq!(
                (spot.line, spot.column, spot.width),
                (line, column, width),
                "{meant}"
            );
        }
        assert_eq!(Spot::of("f".into(), text, 6..8).text, "bé = \"ü\"");
        let past_the_end = Spot::of("f".into(), text, 900..901);
        assert_eq!((past_the_end.line, past_the_end.width), (4, 1));
    }

    #[test]
    fn the_line_is_shown_with_its_mark() {
        let spot = Spot::of("f.toml".into(), "x = 1\n\tport = 99\n", 14..16);
        let mistake = Mistake {
            place: Place::File(spot),
            message: "too much".to_owned(),
        };
        let shown = "f.toml:2:9: too much\n    2 | \tport = 99\n      | \t       ^^";
        assert_eq!(mistake.to_string(), shown);
    }
}
