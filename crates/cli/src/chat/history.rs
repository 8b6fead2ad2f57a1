//! Lines that were typed before, in a file that only their owner reads.

use std::io::{self, Write};
use std::path::PathBuf;

/// Enough to find what was asked a month ago.
const MOST: usize = 1000;

/// A file whose lines hold line breaks is told by its first line.
const HEADING: &str = "#V2";

/// The file. Every line is in it once, where it was typed last.
#[derive(Debug)]
pub struct LineHistory {
    path: PathBuf,
}

impl LineHistory {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// What there is, oldest first.
    pub fn lines(&self) -> io::Result<Vec<String>> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Ok(read(&text)),
            // No history yet is no reason not to talk.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Adds a line to what the file holds by now, for others may have added theirs, and gives
    /// all of it. The file changes at once or not at all.
    pub fn add(&self, line: &str) -> io::Result<Vec<String>> {
        let mut lines = self.lines()?;
        lines.retain(|known| known != line);
        lines.push(line.to_owned());
        lines.drain(..lines.len().saturating_sub(MOST));
        self.write(&lines)?;
        Ok(lines)
    }

    fn write(&self, lines: &[String]) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or_else(|| ".".as_ref());
        std::fs::create_dir_all(directory)?;
        // A temporary file is its owner's alone, and stays so.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(written(lines).as_bytes())?;
        file.persist(&self.path)?;
        Ok(())
    }
}

fn written(lines: &[String]) -> String {
    let lines = lines
        .iter()
        .map(|line| line.replace('\\', r"\\").replace('\n', r"\n"));
    let all = std::iter::once(HEADING.to_owned()).chain(lines);
    all.map(|line| line + "\n").collect()
}

fn read(text: &str) -> Vec<String> {
    match text.split_once('\n') {
        Some((HEADING, lines)) => lines.lines().map(unescaped).collect(),
        _ => text.lines().map(str::to_owned).collect(),
    }
}

fn unescaped(line: &str) -> String {
    let mut letters = line.chars();
    let mut text = String::with_capacity(line.len());
    while let Some(letter) = letters.next() {
        text.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            letter => letter,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> (tempfile::TempDir, LineHistory) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/chat-history");
        (directory, LineHistory::at(path))
    }

    #[test]
    fn a_line_is_kept_once_where_it_was_typed_last() {
        let (_directory, history) = history();
        assert!(history.lines().unwrap().is_empty());
        for line in ["a", "b", "two\nlines \\n", "é 👩‍👧", "a", "b"] {
            history.add(line).unwrap();
        }
        let kept = ["two\nlines \\n", "é 👩‍👧", "a", "b"];
        assert_eq!(history.lines().unwrap(), kept);
    }

    #[test]
    fn the_file_is_bounded_and_private() {
        let (_directory, history) = history();
        let many: Vec<String> = (0..MOST + 5).map(|index| index.to_string()).collect();
        history.write(&many).unwrap();
        let kept = history.add("last").unwrap();
        assert_eq!(kept.len(), MOST);
        assert_eq!((kept[0].as_str(), kept[MOST - 1].as_str()), ("6", "last"));
        assert_eq!(history.lines().unwrap(), kept);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&history.path).unwrap().permissions();
            assert_eq!(mode.mode() & 0o777, 0o600);
        }
        let directory = history.path.parent().unwrap();
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
    }

    #[test]
    fn files_without_a_heading_are_read_as_they_stand() {
        assert_eq!(read("a\nb\\n\n"), ["a", "b\\n"]);
        assert_eq!(read("#V2\na\\nb\\\\n\\"), ["a\nb\\n\\"]);
        assert!(read("").is_empty());
    }
}
