//! Reads a row of any quantized format as codes, scales and minimums.

use loquat_cpu_kernels::{Codes, GROUP, TILE_ROWS};
use loquat_weights::decode::unpack_codes;
use loquat_weights::{DecodeFault, Dtype, EncodedRow, WeightsError};

/// The bytes of one row of a [tile](loquat_cpu_kernels::Tile).
#[derive(Default)]
pub struct Row {
    pub lines: Vec<u8>,
    pub planes: Vec<u8>,
    pub scales: RowScales,
    pub mins: RowScales,
    /// In column order, before they become lines and planes.
    codes: Vec<u8>,
}

/// In column order, the bytes as they will be stored.
#[derive(Default)]
pub struct RowScales {
    pub elements: Vec<u8>,
    pub sub_scales: Vec<u8>,
}

impl Row {
    pub fn read(&mut self, row: &EncodedRow, kind: Codes, cols: usize) -> Result<(), WeightsError> {
        let (lines, planes) = kind.block_bytes();
        let blocks = cols / GROUP;
        self.lines.resize(blocks * lines / TILE_ROWS, 0);
        self.planes.resize(blocks * planes / TILE_ROWS, 0);
        self.codes.resize(cols, 0);
        for scales in [&mut self.scales, &mut self.mins] {
            scales.elements.clear();
            scales.sub_scales.clear();
        }
        match *row {
            EncodedRow::Plain { dtype, bytes } => self.read_blocks(dtype, kind, bytes),
            EncodedRow::Mlx {
                mode,
                codes,
                scales: (scales, _),
                biases,
            } => {
                unpack_codes(mode.bits(), codes, &mut self.codes)?;
                self.arrange(kind);
                self.scales.elements.extend(scales);
                let biases = biases.map_or(&[][..], |(biases, _)| biases);
                self.mins.elements.extend(biases);
            }
            // These have no integer form.
            EncodedRow::Fp8 { codes, .. } => {
                let fault = DecodeFault::Length {
                    what: "row of integers",
                    expected: 0,
                    found: codes.len(),
                };
                return Err(fault.into());
            }
        }
        Ok(())
    }

    fn read_blocks(&mut self, dtype: Dtype, kind: Codes, bytes: &[u8]) {
        let (scales, mins) = (&mut self.scales, &mut self.mins);
        let lines = self.lines.as_mut_slice();
        let codes = self.codes.as_mut_slice();
        match dtype {
            // Nibbles are paired as in a tile.
            Dtype::Q4_0 => for_each_block::<18, 16>(bytes, lines, |block, lines| {
                scales.elements.extend([block[0], block[1]]);
                lines.copy_from_slice(&block[2..]);
            }),
            Dtype::Q4_1 => for_each_block::<20, 16>(bytes, lines, |block, lines| {
                scales.elements.extend([block[0], block[1]]);
                mins.elements.extend([block[2], block[3]]);
                lines.copy_from_slice(&block[4..]);
            }),
            Dtype::Mxfp4 => for_each_block::<17, 16>(bytes, lines, |block, lines| {
                scales.elements.push(block[0]);
                lines.copy_from_slice(&block[1..]);
            }),
            Dtype::Q8_0 => for_each_block::<34, 32>(bytes, lines, |block, lines| {
                scales.elements.extend([block[0], block[1]]);
                for (code, byte) in lines.iter_mut().zip(&block[2..]) {
                    *code = byte ^ 0x80;
                }
            }),
            Dtype::Q4K => for_each_block::<144, 128>(bytes, lines, |block, lines| {
                read_six_bit_scales(block, scales, mins);
                repair_nibbles(&block[16..], lines);
            }),
            Dtype::Q5_0 => for_each_block::<22, 32>(bytes, codes, |block, codes| {
                scales.elements.extend([block[0], block[1]]);
                read_nibbles(&block[6..], codes);
                add_fifth_bits(&block[2..6], codes);
            }),
            Dtype::Q5_1 => for_each_block::<24, 32>(bytes, codes, |block, codes| {
                scales.elements.extend([block[0], block[1]]);
                mins.elements.extend([block[2], block[3]]);
                read_nibbles(&block[8..], codes);
                add_fifth_bits(&block[4..8], codes);
            }),
            Dtype::Q5K => for_each_block::<176, 256>(bytes, codes, |block, codes| {
                read_six_bit_scales(block, scales, mins);
                read_nibble_pairs(&block[48..], codes);
                for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
                    for (code, bits) in codes.iter_mut().zip(&block[16..48]) {
                        *code |= (bits >> group & 1) << 4;
                    }
                }
            }),
            _ => for_each_block::<210, 256>(bytes, codes, |block, codes| {
                read_q6k(block, codes, scales)
            }),
        }
        if matches!(dtype, Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q5K | Dtype::Q6K) {
            self.arrange(kind);
        }
    }

    /// From `codes` to `lines` and `planes`.
    fn arrange(&mut self, kind: Codes) {
        if kind == Codes::Eight {
            self.lines.copy_from_slice(&self.codes);
            return;
        }
        let blocks = self.codes.as_chunks::<GROUP>().0;
        for (codes, lines) in blocks.iter().zip(self.lines.as_chunks_mut::<16>().0) {
            let (low, high) = codes.split_at(16);
            for (line, (low, high)) in lines.iter_mut().zip(low.iter().zip(high)) {
                *line = low & 15 | high << 4;
            }
        }
        match kind {
            Codes::Five => {
                let eights = self.codes.as_chunks::<8>().0.iter();
                for (codes, bits) in eights.zip(&mut self.planes) {
                    *bits = fifth_bits(u64::from_le_bytes(*codes));
                }
            }
            Codes::Six => {
                let halves = self.codes.as_chunks::<16>().0.iter();
                for (codes, bits) in halves.zip(self.planes.as_chunks_mut::<4>().0) {
                    let quads = codes.as_chunks::<4>().0.iter().zip(0..);
                    let upper = quads.map(|(quad, index)| {
                        (u32::from_le_bytes(*quad) >> 4 & 0x0303_0303) << (2 * index)
                    });
                    *bits = upper.sum::<u32>().to_le_bytes();
                }
            }
            Codes::Four | Codes::Fp4 | Codes::Eight => {}
        }
    }
}

