//! Thinking in one line, which counts while it lasts.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::terminal::{dimmed, is_dumb};

/// Often enough to be seen moving, seldom enough to cost nothing.
const REDRAWN: Duration = Duration::from_millis(100);

/// A line on stderr about thinking that is not shown itself.
pub struct Fold {
    began: Instant,
    drawn: Option<Instant>,
    tokens: usize,
    /// Columns that the line has taken so far.
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

    /// Thinking went on for this many tokens.
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

    /// Leaves the line as it came out.
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

    /// The line in the place of the one before. Spaces hide what that had more: they work
    /// wherever a carriage return does.
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

/// What cannot be written there is not missed.
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
    fn a_line_counts_and_takes_the_place_of_the_one_before() {
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
