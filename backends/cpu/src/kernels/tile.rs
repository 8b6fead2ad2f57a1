//! Integer tiles: sixteen rows of quantized weights times quantized activations.
//!
//! Inside a group the products are whole numbers and their sum is exact; between groups one
//! fused multiply-add per row runs in the groups' order. So every version gives the same bits.

use super::{GROUP, SUM_GROUP, f16_to_f32};

/// Weight rows in a tile.
pub const TILE_ROWS: usize = 16;
/// Four columns of each row: what lies in one register.
pub const LINE: usize = 4 * TILE_ROWS;

/// Sixteen rows of a packed matrix, all its parts at the size the file had them.
///
/// Codes lie in quads: four neighbouring columns of row 0, then of row 1, … one [`LINE`] in all;
/// eight quads make a block of [`GROUP`] columns.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub codes: Codes,
    /// Columns that share a weight scale: 16 or 32.
    pub group: usize,
    /// The code that stands for 0 where there are no `mins`.
    pub zero: i32,
    /// Whole codes of eight bits, or the lower four: those of quad `c` of a block (low nibbles)
    /// share a line with those of quad `c + 4` (high nibbles).
    pub lines: &'a [u8],
    /// The bits above the lower four, where there are any. A fifth: eight bytes for each quad, a
    /// bit for each of its line's bytes. Two more: quad `c` of a block has bits `c % 4 * 2` and
    /// the next of each byte of line `c / 4`.
    pub planes: &'a [u8],
    pub scales: Scales<'a>,
    /// What a code of 0 stands for, where it is not `-zero * scale`. Only with groups of 32.
    pub mins: Option<Scales<'a>>,
}

/// How codes are stored and what they count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    Four,
    /// Four-bit floats (e2m1): a code is [`FP4_CODES`] of what is stored.
    Fp4,
    Five,
    Six,
    Eight,
}

/// Twice each e2m1 value, sign in the highest bit, above [`FP4_ZERO`].
pub const FP4_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
pub const FP4_ZERO: i32 = 12;

impl Codes {
    /// Bytes of a block in `lines` and in `planes`.
    pub const fn block_bytes(self) -> (usize, usize) {
        match self {
            Self::Four | Self::Fp4 => (4 * LINE, 0),
            Self::Five => (4 * LINE, LINE),
            Self::Six => (4 * LINE, 2 * LINE),
            Self::Eight => (8 * LINE, 0),
        }
    }
}

/// A tile's scales or minimums.
#[derive(Clone, Copy)]
pub struct Scales<'a> {
    pub element: Element,
    /// Columns that share an element, as a power of two.
    pub span: u32,
    /// `[column >> span][row]`
    pub elements: &'a [u8],
    pub parts: Parts<'a>,
}

/// What each group multiplies its element by.
#[derive(Clone, Copy)]
pub enum Parts<'a> {
    None,
    /// `[column / group][row]`
    Unsigned(&'a [u8]),
    Signed(&'a [u8]),
}

/// A number as it is stored, the least significant byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F32,
    F16,
    Bf16,
    /// 2^(code - 128), half of what an e8m0 scale says, as [`FP4_CODES`] are doubled.
    HalfE8m0,
}

impl Element {
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::HalfE8m0 => 1,
        }
    }

    fn value(self, bytes: &[u8]) -> f32 {
        let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        match self {
            Self::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Self::F16 => f16_to_f32(half(bytes)),
            Self::Bf16 => f32::from_bits(u32::from(half(bytes)) << 16),
            Self::HalfE8m0 if bytes[0] == u8::MAX => f32::NAN,
            // The smallest power is below the normal range, where shifting gives nothing.
            Self::HalfE8m0 => f32::from_bits((u32::from(bytes[0]) << 23).max(1 << 22)) * 0.5,
        }
    }
}

