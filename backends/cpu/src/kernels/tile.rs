//! Integer tiles: sixteen rows of quantized weights times quantized activations.
//!
//! Inside a group the products are whole numbers and their sum is exact; between groups one
//! fused multiply-add per row runs in the groups' order. So every version gives the same bits.

use super::{GROUP, SUM_GROUP};

/// Weight rows in a tile.
pub const TILE_ROWS: usize = 16;

/// Sixteen rows of a packed matrix.
///
/// Codes lie in quads: four neighbouring columns of row 0, then of row 1, … 64 bytes in all.
/// Four-bit codes share those 64 bytes between quad `c` of a group (low nibbles) and quad
/// `c + 4` (high nibbles).
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub codes: &'a [u8],
    pub four_bit: bool,
    /// Columns that share a weight scale: 16 or 32.
    pub group: usize,
    /// `[group][row]`
    pub scales: Scales<'a>,
    /// `[group][row]`: what a code of 0 stands for, where it is not `-zero * scale`.
    pub mins: Option<Scales<'a>>,
    /// The code that stands for 0 where there are no `mins`.
    pub zero: i32,
}

/// Sixteen-bit where that is exact, which halves their traffic.
#[derive(Clone, Copy)]
pub enum Scales<'a> {
    F16(&'a [u16]),
    F32(&'a [f32]),
}

/// Quantized activations: `tokens` rows of `cols` codes.
pub struct TileInput<'a> {
    pub tokens: usize,
    pub cols: usize,
    pub codes: &'a [i8],
    /// Per [`GROUP`] columns.
    pub scales: &'a [f32],
    /// Per [`SUM_GROUP`] columns: the sum of the codes.
    pub sums: &'a [i32],
    /// Per [`GROUP`] columns: scale times sum.
    pub scaled_sums: &'a [f32],
}

impl TileInput<'_> {
    /// What every version asserts before it trusts lengths.
    pub fn check(&self, tile: &Tile) {
        let groups = self.cols / tile.group;
        let quads = self.cols / 4;
        assert!(self.cols.is_multiple_of(GROUP) && matches!(tile.group, 16 | 32));
        assert!(tile.group == GROUP || (!tile.four_bit && tile.mins.is_none()));
        let code_bytes = quads * 64 / if tile.four_bit { 2 } else { 1 };
        assert_eq!(tile.codes.len(), code_bytes);
        assert_eq!(tile.scales.len(), groups * TILE_ROWS);
        assert!(
            tile.mins
                .is_none_or(|mins| mins.len() == groups * TILE_ROWS)
        );
        assert!(self.codes.len() >= self.tokens * self.cols);
        assert!(self.scales.len() >= self.tokens * self.cols / GROUP);
        assert!(self.sums.len() >= self.tokens * self.cols / SUM_GROUP);
        assert!(self.scaled_sums.len() >= self.tokens * self.cols / GROUP);
    }
}

impl Scales<'_> {
    pub fn len(&self) -> usize {
        match self {
            Scales::F16(values) => values.len(),
            Scales::F32(values) => values.len(),
        }
    }

    pub fn get(&self, index: usize) -> f32 {
        match self {
            Scales::F16(values) => super::f16_to_f32(values[index]),
            Scales::F32(values) => values[index],
        }
    }
}

impl Tile<'_> {
    /// The code of `row` at `col`.
    pub fn code(&self, row: usize, col: usize) -> i32 {
        if !self.four_bit {
            return i32::from(self.codes[col / 4 * 64 + row * 4 + col % 4]);
        }
        let (group, within) = (col / GROUP, col % GROUP);
        let quad = within / 4 % 4;
        let byte = self.codes[(group * 4 + quad) * 64 + row * 4 + col % 4];
        i32::from(if within < GROUP / 2 {
            byte & 15
        } else {
            byte >> 4
        })
    }
}

/// The scalar reference: `out[token * stride + row]` for sixteen rows.
///
/// # Safety
/// `out` must be valid for writes of `TILE_ROWS` values at every `token * stride`.
pub unsafe fn portable(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    let groups = input.cols / tile.group;
    for token in 0..input.tokens {
        let x = &input.codes[token * input.cols..(token + 1) * input.cols];
        for row in 0..TILE_ROWS {
            let mut total = 0.0f32;
            for group in 0..groups {
                let cols = group * tile.group..(group + 1) * tile.group;
                let dot: i32 = cols
                    .map(|col| tile.code(row, col) * i32::from(x[col]))
                    .sum();
                let sums = &input.sums[token * input.cols / SUM_GROUP..];
                let sums =
                    &sums[group * tile.group / SUM_GROUP..(group + 1) * tile.group / SUM_GROUP];
                let activation_group = (token * input.cols + group * tile.group) / GROUP;
                let index = group * TILE_ROWS + row;
                let signed = dot - tile.zero * sums.iter().sum::<i32>();
                let scale = tile.scales.get(index) * input.scales[activation_group];
                total = (signed as f32).mul_add(scale, total);
                if let Some(mins) = tile.mins {
                    total = mins
                        .get(index)
                        .mul_add(input.scaled_sums[activation_group], total);
                }
            }
            // SAFETY: the caller promises sixteen writable values at `token * stride`.
            unsafe { out.add(token * stride + row).write(total) };
        }
    }
}
