//! Integer tiles: sixteen rows of quantized weights times quantized activations.
//!
//! Inside a group the products are whole numbers and their sum is exact; between groups one
//! fused multiply-add per row runs in the groups' order. So every version gives the same bits.

use super::{GROUP, SUM_GROUP, f16_to_f32};

/// Weight rows in a tile.
pub const TILE_ROWS: usize = 16;
/// Four columns of each row: what lies in one register.
pub const LINE: usize = 4 * TILE_ROWS;

/// Sixteen rows of a packed matrix, at their size in the file, in the order in which a kernel reads
/// them: memory delivers one stream at twice the speed of several.
///
/// Columns come in blocks of [`GROUP`], and blocks in runs that share their scales' elements. A
/// run begins with these, for each row the scale's and then for each row the minimum's; a block
/// has its lines, its planes, and its sub-scales of scales and minimums, as far as the format has
/// them.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub form: TileFormat,
    pub bytes: &'a [u8],
}

/// How a matrix's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileFormat {
    pub codes: Codes,
    /// Columns that share a weight scale: 16 or 32.
    pub group: usize,
    /// Blocks in a run.
    pub run: usize,
    pub scale: Element,
    /// The value of code 0, if [`Codes::zero`] is not the code for 0. Only with groups of 32.
    pub min: Option<Element>,
    pub sub_scales: SubScales,
}

/// How codes are stored and what they count. They lie in quads: four neighbouring columns of row
/// 0, then of row 1, … one [`LINE`] in all; eight quads make a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// The codes of quad `c` of a block (low nibbles) share a line with those of quad `c + 4`
    /// (high nibbles).
    Four,
    /// Four-bit floats (e2m1): a code is `FP4_CODES` of what is stored.
    Fp4,
    /// Beside the lower four bits a plane with the fifth: eight bytes for each quad, a bit for
    /// each of its line's bytes.
    Five,
    /// Beside the lower four bits two planes with the others: quad `c` of a block has bits
    /// `c % 4 * 2` and the next of each byte of plane `c / 4`.
    Six,
    Eight,
}

/// Twice each e2m1 value, sign in the highest bit, above [`FP4_ZERO`].
pub const FP4_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
const FP4_ZERO: i32 = 12;

impl Codes {
    /// The code for 0 in formats without minimums.
    pub const fn zero(self) -> i32 {
        match self {
            Self::Four => 8,
            Self::Fp4 => FP4_ZERO,
            Self::Five => 16,
            Self::Six => 32,
            Self::Eight => 128,
        }
    }

    /// Bytes of a block's lines and of its planes.
    pub const fn block_bytes(self) -> (usize, usize) {
        match self {
            Self::Four | Self::Fp4 => (4 * LINE, 0),
            Self::Five => (4 * LINE, LINE),
            Self::Six => (4 * LINE, 2 * LINE),
            Self::Eight => (8 * LINE, 0),
        }
    }
}

/// Bytes that multiply a run's elements, one for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubScales {
    None,
    Unsigned,
    Signed,
}

/// A number as it is stored, the least significant byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F32,
    F16,
    Bf16,
    /// 2^(code - 128), half of an e8m0 scale, as `FP4_CODES` are doubled.
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
            // The smallest power is denormal, which shifting does not reach.
            Self::HalfE8m0 => f32::from_bits((u32::from(bytes[0]) << 23).max(1 << 22)) * 0.5,
        }
    }
}

impl TileFormat {
    /// What is subtracted from a code before it is scaled.
    pub const fn zero(&self) -> i32 {
        if self.min.is_some() {
            0
        } else {
            self.codes.zero()
        }
    }

    /// Bytes of a run's elements: its scales', its minimums'.
    pub const fn element_bytes(&self) -> (usize, usize) {
        let min = match self.min {
            Some(min) => min.bytes(),
            None => 0,
        };
        (TILE_ROWS * self.scale.bytes(), TILE_ROWS * min)
    }

    /// Bytes of the sub-scales of a block's scales, and again of its minimums if there are any.
    pub const fn sub_scale_bytes(&self) -> usize {
        match self.sub_scales {
            SubScales::None => 0,
            SubScales::Unsigned | SubScales::Signed => GROUP / self.group * TILE_ROWS,
        }
    }