/// Calls `read` with each block of a row and its output.
fn for_each_block<const BLOCK: usize, const ROOM: usize>(
    bytes: &[u8],
    room: &mut [u8],
    mut read: impl FnMut(&[u8; BLOCK], &mut [u8; ROOM]),
) {
    let blocks = bytes.as_chunks().0.iter();
    for (block, room) in blocks.zip(room.as_chunks_mut().0) {
        read(block, room);
    }
}

/// The fifth bits of eight codes, a byte each, together: bit `i` is moved from `8 * i` to
/// `56 + i`, and what lands elsewhere does not reach the highest byte.
fn fifth_bits(codes: u64) -> u8 {
    const SPREAD_TO_TOP: u64 = 0x0102_0408_1020_4080;
    let bits = codes >> 4 & 0x0101_0101_0101_0101;
    (bits.wrapping_mul(SPREAD_TO_TOP) >> 56) as u8
}

/// In the file, 32 bytes hold 32 codes in the low nibbles and the next 32 in the high ones; in a
/// tile, 16 bytes hold 16 and the next 16.
fn repair_nibbles(bytes: &[u8], pairs: &mut [u8]) {
    let pairs = pairs.as_chunks_mut::<32>().0.iter_mut();
    for (pairs, bytes) in pairs.zip(bytes.as_chunks::<32>().0) {
        for i in 0..16 {
            let (first, second) = (bytes[i], bytes[i + 16]);
            pairs[i] = first & 15 | second << 4;
            pairs[i + 16] = first >> 4 | second & 0xf0;
        }
    }
}

/// The first half of 32 codes in the low nibbles, the second in the high.
fn read_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (first, second) = codes.split_at_mut(16);
    for ((low, high), byte) in first.iter_mut().zip(second).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

fn add_fifth_bits(bytes: &[u8], codes: &mut [u8]) {
    for (codes, bits) in codes.chunks_exact_mut(8).zip(bytes) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (bits >> i & 1) << 4;
        }
    }
}

/// Two groups of 32 codes in each 32 bytes.
fn read_nibble_pairs(bytes: &[u8], codes: &mut [u8]) {
    for (codes, bytes) in codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        let (first, second) = codes.split_at_mut(32);
        for ((low, high), byte) in first.iter_mut().zip(second).zip(bytes) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

/// A superblock's two `f16`s, and the six-bit scales and minimums of its eight groups, which
/// multiply them. Minimums are subtracted, so their `f16` is negated.
fn read_six_bit_scales(block: &[u8], scales: &mut RowScales, mins: &mut RowScales) {
    scales.elements.extend(&block[..2]);
    mins.elements.extend([block[2], block[3] ^ 0x80]);
    let packed = &block[4..16];
    for group in 0..4 {
        scales.sub_scales.push(packed[group] & 63);
        mins.sub_scales.push(packed[group + 4] & 63);
    }
    for group in 0..4 {
        let last = packed[group + 8];
        scales.sub_scales.push(last & 15 | packed[group] >> 6 << 4);
        mins.sub_scales
            .push(last >> 4 | packed[group + 4] >> 6 << 4);
    }
}

/// Superblocks of sixteen groups of 16, with signed eight-bit scales.
fn read_q6k(block: &[u8], codes: &mut [u8], scales: &mut RowScales) {
    scales.elements.extend(&block[208..210]);
    scales.sub_scales.extend(&block[192..208]);
    let halves = codes.chunks_exact_mut(128);
    let halves = halves.zip(block[..128].chunks_exact(64));
    for ((codes, low), high) in halves.zip(block[128..192].chunks_exact(32)) {
        for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
            let low = &low[part % 2 * 32..];
            for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                let four = if part < 2 { low & 15 } else { low >> 4 };
                *code = four | (high >> (2 * part) & 3) << 4;
            }
        }
    }
}