impl Scales<'_> {
    /// Of the group that has `col`.
    pub fn value(&self, row: usize, col: usize, group: usize) -> f32 {
        let size = self.element.bytes();
        let at = ((col >> self.span) * TILE_ROWS + row) * size;
        let element = self.element.value(&self.elements[at..at + size]);
        let part = col / group * TILE_ROWS + row;
        match self.parts {
            Parts::None => element,
            Parts::Unsigned(parts) => element * f32::from(parts[part]),
            Parts::Signed(parts) => element * f32::from(parts[part] as i8),
        }
    }

    fn check(&self, cols: usize, group: usize) {
        let elements = cols.div_ceil(1 << self.span) * TILE_ROWS;
        assert!(1 << self.span >= group);
        assert_eq!(self.elements.len(), elements * self.element.bytes());
        match self.parts {
            Parts::None => {}
            Parts::Unsigned(parts) | Parts::Signed(parts) => {
                assert_eq!(parts.len(), cols / group * TILE_ROWS);
            }
        }
    }
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
        let blocks = self.cols / GROUP;
        let (lines, planes) = tile.codes.block_bytes();
        assert!(self.cols.is_multiple_of(GROUP) && matches!(tile.group, SUM_GROUP | GROUP));
        assert!(tile.group == GROUP || tile.mins.is_none());
        assert_eq!(tile.lines.len(), blocks * lines);
        assert_eq!(tile.planes.len(), blocks * planes);
        for scales in tile.mins.iter().chain([&tile.scales]) {
            scales.check(self.cols, tile.group);
        }
        assert!(self.codes.len() >= self.tokens * self.cols);
        assert!(self.scales.len() >= self.tokens * blocks);
        assert!(self.sums.len() >= self.tokens * self.cols / SUM_GROUP);
        assert!(self.scaled_sums.len() >= self.tokens * blocks);
    }
}

impl Tile<'_> {
    /// The code of `row` at `col`.
    pub fn code(&self, row: usize, col: usize) -> i32 {
        let (block, quad) = (col / GROUP, col % GROUP / 4);
        let byte = row * 4 + col % 4;
        if self.codes == Codes::Eight {
            return i32::from(self.lines[(block * 8 + quad) * LINE + byte]);
        }
        let pair = self.lines[(block * 4 + quad % 4) * LINE + byte];
        let low = if quad < 4 { pair & 15 } else { pair >> 4 };
        let code = match self.codes {
            Codes::Fp4 => FP4_CODES[usize::from(low)],
            Codes::Five => {
                let bits = self.planes[block * LINE + quad * 8 + byte / 8];
                low | (bits >> (byte % 8) & 1) << 4
            }
            Codes::Six => {
                let bits = self.planes[(block * 2 + quad / 4) * LINE + byte];
                low | (bits >> (quad % 4 * 2) & 3) << 4
            }
            Codes::Four | Codes::Eight => low,
        };
        i32::from(code)
    }
}

/// The scalar reference: `out[token * stride + row]` for sixteen rows.
///
/// # Safety
/// `out` must be valid for writes of `TILE_ROWS` values at every `token * stride`.
pub unsafe fn portable(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    for row in 0..TILE_ROWS {
        let codes: Vec<i32> = (0..input.cols).map(|col| tile.code(row, col)).collect();
        for token in 0..input.tokens {
            let total = row_by_token(tile, input, &codes, (row, token));
            // SAFETY: the caller promises sixteen writable values at `token * stride`.
            unsafe { out.add(token * stride + row).write(total) };
        }
    }
}

fn row_by_token(
    tile: &Tile,
    input: &TileInput,
    codes: &[i32],
    (row, token): (usize, usize),
) -> f32 {
    let x = &input.codes[token * input.cols..(token + 1) * input.cols];
    let sums = &input.sums[token * input.cols / SUM_GROUP..];
    let mut total = 0.0f32;
    for group in 0..input.cols / tile.group {
        let cols = group * tile.group..(group + 1) * tile.group;
        let products = codes[cols.clone()].iter().zip(&x[cols.clone()]);
        let dot: i32 = products.map(|(code, x)| code * i32::from(*x)).sum();
        let sums = &sums[cols.start / SUM_GROUP..cols.end / SUM_GROUP];
        let signed = dot - tile.zero * sums.iter().sum::<i32>();
        let of_activation = (token * input.cols + cols.start) / GROUP;
        let scale = tile.scales.value(row, cols.start, tile.group);
        total = (signed as f32).mul_add(scale * input.scales[of_activation], total);
        if let Some(mins) = tile.mins {
            let min = mins.value(row, cols.start, tile.group);
            total = min.mul_add(input.scaled_sums[of_activation], total);
        }
    }
    total
}