    const fn block_bytes(&self) -> usize {
        let (lines, planes) = self.codes.block_bytes();
        let kinds = if self.min.is_some() { 2 } else { 1 };
        lines + planes + kinds * self.sub_scale_bytes()
    }

    const fn run_bytes(&self) -> usize {
        let (scales, mins) = self.element_bytes();
        scales + mins + self.run * self.block_bytes()
    }

    pub const fn tile_bytes(&self, cols: usize) -> usize {
        cols / (GROUP * self.run) * self.run_bytes()
    }

    /// Where the elements of the block's run begin.
    pub const fn elements_at(&self, block: usize) -> usize {
        block / self.run * self.run_bytes()
    }

    /// Where the block begins.
    pub const fn block_at(&self, block: usize) -> usize {
        let (scales, mins) = self.element_bytes();
        let before = block % self.run * self.block_bytes();
        self.elements_at(block) + scales + mins + before
    }
}

/// Rounded activations of `tokens` tokens, `cols` of each.
///
/// A block of columns lies side by side for all tokens, so that kernels, which multiply a block of
/// weights by many tokens, read consecutive memory.
#[derive(Clone, Copy)]
pub struct TileInput<'a> {
    pub tokens: usize,
    pub cols: usize,
    /// From a token's block to its next one.
    pub stride: usize,
    /// The first is the first token's first; block `b` of token `t` is at `b * stride + t`.
    pub blocks: &'a [ActivationBlock],
}

/// [`GROUP`] rounded activations: a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct ActivationBlock {
    /// From -127 to 127.
    pub codes: [i8; GROUP],
    /// The codes' factor.
    pub scale: f32,
    /// The scale times the sum of the codes.
    pub scaled_sum: f32,
    /// Minus the sum of the codes. A format's zero times this is what a block's sum of products
    /// starts from.
    pub negated_sum: i32,
    /// Minus the sum of each [`SUM_GROUP`].
    pub negated_sums: [i32; GROUP / SUM_GROUP],
    /// Of each [`SUM_GROUP`], the sums of the first and of the last two of every four codes.
    pub pair_sums: [[i16; 2]; GROUP / SUM_GROUP],
}

const _: () = assert!(size_of::<ActivationBlock>() == 64);

impl TileInput<'_> {
    /// Every version calls this before it trusts lengths.
    pub fn check(&self, tile: &Tile) {
        let form = &tile.form;
        let blocks = self.cols / GROUP;
        assert!(self.cols.is_multiple_of(GROUP * form.run));
        assert!(matches!(form.group, SUM_GROUP | GROUP));
        assert!(form.group == GROUP || form.min.is_none());
        assert_eq!(tile.bytes.len(), form.tile_bytes(self.cols));
        assert!(self.tokens <= self.stride);
        if blocks > 0 && self.tokens > 0 {
            assert!((blocks - 1) * self.stride + self.tokens <= self.blocks.len());
        }
    }

    /// A token's block; those of the next tokens follow.
    ///
    /// # Safety
    /// The token and the block must exist, as [`TileInput::check`] has checked.
    #[inline(always)]
    pub unsafe fn block(&self, token: usize, block: usize) -> *const ActivationBlock {
        // SAFETY: the caller's promise.
        unsafe { self.blocks.as_ptr().add(block * self.stride + token) }
    }

    /// Without the first tokens.
    pub fn after(&self, tokens: usize) -> Self {
        Self {
            tokens: self.tokens - tokens,
            blocks: &self.blocks[tokens.min(self.blocks.len())..],
            ..*self
        }
    }
}

/// The codes of one block, a line for each quad.
pub type Block = [u8; GROUP * TILE_ROWS];

