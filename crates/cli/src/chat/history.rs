//! Lines that were typed before, in a file that only their owner reads.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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
        match std::fs::read(&self.path) {
            // A byte that is no text spoils its line and no other.
            Ok(bytes) => Ok(read(&String::from_utf8_lossy(&bytes))),
            // No history yet is no reason not to talk.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Adds a line to what the file holds by now, for others may have added theirs, and gives
    /// all of it. The file changes at once or not at all.
    pub fn add(&self, line: &str) -> io::Result<Vec<String>> {
        std::fs::create_dir_all(self.directory())?;
        let _held = self.lock()?;
        let mut lines = self.lines()?;
        lines.retain(|known| known != line);
        lines.push(line.to_owned());
        lines.drain(..lines.len().saturating_sub(MOST));
        self.write(&lines)?;
        Ok(lines)
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or_else(|| ".".as_ref())
    }

    /// Keeps other conversations from writing until it is dropped. The history itself is replaced
    /// with every line, so that a lock on it would hold nobody.
    fn lock(&self) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(self.path.with_extension("lock"))?;
        match file.lock() {
            // Where a file system has no locks, the one who writes last is right.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
            _ => Ok(file),
        }
    }

    fn write(&self, lines: &[String]) -> io::Result<()> {
        // A temporary file is its owner's alone, and stays so.
        let mut file = tempfile::NamedTempFile::new_in(self.directory())?;
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
        history.add("made").unwrap();
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
        let files = std::fs::read_dir(history.directory()).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["chat-history", "chat-history.lock"]);
    }

    #[test]
    fn conversations_side_by_side_lose_no_line() {
        let (_directory, history) = history();
        std::thread::scope(|scope| {
            for talk in 0..4 {
                let history = &history;
                scope.spawn(move || {
                    for line in 0..25 {
                        history.add(&format!("{talk}.{line}")).unwrap();
                    }
                });
            }
        });
        assert_eq!(history.lines().unwrap().len(), 100);
    }

    #[test]
    fn a_byte_that_is_no_text_spoils_one_line() {
        let (_directory, history) = history();
        history.add("a").unwrap();
        std::fs::write(&history.path, b"#V2\na\n\xff\n").unwrap();
        assert_eq!(history.add("b").unwrap(), ["a", "\u{fffd}", "b"]);
    }

    #[test]
    fn files_without_a_heading_are_read_as_they_stand() {
        assert_eq!(read("a\nb\\n\n"), ["a", "b\\n"]);
        assert_eq!(read("#V2\na\\nb\\\\n\\"), ["a\nb\\n\\"]);
        assert!(read("").is_empty());
    }
}
