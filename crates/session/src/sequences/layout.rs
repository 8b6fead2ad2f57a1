//! Where a sequence's media are, and what follows from it: rotary positions, masks, and the
//! lengths at which the sequence can be cut.

use std::ops::Range;

use loquat_spec::{MediaAttention, ModelSpec};

use crate::{MediaLayout, SessionError, ViewLayout};

/// What the model's spec says about media.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaRules {
    /// What positions of media attend to.
    pub attention: MediaAttention,
    /// Positions that encoded media may hold together.
    pub capacity: usize,
}

impl MediaRules {
    /// Of `spec`, for sessions that keep up to `capacity` encoded positions.
    pub fn new(spec: &ModelSpec, capacity: usize) -> Self {
        Self {
            attention: spec.media_attention(),
            capacity,
        }
    }
}

/// A part of a view inside a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedView {
    /// Where in the sequence it begins.
    pub start: usize,
    /// Positions of the part.
    pub len: usize,
    /// The view.
    pub view: ViewLayout,
    /// Where in the view it begins.
    pub offset: usize,
    /// Rotary position of the view's first frame, row and column.
    pub base: usize,
}

impl PlacedView {
    fn end(&self) -> usize {
        self.start + self.len
    }

    /// Its positions in a range of the sequence's.
    pub(super) fn part(&self, range: &Range<usize>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end().min(range.end));
        (start < end).then(|| Self {
            start,
            len: end - start,
            offset: self.offset + start - self.start,
            ..*self
        })
    }

    /// Whether it goes on with the view where another part ends.
    pub(super) fn continues(&self, other: &Self) -> bool {
        other.end() == self.start
            && other.view == self.view
            && other.base == self.base
            && other.offset + other.len == self.offset
    }
}

/// The media of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SequenceLayout {
    /// Ascending. Only views that matter to positions or masks.
    pub views: Vec<PlacedView>,
    /// Positions at the beginning that attend to each other.
    pub prefix: usize,
}

/// Where a position rotates, and how far it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenPlace {
    /// Rotary position by frame, row and column; equal for text.
    pub rope: [usize; 3],
    /// The first position that it does not attend to, in layers that
    /// [look ahead](MediaAttention::applies_to).
    pub seen_end: usize,
}

/// Rotary position of sequence position `at`, after these views.
fn rope_position(views: &[PlacedView], at: usize) -> [usize; 3] {
    let before = views.partition_point(|placed| placed.start <= at);
    let mut earlier = views[..before].iter().rev();
    let last = earlier.find_map(|placed| Some((placed, placed.view.grid?)));
    match last {
        None => [at; 3],
        Some((placed, grid)) if at < placed.end() => {
            let offset = grid.offset(placed.offset + at - placed.start);
            offset.map(|offset| placed.base + offset)
        }
        Some((placed, grid)) => [placed.base + grid.extent() + at - placed.end(); 3],
    }
}

impl SequenceLayout {
    /// The media of the first `len` positions. `len` must be a [cut](Self::cut).
    pub fn prefix_of(&self, len: usize) -> Self {
        let views = self.views.iter().filter(|placed| placed.start < len);
        Self {
            views: views
                .map(|placed| PlacedView {
                    len: placed.len.min(len - placed.start),
                    ..*placed
                })
                .collect(),
            prefix: if len == 0 { 0 } else { self.prefix },
        }
    }

    /// The longest length up to `at_most` that does not cut positions that attend to each other.
    pub fn cut(&self, at_most: usize, attention: MediaAttention) -> usize {
        match attention {
            MediaAttention::Causal => at_most,
            MediaAttention::FirstRow if at_most < self.prefix => 0,
            MediaAttention::FirstRow => at_most,
            MediaAttention::View | MediaAttention::WindowedView => {
                let before = self.views.partition_point(|view| view.start < at_most);
                let last = self.views[..before].last();
                match last.filter(|view| at_most < view.end()) {
                    Some(view) => view.start,
                    None => at_most,
                }
            }
        }
    }

    /// Adds what positions `start..start + len` of `media`'s `range` bring to `added`.
    pub(super) fn place(
        &self,
        added: &mut Vec<PlacedView>,
        start: usize,
        media: &MediaLayout,
        range: Range<usize>,
    ) -> Result<(), SessionError> {
        let all = media.positions();
        let refuse = |why| {
            Err(SessionError::MediaRange {
                start: range.start,
                end: range.end,
                positions: all,
                why,
            })
        };
        if range.is_empty() || range.end > all {
            return refuse("it must lie within the media's positions");
        }
        let mut first = 0;
        for view in &media.views {
            let (begin, end) = (first, first + view.positions);
            first = end;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from >= to {
                continue;
            }
            let whole = (from, to) == (begin, end);
            if !media.divisible && !whole {
                return refuse("the model reads whole views, in one row");
            }
            if media.divisible && view.grid.is_none() {
                continue;
            }
            let (at, offset) = (start + from - range.start, from - begin);
            let base = if offset == 0 {
                self.rope_after(added, at)
            } else {
                let last = added.last().or(self.views.last());
                let continued = last.filter(|last| {
                    last.end() == at && last.view == *view && last.offset + last.len == offset
                });
                match continued {
                    Some(last) => last.base,
                    None => {
                        return refuse("it begins inside a view that the sequence does not end in");
                    }
                }
            };
            added.push(PlacedView {
                start: at,
                len: to - from,
                view: *view,
                offset,
                base,
            });
        }
        Ok(())
    }

