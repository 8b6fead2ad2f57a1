//! Keys and values as integer codes of two to eight bits, after a rotation.
//!
//! A page holds a head's keys in tiles of 16 channels of all its tokens, and its values likewise.
//! A tile is eight units of 64 codes, which kernels multiply as signed bytes. A key unit is four
//! channels of 16 tokens, as `[token][channel]`; a value unit is 16 channels of four tokens, as
//! `[channel][token]`. In both, four neighbours are multiplied with four bytes of the other
//! operand and added up. Codes of fewer bits share bytes with those of other units, see
//! [`CodeFormat::set`]. The factors of the page's tokens follow the tiles.

use half::f16;

use super::float::ROUND_MAGIC;
use super::page::PagePtr;
use super::{PAGE, f16_to_f32};

/// Channels of a tile.
pub(super) const TILE: usize = 16;
/// Codes of a unit.
pub(super) const UNIT: usize = 64;
/// Channels of a key that share a factor in [`CodeFormat::Q8`]: as many as in llama.cpp's blocks.
pub(super) const KEY_GROUP: usize = 32;
/// Factors are stored this many times as large, so that those of small values are normal numbers.
pub(super) const FACTOR_SCALE: f32 = 64.0;
/// Bytes of a page's factors: one for each token.
const FACTORS: usize = 2 * PAGE;

/// How a rotated coordinate is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeFormat {
    /// Whole numbers up to ± 127, with a factor for each token's value, and for 32 channels of its
    /// key.
    Q8,
    /// One of 16 Lloyd-Max centroids of a normal distribution, with a factor for each token.
    Turbo4,
    /// One of 8.
    Turbo3,
    /// One of 4.
    Turbo2,
}

/// Which operand of attention a code belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeOperand {
    Key,
    Value,
}

/// A code's tile, by its first byte, the unit in the tile, and the code in the unit.
#[derive(Clone, Copy)]
struct CodePlace {
    tile: usize,
    unit: usize,
    byte: usize,
}

/// One head's keys or values in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeSpan {
    /// The span's first byte in its page.
    pub at: usize,
    pub operand: CodeOperand,
    pub format: CodeFormat,
    /// Channels.
    pub dim: usize,
}

/// Lloyd-Max centroids of the normal distribution, as shares of 127 of the largest, ascending.
/// The rest of a table repeats them: only so many bits of an index count.
pub(super) const CENTROIDS_4: [i8; 16] = [
    -127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127,
];
pub(super) const CENTROIDS_3: [i8; 16] = [
    -127, -79, -45, -14, 14, 45, 79, 127, -127, -79, -45, -14, 14, 45, 79, 127,
];
pub(super) const CENTROIDS_2: [i8; 16] = [
    -127, -38, 38, 127, -127, -38, 38, 127, -127, -38, 38, 127, -127, -38, 38, 127,
];

/// Centroids as whole numbers.
#[derive(Clone, Copy)]
struct Codebook {
    centroids: &'static [i8; 16],
    /// A standard deviation.
    unit: f32,
    /// The index of the centroid nearest to each whole number, as an unsigned byte.
    nearest: &'static [u8; 256],
}

const TURBO_4: Codebook = Codebook {
    centroids: &CENTROIDS_4,
    unit: 127.0 / 2.7326,
    nearest: &nearest(&CENTROIDS_4, 16),
};
const TURBO_3: Codebook = Codebook {
    centroids: &CENTROIDS_3,
    unit: 127.0 / 2.1520,
    nearest: &nearest(&CENTROIDS_3, 8),
};
const TURBO_2: Codebook = Codebook {
    centroids: &CENTROIDS_2,
    unit: 127.0 / 1.5104,
    nearest: &nearest(&CENTROIDS_2, 4),
};

const fn nearest(centroids: &[i8; 16], count: usize) -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut best, mut index) = (0, 1);
        while index < count {
            let level = byte as u8 as i8 as i32;
            let closer = (level - centroids[index] as i32).abs();
            if closer < (level - centroids[best] as i32).abs() {
                best = index;
            }
            index += 1;
        }
        table[byte] = best as u8;
        byte += 1;
    }
    table
}

