//! The features of media: how they are computed, and how they enter a step. They take the place of embedded tokens, and further levels
//! are added to the stream after the first layers.

use std::ops::Range;

use loquat_session::{Media, SessionError};
use loquat_spec::ModelSpec;

use crate::array::{Array, Ops, Reduce, Type, slice_axis};
use crate::error::MlxError;
use crate::model::Model;

/// The features of encoded media: for each level [positions, hidden].
#[derive(Clone)]
pub struct MediaFeatures {
    pub levels: Vec<Array>,
}

impl MediaFeatures {
    /// `[level][position][hidden]`
    pub fn read(&self, ops: &Ops) -> Result<Vec<f32>, MlxError> {
        let mut values = Vec::new();
        for level in &self.levels {
            let start = values.len();
            values.resize(start + (level.dim(0) * level.dim(1)) as usize, 0.0);
            let level = ops.astype(level, Type::F32)?;
            ops.read_f32(&level, &mut values[start..])?;
        }
        Ok(values)
    }
}

/// Computes the features of media whose layout has been checked.
pub fn encode(
    ops: &Ops,
    model: &Model,
    spec: &ModelSpec,
    media: &Media,
) -> Result<MediaFeatures, SessionError> {
    let tower = model.tower.as_ref();
    let tower = || tower.ok_or(SessionError::Unsupported("media"));
    let levels = match media {
        Media::Image(picture) => tower()?.encode(ops, picture, false)?,
        Media::Video(picture) => tower()?.encode(ops, picture, true)?,
        Media::Embeddings(values) => {
            let hidden = spec.hidden_size;
            let dims = [(values.len() / hidden) as i32, hidden as i32];
            vec![ops.astype(&ops.upload_f32(values, &dims)?, model.dtype)?]
        }
    };
    let checks = levels.iter().map(|level| zero_if_finite(ops, level));
    let checks = checks.collect::<Result<Vec<Array>, MlxError>>()?;
    ops.eval(&levels.iter().chain(&checks).collect::<Vec<_>>())?;
    for check in &checks {
        let mut sum = [0.0];
        ops.read_f32(check, &mut sum)?;
        if sum != [0.0] {
            return Err(SessionError::NotANumber);
        }
    }
    Ok(MediaFeatures { levels })
}

/// Zero, or NaN if a value is infinite or NaN.
fn zero_if_finite(ops: &Ops, x: &Array) -> Result<Array, MlxError> {
    let products = ops.scale(&ops.astype(x, Type::F32)?, 0.0)?;
    ops.reduce(Reduce::Sum, &ops.reshape(&products, &[-1])?, 0, false)
}

/// Positions of media in a row.
pub struct RowMedia {
    /// Where in the row they begin.
    pub at: usize,
    pub features: MediaFeatures,
    /// Which of the media's positions.
    pub range: Range<usize>,
}

/// The media among a step's tokens, in the tokens' order.
#[derive(Default)]
pub struct StepMedia {
    pieces: Vec<MediaPiece>,
}

struct MediaPiece {
    /// Of the step.
    tokens: Range<usize>,
    features: MediaFeatures,
    /// The media's position at the first of the tokens.
    first: usize,
}

impl StepMedia {
    /// Adds the part of a row's media among tokens `taken` of the row, of which the first is token
    /// `at` of the step.
    pub fn push(&mut self, media: &RowMedia, taken: &Range<usize>, at: usize) {
        let start = media.at.max(taken.start);
        let end = (media.at + media.range.len()).min(taken.end);
        if start < end {
            self.pieces.push(MediaPiece {
                tokens: at + start - taken.start..at + end - taken.start,
                features: media.features.clone(),
                first: media.range.start + start - media.at,
            });
        }
    }

    /// The stream `x`, [tokens, hidden], with features in place of media tokens.
    pub fn embed(&self, ops: &Ops, x: Array) -> Result<Array, MlxError> {
        if self.pieces.is_empty() {
            return Ok(x);
        }
        self.replace(ops, &x, 0)
    }

    /// The stream plus the features of a level, if any media have it.
    pub fn add(&self, ops: &Ops, x: Array, level: usize) -> Result<Array, MlxError> {
        let mut pieces = self.pieces.iter();
        if !pieces.any(|piece| piece.features.levels.len() > level) {
            return Ok(x);
        }
        let zeros = ops.full(&x.shape(), 0.0, x.dtype())?;
        ops.add(&x, &self.replace(ops, &zeros, level)?)
    }

    /// The rows of `x`, or features where there are some of this level.
    fn replace(&self, ops: &Ops, x: &Array, level: usize) -> Result<Array, MlxError> {
        let mut parts = Vec::new();
        let mut at = 0;
        for piece in &self.pieces {
            let Some(features) = piece.features.levels.get(level) else {
                continue;
            };
            if at < piece.tokens.start {
                parts.push(slice_axis(ops, x, 0, at..piece.tokens.start)?);
            }
            let range = piece.first..piece.first + piece.tokens.len();
            parts.push(slice_axis(ops, features, 0, range)?);
            at = piece.tokens.end;
        }
        let end = x.dim(0) as usize;
        if at < end {
            parts.push(slice_axis(ops, x, 0, at..end)?);
        }
        match <[Array; 1]>::try_from(parts) {
            Ok([whole]) => Ok(whole),
            Err(parts) => ops.concatenate(&parts.iter().collect::<Vec<_>>(), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, read};

    #[test]
    fn features_replace_and_add_to_rows() {
        let Some(ops) = testing::ops() else { return };
        let rows = |values: &[f32]| ops.upload_f32(values, &[values.len() as i32, 1]).unwrap();
        let levels = [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]];
        let two_levels = MediaFeatures {
            levels: levels.iter().map(|level| rows(level)).collect(),
        };
        let one_level = MediaFeatures {
            levels: vec![rows(&[5.0])],
        };
        let mut media = StepMedia::default();
        // Tokens 1 to 4 of a row whose media begin at token 2; only two fit this wave.
        let cut = RowMedia {
            at: 2,
            features: two_levels,
            range: 0..3,
        };
        media.push(&cut, &(1..4), 0);
        let whole = RowMedia {
            at: 0,
            features: one_level,
            range: 0..1,
        };
        media.push(&whole, &(0..2), 3);
        // Of another wave.
        media.push(&whole, &(1..2), 3);
        let x = || rows(&[-1.0, -2.0, -3.0, -4.0, -5.0]);
        let embedded = media.embed(&ops, x()).unwrap();
        assert_eq!(read(&ops, &embedded), [-1.0, 1.0, 2.0, 5.0, -5.0]);
        let added = media.add(&ops, x(), 1).unwrap();
        assert_eq!(read(&ops, &added), [-1.0, 8.0, 17.0, -4.0, -5.0]);
        let unchanged = media.add(&ops, x(), 2).unwrap();
        assert_eq!(read(&ops, &unchanged), [-1.0, -2.0, -3.0, -4.0, -5.0]);
    }

    #[test]
    fn values_that_are_not_numbers_are_found() {
        let Some(ops) = testing::ops() else { return };
        for (value, is_finite) in [(1e30, true), (f32::NAN, false), (f32::NEG_INFINITY, false)] {
            let x = ops.upload_f32(&[1.0, value, 2.0, 3.0], &[2, 2]).unwrap();
            let sum = read(&ops, &zero_if_finite(&ops, &x).unwrap());
            assert_eq!(sum == [0.0], is_finite, "{value}");
        }
    }
}
