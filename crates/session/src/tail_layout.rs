//! The bytes of exported tails, for backends.

use std::ops::Range;

use crate::SessionError;

/// What a tail consists of: the windows of the groups that are not in ranges, then the recurrent
/// state.
#[derive(Debug, Clone, Default)]
pub struct TailLayout {
    sections: Vec<TailSection>,
}

/// A run of units, none of which is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailSection {
    /// What the units are.
    pub content: TailContent,
    /// Positions, or numbers of the state.
    pub units: Range<usize>,
    /// Bytes of each.
    pub unit_bytes: usize,
}

/// What a part of a tail has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailContent {
    /// Positions of this group of layers.
    Window(usize),
    /// Numbers of the recurrent state.
    State,
}

impl TailSection {
    /// Bytes of all units.
    pub fn bytes(&self) -> usize {
        self.units.len() * self.unit_bytes
    }

    /// The units from a byte on: as many as have `most` bytes, but at least one. `None` if no unit
    /// begins there.
    fn from(&self, offset: usize, most: usize) -> Option<Self> {
        if !offset.is_multiple_of(self.unit_bytes) {
            return None;
        }
        let start = self.units.start + offset / self.unit_bytes;
        let count = (most / self.unit_bytes).max(1);
        Some(Self {
            units: start..start.saturating_add(count).min(self.units.end),
            ..self.clone()
        })
    }
}

impl TailLayout {
    /// Of these sections, of which empty ones are left out.
    pub fn new(sections: impl IntoIterator<Item = TailSection>) -> Self {
        let sections = sections.into_iter();
        Self {
            sections: sections.filter(|section| section.bytes() > 0).collect(),
        }
    }

    /// Bytes of the tail.
    pub fn bytes(&self) -> usize {
        self.sections.iter().map(TailSection::bytes).sum()
    }

    /// What an exported part has, and whether it is the last one. It begins at `part.start` and is
    /// not longer than `part`, unless a single unit is. `None` if the tail is empty.
    pub fn exported(
        &self,
        part: &Range<usize>,
    ) -> Result<(Option<TailSection>, bool), SessionError> {
        let refused = || SessionError::LengthOutOfRange {
            len: part.start,
            available: self.bytes(),
        };
        let mut left = part.start;
        for section in &self.sections {
            if left >= section.bytes() {
                left -= section.bytes();
                continue;
            }
            let section = section.from(left, part.len()).ok_or_else(refused)?;
            let is_last = part.start + section.bytes() == self.bytes();
            return Ok((Some(section), is_last));
        }
        if left > 0 {
            return Err(refused());
        }
        Ok((None, true))
    }

    /// What the next bytes of a tail are, of which `offset` are imported.
    pub fn imported<'b>(
        &self,
        offset: usize,
        bytes: &'b [u8],
    ) -> Result<Vec<(TailSection, &'b [u8])>, SessionError> {
        let refused = |why: &str| SessionError::BadImport(why.to_owned());
        let (mut left, mut bytes) = (offset, bytes);
        let mut parts = Vec::new();
        for section in &self.sections {
            if left >= section.bytes() {
                left -= section.bytes();
                continue;
            }
            if bytes.is_empty() {
                break;
            }
            let (own, rest) = bytes.split_at(bytes.len().min(section.bytes() - left));
            let whole = own.len().is_multiple_of(section.unit_bytes);
            let section = section.from(left, own.len()).filter(|_| whole);
            let section = section.ok_or_else(|| refused("a tail is not cut where it can be"))?;
            parts.push((section, own));
            (left, bytes) = (0, rest);
        }
        if !bytes.is_empty() {
            return Err(refused("a tail is too long"));
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(content: TailContent, units: Range<usize>, unit_bytes: usize) -> TailSection {
        TailSection {
            content,
            units,
            unit_bytes,
        }
    }

    fn layout() -> TailLayout {
        TailLayout::new([
            section(TailContent::Window(1), 32..35, 10),
            section(TailContent::Window(2), 0..0, 10),
            section(TailContent::State, 0..4, 4),
        ])
    }

    #[test]
    fn parts_end_between_units() {
        let window = |units| section(TailContent::Window(1), units, 10);
        let state = |units| section(TailContent::State, units, 4);
        let cases = [
            (0..1, window(32..33), false),
            (0..29, window(32..34), false),
            (0..100, window(32..35), false),
            (20..25, window(34..35), false),
            (30..39, state(0..2), false),
            (38..60, state(2..4), true),
        ];
        for (part, expected, is_last) in cases {
            assert_eq!(layout().exported(&part), Ok((Some(expected), is_last)));
        }
        for wrong in [5..10, 31..40, 47..50] {
            assert!(layout().exported(&wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(TailLayout::default().exported(&(0..9)), Ok((None, true)));
    }

    #[test]
    fn imports_may_span_sections() {
        let bytes: Vec<u8> = (0..46).collect();
        let parts = layout().imported(20, &bytes[20..38]).unwrap();
        let expected = [
            (section(TailContent::Window(1), 34..35, 10), &bytes[20..30]),
            (section(TailContent::State, 0..2, 4), &bytes[30..38]),
        ];
        assert_eq!(parts, expected);
        assert_eq!(layout().imported(46, &[]), Ok(Vec::new()));
        for (offset, end) in [(0, 5), (5, 20), (0, 33)] {
            assert!(layout().imported(offset, &bytes[offset..end]).is_err());
        }
        assert!(layout().imported(42, &bytes[..8]).is_err(), "too long");
    }
}