impl CodeFormat {
    /// Every format, largest first.
    pub const ALL: [Self; 4] = [Self::Q8, Self::Turbo4, Self::Turbo3, Self::Turbo2];

    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Q8 => 8,
            Self::Turbo4 => 4,
            Self::Turbo3 => 3,
            Self::Turbo2 => 2,
        }
    }

    const fn tile_bytes(self) -> usize {
        UNIT * self.bits()
    }

    const fn codebook(self) -> Option<Codebook> {
        match self {
            Self::Q8 => None,
            Self::Turbo4 => Some(TURBO_4),
            Self::Turbo3 => Some(TURBO_3),
            Self::Turbo2 => Some(TURBO_2),
        }
    }

    /// The value that a code encodes, before it is multiplied by its factor.
    fn level(self, code: u8) -> f32 {
        match self.codebook() {
            Some(codebook) => f32::from(codebook.centroids[usize::from(code)]),
            None => f32::from((code ^ 0x80) as i8),
        }
    }

    /// Where a code is in its span.
    #[inline(always)]
    fn place(self, operand: CodeOperand, slot: usize, channel: usize) -> CodePlace {
        let (tile, within) = (channel / TILE, channel % TILE);
        let (unit, byte) = match operand {
            CodeOperand::Key => (within / 4 * 2 + slot / 16, slot % 16 * 4 + within % 4),
            CodeOperand::Value => (slot / 4, within * 4 + slot % 4),
        };
        CodePlace {
            tile: tile * self.tile_bytes(),
            unit,
            byte,
        }
    }

    /// Codes of eight bits are the units one after another. Of four bits, a byte has the codes of
    /// two neighbouring units, the first one's lower; of two bits, of four. Of three bits, the
    /// lower two are like codes of two, and 64 bytes with each unit's third bit follow.
    #[inline(always)]
    fn set(self, span: &mut [u8], place: CodePlace, code: u8) {
        let CodePlace { tile, unit, byte } = place;
        let mut put = |at: usize, mask: u8, shift: usize, bits: u8| {
            span[at] = span[at] & !(mask << shift) | (bits & mask) << shift;
        };
        match self {
            Self::Q8 => put(tile + UNIT * unit + byte, 0xff, 0, code),
            Self::Turbo4 => put(tile + UNIT * (unit / 2) + byte, 15, unit % 2 * 4, code),
            Self::Turbo3 => {
                put(tile + UNIT * (unit / 4) + byte, 3, unit % 4 * 2, code);
                put(tile + 2 * UNIT + byte, 1, unit, code >> 2);
            }
            Self::Turbo2 => put(tile + UNIT * (unit / 4) + byte, 3, unit % 4 * 2, code),
        }
    }

    /// Reads what [`CodeFormat::set`] wrote.
    fn get(self, span: &[u8], place: CodePlace) -> u8 {
        let CodePlace { tile, unit, byte } = place;
        match self {
            Self::Q8 => span[tile + UNIT * unit + byte],
            Self::Turbo4 => span[tile + UNIT * (unit / 2) + byte] >> (unit % 2 * 4) & 15,
            Self::Turbo3 => {
                let low = span[tile + UNIT * (unit / 4) + byte] >> (unit % 4 * 2) & 3;
                low | (span[tile + 2 * UNIT + byte] >> unit & 1) << 2
            }
            Self::Turbo2 => span[tile + UNIT * (unit / 4) + byte] >> (unit % 4 * 2) & 3,
        }
    }
}

impl CodeSpan {
    /// Bytes of the span: codes and factors.
    pub const fn page_bytes(&self) -> usize {
        self.code_bytes() + self.factors() * FACTORS
    }

    /// Bytes of one token's vector when it is exported.
    pub const fn export_bytes(&self) -> usize {
        (self.dim * self.format.bits()).div_ceil(8) + 2 * self.factors()
    }

    /// Bytes of the codes, before the factors.
    pub(super) const fn code_bytes(&self) -> usize {
        self.dim.div_ceil(TILE) * self.format.tile_bytes()
    }

    /// Channels that share a factor.
    const fn group(&self) -> usize {
        match (self.format, self.operand) {
            (CodeFormat::Q8, CodeOperand::Key) => KEY_GROUP,
            // At least one channel, so that nothing is divided by zero.
            _ if self.dim == 0 => 1,
            _ => self.dim,
        }
    }

    /// Factors of one token.
    const fn factors(&self) -> usize {
        self.dim.div_ceil(self.group())
    }

    /// Codes one token's rotated vector. NaN and infinities stay visible in a factor; what is
    /// finite stays so.
    ///
    /// # Safety
    /// The page must live, and no other thread may access the span meanwhile: tokens share bytes.
    pub unsafe fn write(&self, page: PagePtr<u8>, slot: usize, values: &[f32]) {
        // SAFETY: the caller's promises.
        let span = unsafe { page.slice_mut(self.at, self.page_bytes()) };
        match self.format.codebook() {
            None => {
                for (index, group) in values.chunks(self.group()).enumerate() {
                    self.write_whole(span, slot, index, group);
                }
            }
            Some(codebook) => self.write_nearest(span, slot, values, &codebook),
        }
    }

    /// Codes a group of channels as whole numbers.
    fn write_whole(&self, span: &mut [u8], slot: usize, group: usize, values: &[f32]) {
        // As integers, magnitudes order as they do as floats, with NaN above all.
        let magnitudes = values.iter().map(|value| value.abs().to_bits());
        let largest = f32::from_bits(magnitudes.max().unwrap_or(0));
        let factor = stored_factor(largest / 127.0);
        self.put_factor(span, slot, group, factor);
        let factor = loaded_factor(factor);
        let inverse = if factor > 0.0 { 1.0 / factor } else { 0.0 };
        for (channel, value) in (group * self.group()..).zip(values) {
            let code = level(value * inverse) as u8 ^ 0x80;
            let place = self.format.place(self.operand, slot, channel);
            self.format.set(span, place, code);
        }
    }