    fn rope_after(&self, added: &[PlacedView], at: usize) -> usize {
        let views = if added.iter().any(|placed| placed.view.grid.is_some()) {
            added
        } else {
            &self.views
        };
        rope_position(views, at)[0]
    }

    /// The places of a row at `start..end` that adds `views`. `None` if they are those of text:
    /// each position rotates by its number and sees up to itself.
    pub(super) fn places(
        &self,
        (start, end): (usize, usize),
        added: &[PlacedView],
        attention: MediaAttention,
    ) -> Option<Vec<TokenPlace>> {
        let opens_prefix = attention == MediaAttention::FirstRow && start == 0;
        if self.views.is_empty() && added.is_empty() && !opens_prefix {
            return None;
        }
        let all: Vec<PlacedView> = self.views.iter().chain(added).copied().collect();
        let place = |at: usize| {
            let inside = added
                .iter()
                .find(|placed| (placed.start..placed.end()).contains(&at));
            TokenPlace {
                rope: rope_position(&all, at),
                seen_end: match (attention, inside) {
                    (MediaAttention::FirstRow, _) if opens_prefix => end,
                    (MediaAttention::View | MediaAttention::WindowedView, Some(placed)) => {
                        placed.end()
                    }
                    _ => at + 1,
                },
            }
        };
        Some((start..end).map(place).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PositionGrid;

    fn grid(frames: usize, rows: usize, cols: usize) -> ViewLayout {
        ViewLayout {
            positions: frames * rows * cols,
            grid: Some(PositionGrid {
                rows,
                cols,
                frames,
                frame_step: 1,
            }),
        }
    }

    fn media(views: Vec<ViewLayout>, divisible: bool) -> MediaLayout {
        MediaLayout { views, divisible }
    }

    #[test]
    fn text_continues_after_the_longest_axis() {
        let mut layout = SequenceLayout::default();
        let mut added = Vec::new();
        let picture = media(vec![grid(1, 2, 4)], true);
        layout.place(&mut added, 3, &picture, 0..8).unwrap();
        layout.views.extend(added);
        let rope = |at| rope_position(&layout.views, at);
        assert_eq!(rope(2), [2; 3]);
        assert_eq!(rope(3), [3; 3]);
        assert_eq!(rope(6), [3, 3, 6]);
        assert_eq!(rope(10), [3, 4, 6]);
        assert_eq!(rope(11), [7; 3]);
    }

    #[test]
    fn view_in_two_rows_equals_one() {
        let picture = media(vec![grid(2, 2, 2)], true);
        let mut whole = Vec::new();
        SequenceLayout::default()
            .place(&mut whole, 1, &picture, 0..8)
            .unwrap();
        let mut layout = SequenceLayout::default();
        for range in [0..3, 3..8] {
            let mut added = Vec::new();
            layout
                .place(&mut added, 1 + range.start, &picture, range)
                .unwrap();
            layout.views.extend(added);
        }
        for at in 0..20 {
            assert_eq!(
                rope_position(&layout.views, at),
                rope_position(&whole, at),
                "{at}"
            );
        }
        let mut added = Vec::new();
        let refused = layout.place(&mut added, 30, &picture, 3..8);
        assert!(matches!(refused, Err(SessionError::MediaRange { .. })));
    }

    #[test]
    fn whole_views_are_not_cut() {
        let plain = |positions| ViewLayout {
            positions,
            grid: None,
        };
        let frames = media(vec![plain(4), plain(4)], false);
        let mut layout = SequenceLayout::default();
        let mut added = Vec::new();
        for range in [1..4, 0..3, 0..6, 8..9, 0..9] {
            let refused = layout.place(&mut Vec::new(), 0, &frames, range.clone());
            assert!(
                matches!(refused, Err(SessionError::MediaRange { .. })),
                "{range:?}"
            );
        }
        layout.place(&mut added, 2, &frames, 4..8).unwrap();
        let places = layout.places((0, 8), &added, MediaAttention::View).unwrap();
        let ends: Vec<usize> = places.iter().map(|place| place.seen_end).collect();
        assert_eq!(ends, [1, 2, 6, 6, 6, 6, 7, 8]);
        layout.views.extend(added);
        let cuts: Vec<usize> = (0..9)
            .map(|len| layout.cut(len, MediaAttention::View))
            .collect();
        assert_eq!(cuts, [0, 1, 2, 2, 2, 2, 6, 7, 8]);
    }
}
