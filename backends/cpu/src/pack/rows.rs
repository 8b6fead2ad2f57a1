//! Reads a row of any quantized format as codes, scales and minimums.

use std::slice::IterMut;

use loquat_cpu_kernels::{Codes, GROUP, SubScales, TILE_ROWS, TileFormat};
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
    /// A row of zeros, which pads the last tile.
    pub fn clear(&mut self, form: &TileFormat, cols: usize) {
        let Self {
            lines,
            planes,
            scales,
            mins,
            codes: _,
        } = self;
        for bytes in [lines, planes] {
            bytes.clear();
        }
        for scales in [scales, mins] {
            scales.elements.clear();
            scales.sub_scales.clear();
        }
        self.resize(form, cols);
    }

    fn resize(&mut self, form: &TileFormat, cols: usize) {
        let (lines, planes) = form.codes.block_bytes();
        let blocks = cols / GROUP;
        self.lines.resize(blocks * lines / TILE_ROWS, 0);
        self.planes.resize(blocks * planes / TILE_ROWS, 0);
        self.codes.resize(cols, 0);
        let (scale, min) = form.element_bytes();
        let sub_scales = match form.sub_scales {
            SubScales::None => 0,
            SubScales::Unsigned | SubScales::Signed => cols / form.group,
        };
        let min_sub_scales = if form.min.is_some() { sub_scales } else { 0 };
        self.scales
            .resize(blocks / form.run * scale / TILE_ROWS, sub_scales);
        self.mins
            .resize(blocks / form.run * min / TILE_ROWS, min_sub_scales);
    }

    pub fn read(
        &mut self,
        row: &EncodedRow,
        form: &TileFormat,
        cols: usize,
    ) -> Result<(), WeightsError> {
        self.resize(form, cols);
        let kind = form.codes;
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
                copy(scales, &mut self.scales.elements, "scales of a row")?;
                let biases = biases.map_or(&[][..], |(biases, _)| biases);
                copy(biases, &mut self.mins.elements, "biases of a row")?;
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
        let scale = &mut pairs(&mut self.scales.elements);
        let min = &mut pairs(&mut self.mins.elements);
        let scale_subs = self.scales.sub_scales.as_mut_slice();
        let min_subs = self.mins.sub_scales.as_mut_slice();
        let lines = self.lines.as_mut_slice();
        let codes = self.codes.as_mut_slice();
        match dtype {
            // Nibbles are paired as in a tile.
            Dtype::Q4_0 => for_each_block::<18, 16>(bytes, lines, |block, lines| {
                put(scale, [block[0], block[1]]);
                lines.copy_from_slice(&block[2..]);
            }),
            Dtype::Q4_1 => for_each_block::<20, 16>(bytes, lines, |block, lines| {
                put(scale, [block[0], block[1]]);
                put(min, [block[2], block[3]]);
                lines.copy_from_slice(&block[4..]);
            }),
            Dtype::Mxfp4 => {
                let mut scale = self.scales.elements.iter_mut();
                for_each_block::<17, 16>(bytes, lines, |block, lines| {
                    put(&mut scale, block[0]);
                    lines.copy_from_slice(&block[1..]);
                });
            }
            Dtype::Q8_0 => for_each_block::<34, 32>(bytes, lines, |block, lines| {
                put(scale, [block[0], block[1]]);
                for (code, byte) in lines.iter_mut().zip(&block[2..]) {
                    *code = byte ^ 0x80;
                }
            }),
            Dtype::Q4K => {
                let mut subs = octets(scale_subs).zip(octets(min_subs));
                for_each_block::<144, 128>(bytes, lines, |block, lines| {
                    put_super_elements(block, scale, min);
                    put_six_bit_scales(block, subs.next());
                    repair_nibbles(&block[16..], lines);
                });
            }
            Dtype::Q5_0 => for_each_block::<22, 32>(bytes, codes, |block, codes| {
                put(scale, [block[0], block[1]]);
                read_nibbles(&block[6..], codes);
                add_fifth_bits(&block[2..6], codes);
            }),
            Dtype::Q5_1 => for_each_block::<24, 32>(bytes, codes, |block, codes| {
                put(scale, [block[0], block[1]]);
                put(min, [block[2], block[3]]);
                read_nibbles(&block[8..], codes);
                add_fifth_bits(&block[4..8], codes);
            }),
            Dtype::Q5K => {
                let mut subs = octets(scale_subs).zip(octets(min_subs));
                for_each_block::<176, 256>(bytes, codes, |block, codes| {
                    put_super_elements(block, scale, min);
                    put_six_bit_scales(block, subs.next());
                    read_nibble_pairs(&block[48..], codes);
                    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
                        for (code, bits) in codes.iter_mut().zip(&block[16..48]) {
                            *code |= (bits >> group & 1) << 4;
                        }
                    }
                });
            }
            // Superblocks of sixteen groups of 16, with signed eight-bit scales.
            _ => {
                let mut subs = scale_subs.as_chunks_mut::<16>().0.iter_mut();
                for_each_block::<210, 256>(bytes, codes, |block, codes| {
                    put(scale, [block[208], block[209]]);
                    if let Some(subs) = subs.next() {
                        subs.copy_from_slice(&block[192..208]);
                    }
                    read_q6k_codes(block, codes);
                });
            }
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

impl RowScales {
    fn resize(&mut self, elements: usize, sub_scales: usize) {
        self.elements.resize(elements, 0);
        self.sub_scales.resize(sub_scales, 0);
    }
}

/// Elements of two bytes.
fn pairs(bytes: &mut [u8]) -> IterMut<'_, [u8; 2]> {
    bytes.as_chunks_mut().0.iter_mut()
}