impl Tile<'_> {
    /// A block's lines and planes.
    fn code_bytes(&self, block: usize) -> (&[u8], &[u8]) {
        let (lines, planes) = self.form.codes.block_bytes();
        let bytes = &self.bytes[self.form.block_at(block)..];
        (&bytes[..lines], &bytes[lines..lines + planes])
    }

    /// All codes of a block, for kernels without their own unpacking.
    #[inline(always)]
    pub fn unpack(&self, block: usize, out: &mut Block) {
        let (lines, planes) = self.code_bytes(block);
        if self.form.codes == Codes::Eight {
            out.copy_from_slice(lines);
            return;
        }
        let (low, high) = out.split_at_mut(4 * LINE);
        for ((low, high), pair) in low.iter_mut().zip(high).zip(lines) {
            *low = pair & 15;
            *high = pair >> 4;
        }
        match self.form.codes {
            Codes::Fp4 => {
                for code in out {
                    *code = FP4_CODES[usize::from(*code)];
                }
            }
            Codes::Five => {
                for (codes, bits) in out.chunks_exact_mut(8).zip(planes) {
                    for (i, code) in codes.iter_mut().enumerate() {
                        *code |= (bits >> i & 1) << 4;
                    }
                }
            }
            Codes::Six => {
                for (quad, codes) in out.chunks_exact_mut(LINE).enumerate() {
                    let plane = &planes[quad / 4 * LINE..];
                    for (code, bits) in codes.iter_mut().zip(plane) {
                        *code |= (bits >> (quad % 4 * 2) & 3) << 4;
                    }
                }
            }
            Codes::Four | Codes::Eight => {}
        }
    }

    /// The scale of `row` in the group that has `col`.
    pub fn scale(&self, row: usize, col: usize) -> f32 {
        self.factor(self.form.scale, 0, row, col)
    }

    /// The minimum of `row` in the group that has `col`, if groups have one.
    pub fn min(&self, row: usize, col: usize) -> Option<f32> {
        let min = self.form.min?;
        Some(self.factor(min, 1, row, col))
    }

    /// An element times its sub-scale; `kind` 0 is the scale, 1 the minimum.
    fn factor(&self, element: Element, kind: usize, row: usize, col: usize) -> f32 {
        let (form, block) = (&self.form, col / GROUP);
        let size = element.bytes();
        let first = form.elements_at(block) + kind * form.element_bytes().0;
        let at = first + row * size;
        let element = element.value(&self.bytes[at..at + size]);
        let (lines, planes) = form.codes.block_bytes();
        let first = form.block_at(block) + lines + planes + kind * form.sub_scale_bytes();
        let sub_scale = || self.bytes[first + col % GROUP / form.group * TILE_ROWS + row];
        match form.sub_scales {
            SubScales::None => element,
            SubScales::Unsigned => element * f32::from(sub_scale()),
            SubScales::Signed => element * f32::from(sub_scale() as i8),
        }
    }
}

/// The scalar reference: `out[token * stride + row]` for sixteen rows.
///
/// # Safety
/// `out` must be valid for writes of `TILE_ROWS` values at every `token * stride`.
pub unsafe fn portable(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    let mut codes: Block = [0; GROUP * TILE_ROWS];
    for token in 0..input.tokens {
        let mut totals = [0.0; TILE_ROWS];
        for block in 0..input.cols / GROUP {
            tile.unpack(block, &mut codes);
            for (row, total) in totals.iter_mut().enumerate() {
                *total = add_block(tile, input, &codes, (token, block, row), *total);
            }
        }
        for (row, total) in totals.into_iter().enumerate() {
            // SAFETY: the caller promises sixteen writable values at `token * stride`.
            unsafe { out.add(token * stride + row).write(total) };
        }
    }
}

/// The total after one more block of a row.
fn add_block(
    tile: &Tile,
    input: &TileInput,
    codes: &Block,
    (token, block, row): (usize, usize, usize),
    mut total: f32,
) -> f32 {
    let group = tile.form.group;
    let x = &input.blocks[block * input.stride + token];
    for first in (0..GROUP).step_by(group) {
        let col = block * GROUP + first;
        let code = |i: usize| i32::from(codes[(first + i) / 4 * LINE + row * 4 + i % 4]);
        let products = x.codes[first..first + group].iter().enumerate();
        let products = products.map(|(i, x)| code(i) * i32::from(*x));
        let negated = &x.negated_sums[first / SUM_GROUP..(first + group) / SUM_GROUP];
        let dot = products.sum::<i32>() + tile.form.zero() * negated.iter().sum::<i32>();
        let scale = tile.scale(row, col) * x.scale;
        total = (dot as f32).mul_add(scale, total);
        if let Some(min) = tile.min(row, col) {
            total = min.mul_add(x.scaled_sum, total);
        }
    }
    total
}
