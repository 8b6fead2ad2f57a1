//! Finds markers in text that arrives one character at a time.

/// Searches for markers in a text. Holds back text that may start one.
#[derive(Debug)]
pub(super) struct Scan<T> {
    markers: Vec<(&'static str, T)>,
    held: String,
}

impl<T: Copy> Scan<T> {
    pub fn new(markers: Vec<(&'static str, T)>) -> Self {
        let mut markers = markers;
        markers.retain(|(marker, _)| !marker.is_empty());
        Self {
            markers,
            held: String::new(),
        }
    }

    /// Adds to `released` text that is not part of a marker. Returns the marker that ends with `c`.
    pub fn push(&mut self, c: char, released: &mut String) -> Option<(&'static str, T)> {
        if self.held.is_empty() && !self.may_begin(c) {
            released.push(c);
            return None;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            let held = self.held.as_str();
            if let Some(found) = self.markers.iter().find(|(marker, _)| *marker == held) {
                self.held.clear();
                return Some(*found);
            }
            if self
                .markers
                .iter()
                .any(|(marker, _)| marker.starts_with(held))
            {
                return None;
            }
            released.push(self.held.remove(0));
        }
        None
    }

    fn may_begin(&self, c: char) -> bool {
        self.markers.iter().any(|(marker, _)| marker.starts_with(c))
    }

    /// The length of the start of a text that is certainly not part of a marker.
    pub fn plain(&self, text: &str) -> usize {
        if !self.held.is_empty() {
            return 0;
        }
        text.find(|c| self.may_begin(c)).unwrap_or(text.len())
    }

    /// Releases the held text at the end of the input.
    pub fn take_held(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The position in `text`, from `from` on, of a marker's start at the end; the text's length if
    /// there is none.
    pub fn tail(&self, text: &str, from: usize) -> usize {
        let longest = self.markers.iter().map(|(marker, _)| marker.len()).max();
        let earliest = from.max(text.len().saturating_sub(longest.unwrap_or(0)));
        (earliest..text.len())
            .filter(|&at| text.is_char_boundary(at))
            .find(|&at| {
                let end = &text[at..];
                self.markers
                    .iter()
                    .any(|(marker, _)| marker.starts_with(end))
            })
            .unwrap_or(text.len())
    }
}

/// Expects one of several markers, white space aside.
#[derive(Debug)]
pub(super) struct Choice<T> {
    options: Vec<(&'static str, T)>,
    space: String,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chosen<T> {
    More,
    Found(T),
    /// None of them; the character was not consumed.
    Other,
}

impl<T: Copy> Choice<T> {
    /// Options that are empty, white space aside, are left out.
    pub fn new(options: impl IntoIterator<Item = (&'static str, T)>) -> Self {
        let options = options.into_iter().map(|(text, tag)| (text.trim(), tag));
        Self {
            options: options.filter(|(text, _)| !text.is_empty()).collect(),
            space: String::new(),
            held: String::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    pub fn push(&mut self, c: char) -> Chosen<T> {
        if self.held.is_empty() && c.is_whitespace() {
            self.space.push(c);
            return Chosen::More;
        }
        self.held.push(c);
        let held = self.held.as_str();
        if let Some((_, tag)) = self.options.iter().find(|(text, _)| *text == held) {
            return Chosen::Found(*tag);
        }
        if self.options.iter().any(|(text, _)| text.starts_with(held)) {
            return Chosen::More;
        }
        self.held.pop();
        Chosen::Other
    }

    /// Whether only white space was read so far.
    pub fn is_untouched(&self) -> bool {
        self.held.is_empty()
    }

    /// All that was read.
    pub fn take_text(&mut self) -> String {
        let mut text = std::mem::take(&mut self.space);
        text.push_str(&std::mem::take(&mut self.held));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_at_any_offset() {
        for (text, released, found) in [
            ("plain", "plain", None),
            ("<<<a>", "<<", Some("<a>")),
            ("<a<b>", "<a", Some("<b>")),
            ("x<ab", "x", None),
        ] {
            let mut scan = Scan::new(vec![("<a>", ()), ("<b>", ()), ("<abc>", ())]);
            let mut out = String::new();
            let hit = text.chars().find_map(|c| scan.push(c, &mut out));
            assert_eq!(out, released, "{text}");
            assert_eq!(hit.map(|(marker, ())| marker), found, "{text}");
        }
    }

    #[test]
    fn tail_holds_possible_marker_start() {
        let scan = Scan::new(vec![("<tool>", ())]);
        for (text, from, tail) in [("abc", 0, 3), ("ab<to", 0, 2), ("<to", 1, 3), ("é<", 0, 2)] {
            assert_eq!(scan.tail(text, from), tail, "{text}");
        }
    }
}
