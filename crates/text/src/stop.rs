//! Stop strings over streamed text.

use crate::{Result, TextError};

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopMatch {
    /// Text that certainly precedes any stop string.
    pub text: String,
    /// The stop string found. Nothing follows.
    pub stopped: Option<usize>,
}

/// Finds the first stop string in streamed text. Holds back text that may start one.
///
/// The stop string that completes first wins; of several that complete at once, the longest. The
/// result does not depend on how the text is split.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may start a stop string.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Refuses an empty stop string, which would stop before any text.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop { index });
        }
        Ok(Self {
            stops,
            held: String::new(),
            stopped: None,
        })
    }

    /// Adds text. Returns what can be shown so far.
    pub fn push(&mut self, text: &str) -> StopMatch {
        if self.stopped.is_some() {
            return StopMatch {
                text: String::new(),
                stopped: self.stopped,
            };
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.earliest() {
            self.stopped = Some(index);
            self.held.truncate(start);
            return StopMatch {
                text: std::mem::take(&mut self.held),
                stopped: self.stopped,
            };
        }
        let undecided = self.held.split_off(self.settled());
        StopMatch {
            text: std::mem::replace(&mut self.held, undecided),
            stopped: None,
        }
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The start and the index of the winning stop string.
    fn earliest(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// The length of held text that cannot belong to a stop string.
    fn settled(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let mut starts = (from..self.held.len()).filter(|at| self.held.is_char_boundary(*at));
        let possible = starts.find(|at| {
            let tail = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(tail))
        });
        possible.unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>, String) {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(stops).expect("no empty stop string");
        let matched: Vec<StopMatch> = pieces.iter().map(|piece| matcher.push(piece)).collect();
        let stopped = matched.iter().find_map(|m| m.stopped);
        let shown = matched.into_iter().map(|m| m.text).collect();
        (shown, stopped, matcher.finish())
    }

    #[test]
    fn text_is_held_back_only_while_needed() {
        type Case<'a> = (
            &'a [&'a str],
            &'a [&'a str],
            &'a [&'a str],
            Option<usize>,
            &'a str,
        );
        let cases: [Case<'_>; 9] = [
            (&[], &["a", "b"], &["a", "b"], None, ""),
            (
                &["END"],
                &["xE", "N", "D", "y"],
                &["x", "", "", ""],
                Some(0),
                "",
            ),
            (&["END"], &["xE", "Ny"], &["x", "ENy"], None, ""),
            (&["END"], &["xEN"], &["x"], None, "EN"),
            (&["aab"], &["aaab"], &["a"], Some(0), ""),
            (&["aab"], &["aa", "ab"], &["", "a"], Some(0), ""),
            (&["abcd", "bc"], &["abcd"], &["a"], Some(1), ""),
            (&["b", "ab"], &["xab"], &["x"], Some(1), ""),
            (&["é!"], &["caf", "é", "é!"], &["caf", "", "é"], Some(0), ""),
        ];
        for (stops, pieces, shown, stopped, rest) in cases {
            let (texts, did_stop, held) = run(stops, pieces);
            assert_eq!(texts, shown, "{stops:?} over {pieces:?}");
            assert_eq!(
                (did_stop, held.as_str()),
                (stopped, rest),
                "{stops:?} over {pieces:?}"
            );
        }
    }

    #[test]
    fn result_is_independent_of_splits() {
        let stops = ["abcab", "bca", "é¶", "ca¶é"];
        let text = "abcabéabc¶abca¶éabcé¶x";
        let (whole, whole_stopped, whole_rest) = run(&stops, &[text]);
        let boundaries: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for first in &boundaries {
            for second in boundaries.iter().filter(|at| *at >= first) {
                let pieces = [&text[..*first], &text[*first..*second], &text[*second..]];
                let (shown, stopped, rest) = run(&stops, &pieces);
                let expected = (whole.concat(), whole_stopped, &whole_rest);
                assert_eq!((shown.concat(), stopped, &rest), expected, "{pieces:?}");
            }
        }
    }

    #[test]
    fn empty_stop_string_is_refused() {
        let refused = StopMatcher::new(vec!["a".into(), String::new()]);
        assert!(matches!(refused, Err(TextError::EmptyStop { index: 1 })));
    }
}
