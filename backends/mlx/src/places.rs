//! Where new tokens rotate and how far they see, for sequences with media.

use loquat_session::sequences::TokenPlace;

/// The places of a row's new tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPlaces {
    pub rope: RopePlaces,
    /// For each token the first position that it does not attend to, in layers that look ahead.
    /// `None`: the one after itself.
    pub seen_ends: Option<Vec<usize>>,
}

/// Positions of ropes with several axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RopePlaces {
    /// One after another from this one, the same on all axes.
    From(usize),
    /// Frame, row and column of each token.
    Each(Vec<[usize; 3]>),
}

impl RowPlaces {
    /// For text that begins at `start`.
    pub fn text(start: usize) -> Self {
        Self {
            rope: RopePlaces::From(start),
            seen_ends: None,
        }
    }

    /// For tokens from position `start` on.
    pub fn new(start: usize, places: &[TokenPlace]) -> Self {
        let first = places.first().map_or(start, |place| place.rope[0]);
        let mut in_line = places.iter().zip(first..);
        let mut causal = places.iter().zip(start + 1..);
        Self {
            rope: if in_line.all(|(place, at)| place.rope == [at; 3]) {
                RopePlaces::From(first)
            } else {
                RopePlaces::Each(places.iter().map(|place| place.rope).collect())
            },
            seen_ends: if causal.all(|(place, end)| place.seen_end == end) {
                None
            } else {
                Some(places.iter().map(|place| place.seen_end).collect())
            },
        }
    }
}

impl RopePlaces {
    /// Frame, row and column of each of `tokens`.
    pub fn each(&self, tokens: usize) -> Vec<[usize; 3]> {
        match self {
            Self::From(first) => (*first..first + tokens).map(|at| [at; 3]).collect(),
            Self::Each(places) => places.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rope: [usize; 3], seen_end: usize) -> TokenPlace {
        TokenPlace { rope, seen_end }
    }

    #[test]
    fn text_after_media_is_a_line() {
        let after = [place([3; 3], 8), place([4; 3], 9)];
        let found = RowPlaces::new(7, &after);
        assert_eq!((found.rope, found.seen_ends), (RopePlaces::From(3), None));
        assert_eq!(RowPlaces::new(7, &[]), RowPlaces::text(7));
    }

    #[test]
    fn grids_and_masks_are_kept_for_each_token() {
        let grid = [place([3, 3, 3], 5), place([3, 3, 4], 6)];
        let found = RowPlaces::new(4, &grid);
        let each = vec![[3, 3, 3], [3, 3, 4]];
        assert_eq!(
            (found.rope, found.seen_ends),
            (RopePlaces::Each(each), None)
        );
        let two_way = [place([4; 3], 6), place([5; 3], 6)];
        let found = RowPlaces::new(4, &two_way);
        assert_eq!(found.rope, RopePlaces::From(4));
        assert_eq!(found.seen_ends, Some(vec![6, 6]));
    }
}