/// The sub-scales of superblocks with eight groups.
fn octets(bytes: &mut [u8]) -> IterMut<'_, [u8; 8]> {
    bytes.as_chunks_mut().0.iter_mut()
}

/// Writes the next value.
fn put<T>(out: &mut IterMut<T>, value: T) {
    if let Some(out) = out.next() {
        *out = value;
    }
}

/// Copies all of `from`, which must be as long as `to`.
fn copy(from: &[u8], to: &mut [u8], what: &'static str) -> Result<(), WeightsError> {
    if from.len() != to.len() {
        let (expected, found) = (to.len(), from.len());
        let fault = DecodeFault::Length {
            what,
            expected,
            found,
        };
        return Err(fault.into());
    }
    to.copy_from_slice(from);
    Ok(())
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

/// The two `f16`s of a superblock. Minimums are subtracted, so theirs is negated.
fn put_super_elements(block: &[u8], scale: &mut IterMut<[u8; 2]>, min: &mut IterMut<[u8; 2]>) {
    put(scale, [block[0], block[1]]);
    put(min, [block[2], block[3] ^ 0x80]);
}

/// The six-bit scales and minimums of a superblock's eight groups, four bytes at a time: the first
/// four of each in the low six bits of bytes 4 to 7 and 8 to 11, whose upper bits belong to the
/// last four, as do the nibbles of bytes 12 to 15.
fn put_six_bit_scales(block: &[u8], out: Option<(&mut [u8; 8], &mut [u8; 8])>) {
    let Some((scales, mins)) = out else { return };
    let four =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (first, second, last) = (four(4), four(8), four(12));
    let upper = |bits: u32| bits >> 2 & 0x3030_3030;
    let join = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    *scales = join(first & 0x3f3f_3f3f, last & 0x0f0f_0f0f | upper(first));
    *mins = join(
        second & 0x3f3f_3f3f,
        last >> 4 & 0x0f0f_0f0f | upper(second),
    );
}

fn read_q6k_codes(block: &[u8], codes: &mut [u8]) {
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
