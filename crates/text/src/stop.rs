//! Stop strings over streamed text.

use crate::{Result, TextError};

/// What a push settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// Text that is certain to stand before any stop string.
    pub text: String,
    /// Which stop string has been found; nothing follows.
    pub stopped: Option<usize>,
}

/// Finds the first stop string in a text that comes in pieces, and holds back what may become one.
///
/// The stop string that is complete first wins, the longest of those complete at the same place.
/// So the result is the same however the text is cut into pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Refuses an empty stop string, which would stop before anything is said.
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

    /// Takes more text and returns what can be shown of all that has come.
    pub fn push(&mut self, text: &str) -> Matched {
        if self.stopped.is_some() {
            return Matched {
                text: String::new(),
                stopped: self.stopped,
            };
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.earliest() {
            self.stopped = Some(index);
            self.held.truncate(start);
            return Matched {
                text: std::mem::take(&mut self.held),
                stopped: self.stopped,
            };
        }
        let undecided = self.held.split_off(self.settled());
        Matched {
            text: std::mem::replace(&mut self.held, undecided),
            stopped: None,
        }
    }

    /// Ends the text: what was held back turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the winning stop string begins, and which one it is.
    fn earliest(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// How much of the held text cannot belong to a stop string any more.
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
        let matched: Vec<Matched> = pieces.iter().map(|piece| matcher.push(piece)).collect();
        let stopped = matched.iter().find_map(|m| m.stopped);
        let shown = matched.into_iter().map(|m| m.text).collect();
        (shown, stopped, matcher.finish())
    }

    #[test]
    fn text_is_held_back_only_while_it_may_stop() {
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
    fn the_cut_into_pieces_does_not_matter() {
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
    fn an_empty_stop_string_is_refused() {
        let refused = StopMatcher::new(vec!["a".into(), String::new()]);
        assert!(matches!(refused, Err(TextError::EmptyStop { index: 1 })));
    }
}
