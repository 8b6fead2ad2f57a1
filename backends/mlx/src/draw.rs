//! Samples tokens on the device, so that no logits are copied to the host.

use loquat_session::Draw;

use crate::array::{Array, Binary, Ops, Reduce, Type, Unary};
use crate::error::MlxError;
use crate::pass::NO_TOKEN;

/// One token for each row of `logits` [rows, vocab], float32, by its [`Draw`]; [`NO_TOKEN`] if a
/// logit is NaN.
pub fn draw(ops: &Ops, logits: &Array, draws: &[Draw]) -> Result<Array, MlxError> {
    let (rows, vocab) = (logits.dim(0), logits.dim(1));
    let per_row = |value: fn(&Draw) -> f32| {
        let values: Vec<f32> = draws.iter().map(value).collect();
        ops.upload_f32(&values, &[rows, 1])
    };
    let order = ops.argsort(&ops.scale(logits, -1.0)?, 1)?;
    let logits = ops.take_along(logits, &order, 1)?;
    let peak = ops.slice(&logits, &[0, 0], &[rows, 1])?;
    let below = ops.binary(Binary::Subtract, &logits, &peak)?;
    let cooled = ops.multiply(&below, &per_row(|draw| 1.0 / draw.temperature)?)?;
    let mut weights = ops.unary(Unary::Exp, &cooled)?;
    let zero = ops.full(&[1], 0.0, Type::F32)?;
    if draws.iter().any(|draw| draw.top_k > 0) {
        let ranks = ops.arange(0, vocab, Type::F32)?;
        let last_kept = per_row(|draw| match draw.top_k {
            0 => f32::MAX,
            kept => kept as f32 - 1.0,
        })?;
        let kept = ops.binary(Binary::GreaterEqual, &last_kept, &ranks)?;
        weights = ops.select(&kept, &weights, &zero)?;
    }
    if draws.iter().any(|draw| draw.top_p < 1.0) {
        let sums = ops.cumsum(&weights, 1)?;
        let before = ops.binary(Binary::Subtract, &sums, &weights)?;
        let mass = ops.multiply(&last(ops, &sums)?, &per_row(|draw| draw.top_p)?)?;
        let beyond = ops.binary(Binary::GreaterEqual, &before, &mass)?;
        weights = ops.select(&beyond, &zero, &weights)?;
    }
    if draws.iter().any(|draw| draw.min_p > 0.0) {
        let min_p = per_row(|draw| draw.min_p)?;
        let kept = ops.binary(Binary::GreaterEqual, &weights, &min_p)?;
        weights = ops.select(&kept, &weights, &zero)?;
    }
    let sums = ops.cumsum(&weights, 1)?;
    let total = last(ops, &sums)?;
    let target = ops.multiply(&total, &per_row(|draw| draw.unit)?)?;
    let passed = ops.binary(Binary::GreaterEqual, &sums, &target)?;
    let index = ops.reduce(Reduce::ArgMax, &ops.astype(&passed, Type::I32)?, 1, true)?;
    let tokens = ops.take_along(&order, &index, 1)?;
    let is_number = ops.binary(Binary::GreaterEqual, &total, &zero)?;
    let tokens = ops.select(&is_number, &tokens, &ops.upload_u32(&[NO_TOKEN], &[1])?)?;
    ops.reshape(&tokens, &[-1])
}

/// The last column.
fn last(ops: &Ops, sums: &Array) -> Result<Array, MlxError> {
    let (rows, columns) = (sums.dim(0), sums.dim(1));
    ops.slice(sums, &[0, columns - 1], &[rows, columns])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn draws_equal_the_reference() {
        let Some(ops) = testing::ops() else {
            return;
        };
        const VOCAB: usize = 300;
        let shapes = [
            (1.0, 0, 1.0, 0.0),
            (0.7, 0, 0.9, 0.0),
            (1.5, 20, 0.95, 0.05),
            (0.3, 1, 0.5, 0.0),
            (2.0, 0, 1.0, 0.3),
        ];
        let units = [0.001, 0.2, 0.4, 0.6, 0.8, 0.998];
        let draws: Vec<Draw> = shapes
            .iter()
            .flat_map(|&(temperature, top_k, top_p, min_p)| {
                units.map(|unit| Draw {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    unit,
                })
            })
            .collect();
        let noise: Vec<f32> = testing::noise(draws.len() * VOCAB, 5);
        let logits: Vec<f32> = noise.iter().map(|value| value * 6.0).collect();
        let dims = [draws.len() as i32, VOCAB as i32];
        let array = ops.upload_f32(&logits, &dims).unwrap();
        let mut tokens = vec![0; draws.len()];
        let drawn = draw(&ops, &array, &draws).unwrap();
        ops.read_u32(&drawn, &mut tokens).unwrap();
        for ((draw, row), token) in draws.iter().zip(logits.chunks(VOCAB)).zip(tokens) {
            assert_eq!(draw.choose(row), Some(token), "{draw:?}");
        }
    }

    #[test]
    fn nan_logits_give_no_token() {
        let Some(ops) = testing::ops() else {
            return;
        };
        let any = Draw {
            temperature: 1.0,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.0,
            unit: 0.5,
        };
        let logits = ops.upload_f32(&[1.0, f32::NAN, 2.0, 5.0, 1.0, 1.0], &[2, 3]);
        let drawn = draw(&ops, &logits.unwrap(), &[any; 2]).unwrap();
        let mut tokens = [0; 2];
        ops.read_u32(&drawn, &mut tokens).unwrap();
        assert_eq!(tokens, [NO_TOKEN, 0]);
    }
}
