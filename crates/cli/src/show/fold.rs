//! Reasoning as one line that counts tokens.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::terminal::{dimmed, is_dumb};

/// How often the line is redrawn.
const REDRAWN: Duration = Duration::from_millis(100);

/// A line on stderr in place of the reasoning.
pub struct Fold {
    began: Instant,
    drawn: Option<Instant>,
    tokens: usize,
    /// Columns of the line on screen.
    width: usize,
}

impl Fold {
    pub fn begin(now: Instant) -> Self {
        Self {
            began: now,
            drawn: None,
            tokens: 0,
            width: 0,
        }
    }

    /// Counts more tokens.
    pub fn add(&mut self, tokens: usize, now: Instant) {
        self.tokens += tokens;
        let fresh = |drawn| now.saturating_duration_since(drawn) < REDRAWN;
        if is_dumb() || self.drawn.is_some_and(fresh) {
            return;
        }
        self.drawn = Some(now);
        let line = self.line("thinking…", now);
        write(&self.over(&line));
    }

    /// Prints the final line.
    pub fn end(mut self, now: Instant) {
        let line = self.line("thought for", now);
        write(&format!("{}\n", self.over(&line)));
    }

    fn line(&self, what: &str, now: Instant) -> String {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        let plural = match self.tokens {
            1 => "",
            _ => "s",
        };
        format!("{what} {seconds:.1} s ({} token{plural})", self.tokens)
    }

    /// The line drawn over the previous one. Spaces erase the rest of a longer one: they work on
    /// every terminal that has a carriage return.
    fn over(&mut self, line: &str) -> String {
        let columns = line.chars().count();
        let hidden = self.width.saturating_sub(columns);
        let back = match self.width {
            0 => "",
            _ => "\r",
        };
        self.width = columns;
        format!("{back}{}{:hidden$}", dimmed(line), "")
    }
}

/// Prints to stderr, ignoring errors.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_counts_and_replaces_the_previous() {
        let began = Instant::now();
        let mut fold = Fold::begin(began);
        for (what, tokens, after, expected) in [
            ("thinking…", 1, 0.04, "thinking… 0.0 s (1 token)"),
            ("thinking…", 213, 3.19, "\rthinking… 3.2 s (214 tokens)"),
            ("thought", 0, 3.2, "\rthought 3.2 s (214 tokens)  "),
        ] {
            fold.tokens += tokens;
            let line = fold.line(what, began + Duration::from_secs_f64(after));
            assert_eq!(fold.over(&line), expected);
        }
    }
}
