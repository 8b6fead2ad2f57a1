//! The history of typed lines, in a file readable only by its owner.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Lines kept in the file.
const MAX_LINES: usize = 1000;

/// First line of a file with escaped line breaks.
const HEADING: &str = "#V2";

/// The history file. Each line is stored once, at its latest position.
#[derive(Debug)]
pub struct LineHistory {
    path: PathBuf,
}

impl LineHistory {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// All lines, oldest first.
    pub fn lines(&self) -> io::Result<Vec<String>> {
        match std::fs::read(&self.path) {
            // Invalid UTF-8 only affects its own line.
            Ok(bytes) => Ok(parse(&String::from_utf8_lossy(&bytes))),
            // No history yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Adds a line to the current file, which other chats may have changed, and returns all lines.
    /// The write is atomic.
    pub fn add(&self, line: &str) -> io::Result<Vec<String>> {
        std::fs::create_dir_all(self.directory())?;
        let _lock = self.lock()?;
        let mut lines = self.lines()?;
        lines.retain(|known| known != line);
        lines.push(line.to_owned());
        lines.drain(..lines.len().saturating_sub(MAX_LINES));
        self.write(&lines)?;
        Ok(lines)
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or_else(|| ".".as_ref())
    }

    /// Blocks other chats from writing until dropped. The history file itself is replaced by every
    /// write, so the lock is on a separate file.
    fn lock(&self) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(self.path.with_extension("lock"))?;
        match file.lock() {
            // Without locks in the file system, the last writer wins.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
            _ => Ok(file),
        }
    }

    fn write(&self, lines: &[String]) -> io::Result<()> {
        // A temporary file is private to its owner, and stays so.
        let mut file = tempfile::NamedTempFile::new_in(self.directory())?;
        file.write_all(serialize(lines).as_bytes())?;
        file.persist(&self.path)?;
        Ok(())
    }
}

fn serialize(lines: &[String]) -> String {
    let lines = lines
        .iter()
        .map(|line| line.replace('\\', r"\\").replace('\n', r"\n"));
    let all = std::iter::once(HEADING.to_owned()).chain(lines);
    all.map(|line| line + "\n").collect()
}

fn parse(text: &str) -> Vec<String> {
    match text.split_once('\n') {
        Some((HEADING, lines)) => lines.lines().map(unescape).collect(),
        _ => text.lines().map(str::to_owned).collect(),
    }
}

fn unescape(line: &str) -> String {
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
    fn lines_are_kept_once_at_latest_position() {
        let (_directory, history) = history();
        assert!(history.lines().unwrap().is_empty());
        for line in ["a", "b", "two\nlines \\n", "é 👩‍👧", "a", "b"] {
            history.add(line).unwrap();
        }
        let kept = ["two\nlines \\n", "é 👩‍👧", "a", "b"];
        assert_eq!(history.lines().unwrap(), kept);
    }

    #[test]
    fn file_is_bounded_and_private() {
        let (_directory, history) = history();
        let many: Vec<String> = (0..MAX_LINES + 5).map(|index| index.to_string()).collect();
        history.add("made").unwrap();
        history.write(&many).unwrap();
        let kept = history.add("last").unwrap();
        assert_eq!(kept.len(), MAX_LINES);
        assert_eq!(
            (kept[0].as_str(), kept[MAX_LINES - 1].as_str()),
            ("6", "last")
        );
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
    fn concurrent_chats_lose_no_line() {
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
    fn invalid_utf8_affects_one_line() {
        let (_directory, history) = history();
        history.add("a").unwrap();
        std::fs::write(&history.path, b"#V2\na\n\xff\n").unwrap();
        assert_eq!(history.add("b").unwrap(), ["a", "\u{fffd}", "b"]);
    }

    #[test]
    fn files_without_heading_are_read_verbatim() {
        assert_eq!(parse("a\nb\\n\n"), ["a", "b\\n"]);
        assert_eq!(parse("#V2\na\\nb\\\\n\\"), ["a\nb\\n\\"]);
        assert!(parse("").is_empty());
    }
}