    /// Codes values by their nearest centroids, after a division by their standard deviation. The
    /// factor makes the product with the vector itself exact, so that products with other vectors
    /// are unbiased.
    fn write_nearest(&self, span: &mut [u8], slot: usize, values: &[f32], codebook: &Codebook) {
        let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        let deviation = (squares / values.len().max(1) as f64).sqrt();
        let scale = if deviation > 0.0 {
            (f64::from(codebook.unit) / deviation) as f32
        } else {
            0.0
        };
        let mut product = 0.0f64;
        for (channel, value) in values.iter().enumerate() {
            let code = codebook.nearest[usize::from(level(value * scale) as u8)];
            let place = self.format.place(self.operand, slot, channel);
            self.format.set(span, place, code);
            product += f64::from(*value) * f64::from(codebook.centroids[usize::from(code)]);
        }
        let factor = if product == 0.0 {
            0.0
        } else {
            squares / product
        };
        self.put_factor(span, slot, 0, stored_factor(factor as f32));
    }

    fn factor_at(&self, slot: usize, group: usize) -> usize {
        self.code_bytes() + group * FACTORS + 2 * slot
    }

    fn put_factor(&self, span: &mut [u8], slot: usize, group: usize, factor: u16) {
        let at = self.factor_at(slot, group);
        span[at..at + 2].copy_from_slice(&factor.to_le_bytes());
    }

    fn factor(&self, span: &[u8], slot: usize, group: usize) -> u16 {
        let at = self.factor_at(slot, group);
        u16::from_le_bytes([span[at], span[at + 1]])
    }

    /// What [`CodeSpan::write`] kept of a vector.
    ///
    /// # Safety
    /// The page must live, and no thread may write the span meanwhile.
    pub unsafe fn read(&self, page: PagePtr<u8>, slot: usize, values: &mut [f32]) {
        // SAFETY: the caller's promises.
        let span = unsafe { page.slice(self.at, self.page_bytes()) };
        for (channel, value) in values.iter_mut().enumerate() {
            let code = self
                .format
                .get(span, self.format.place(self.operand, slot, channel));
            let factor = self.factor(span, slot, channel / self.group());
            *value = self.format.level(code) * loaded_factor(factor);
        }
    }

    /// Appends a token's codes, without gaps, and factors: [`CodeSpan::export_bytes`].
    ///
    /// # Safety
    /// As for [`CodeSpan::read`].
    pub unsafe fn export(&self, page: PagePtr<u8>, slot: usize, out: &mut Vec<u8>) {
        // SAFETY: the caller's promises.
        let span = unsafe { page.slice(self.at, self.page_bytes()) };
        let (mut pending, mut bits) = (0u32, 0);
        for channel in 0..self.dim {
            let code = self
                .format
                .get(span, self.format.place(self.operand, slot, channel));
            pending |= u32::from(code) << bits;
            bits += self.format.bits();
            if bits >= 8 {
                out.push(pending as u8);
                (pending, bits) = (pending >> 8, bits - 8);
            }
        }
        if bits > 0 {
            out.push(pending as u8);
        }
        for group in 0..self.factors() {
            out.extend(self.factor(span, slot, group).to_le_bytes());
        }
    }

    /// Writes what [`CodeSpan::export`] appended.
    ///
    /// # Safety
    /// As for [`CodeSpan::write`].
    pub unsafe fn import(&self, page: PagePtr<u8>, slot: usize, bytes: &[u8]) {
        // SAFETY: the caller's promises.
        let span = unsafe { page.slice_mut(self.at, self.page_bytes()) };
        let factors = 2 * self.factors();
        let (codes, factors) = bytes.split_at(bytes.len() - factors);
        let width = self.format.bits();
        let (mut pending, mut bits, mut codes) = (0u32, 0, codes.iter());
        for channel in 0..self.dim {
            if bits < width {
                pending |= u32::from(codes.next().copied().unwrap_or(0)) << bits;
                bits += 8;
            }
            let code = (pending & ((1 << width) - 1)) as u8;
            (pending, bits) = (pending >> width, bits - width);
            let place = self.format.place(self.operand, slot, channel);
            self.format.set(span, place, code);
        }
        for (group, factor) in factors.as_chunks::<2>().0.iter().enumerate() {
            self.put_factor(span, slot, group, u16::from_le_bytes(*factor));
        }
    }
}

/// The nearest whole number from -127 to 127.
#[inline(always)]
fn level(value: f32) -> i8 {
    ((value.clamp(-127.0, 127.0) + ROUND_MAGIC) - ROUND_MAGIC) as i8
}

/// A factor as it is stored. Saturates if it is finite.
fn stored_factor(factor: f32) -> u16 {
    let scaled = factor * FACTOR_SCALE;
    let scaled = if factor.is_finite() {
        scaled.min(65504.0)
    } else {
        scaled
    };
    f16::from_f32(scaled).to_bits()
}

fn loaded_factor(bits: u16) -> f32 {
    f16_to_f32(bits) / FACTOR_SCALE
}
