//! A row of any quantized format as the codes, scales and minimums that are packed.

use loquat_weights::decode::unpack_codes;
use loquat_weights::{DecodeFault, Dtype, EncodedRow, WeightsError};

#[derive(Default)]
pub struct Row {
    pub codes: Vec<u8>,
    pub scales: RowScales,
    pub mins: RowScales,
}

/// In column order, the bytes as they will be stored.
#[derive(Default)]
pub struct RowScales {
    pub elements: Vec<u8>,
    pub parts: Vec<u8>,
}

impl Row {
    pub fn read(&mut self, row: &EncodedRow, cols: usize) -> Result<(), WeightsError> {
        self.codes.resize(cols, 0);
        for scales in [&mut self.scales, &mut self.mins] {
            scales.elements.clear();
            scales.parts.clear();
        }
        match *row {
            EncodedRow::Plain { dtype, bytes } => self.read_blocks(dtype, bytes),
            EncodedRow::Mlx {
                mode,
                codes,
                scales: (scales, _),
                biases,
            } => {
                unpack_codes(mode.bits(), codes, &mut self.codes)?;
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

    fn read_blocks(&mut self, dtype: Dtype, bytes: &[u8]) {
        let blocks = bytes.chunks_exact(dtype.block_bytes());
        let codes = self.codes.chunks_exact_mut(dtype.block_len());
        let (scales, mins) = (&mut self.scales, &mut self.mins);
        for (block, codes) in blocks.zip(codes) {
            match dtype {
                Dtype::Q4_0 => {
                    scales.elements.extend(&block[..2]);
                    read_nibbles(&block[2..], codes);
                }
                Dtype::Q4_1 => {
                    scales.elements.extend(&block[..2]);
                    mins.elements.extend(&block[2..4]);
                    read_nibbles(&block[4..], codes);
                }
                Dtype::Q5_0 => {
                    scales.elements.extend(&block[..2]);
                    read_nibbles(&block[6..], codes);
                    add_fifth_bits(&block[2..6], codes);
                }
                Dtype::Q5_1 => {
                    scales.elements.extend(&block[..2]);
                    mins.elements.extend(&block[2..4]);
                    read_nibbles(&block[8..], codes);
                    add_fifth_bits(&block[4..8], codes);
                }
                Dtype::Q8_0 => {
                    scales.elements.extend(&block[..2]);
                    for (code, byte) in codes.iter_mut().zip(&block[2..]) {
                        *code = byte ^ 0x80;
                    }
                }
                Dtype::Mxfp4 => {
                    scales.elements.push(block[0]);
                    read_nibbles(&block[1..], codes);
                }
                Dtype::Q4K => {
                    read_six_bit_scales(block, scales, mins);
                    read_nibble_pairs(&block[16..], codes);
                }
                Dtype::Q5K => {
                    read_six_bit_scales(block, scales, mins);
                    read_nibble_pairs(&block[48..], codes);
                    for (group, codes) in codes.chunks_exact_mut(32).enumerate() {
                        for (code, bits) in codes.iter_mut().zip(&block[16..48]) {
                            *code |= (bits >> group & 1) << 4;
                        }
                    }
                }
                _ => read_q6k(block, codes, scales),
            }
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

/// A superblock's two halves, and the scales and minimums of its eight groups, which multiply
/// them, in six bits each. Minimums count downwards, so the half that they multiply is negated.
fn read_six_bit_scales(block: &[u8], scales: &mut RowScales, mins: &mut RowScales) {
    scales.elements.extend(&block[..2]);
    mins.elements.extend([block[2], block[3] ^ 0x80]);
    let packed = &block[4..16];
    for group in 0..4 {
        scales.parts.push(packed[group] & 63);
        mins.parts.push(packed[group + 4] & 63);
    }
    for group in 0..4 {
        let last = packed[group + 8];
        scales.parts.push(last & 15 | packed[group] >> 6 << 4);
        mins.parts.push(last >> 4 | packed[group + 4] >> 6 << 4);
    }
}

/// Superblocks of sixteen groups of 16, with signed eight-bit scales.
fn read_q6k(block: &[u8], codes: &mut [u8], scales: &mut RowScales) {
    scales.elements.extend(&block[208..210]);
    scales.parts.extend(&block[192..208]);
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
