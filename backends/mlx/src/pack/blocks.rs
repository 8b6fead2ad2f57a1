//! Converts GGUF blocks to MLX's layout if both have the same arithmetic: each group of 32 values
//! is `scale * code + bias`, or 4-bit floats times a power of two.

use half::f16;
use loquat_weights::Dtype;

/// Values that share a scale.
pub const GROUP: usize = 32;

/// Bits of the codes of a type whose values are affine in groups of 32; `None` for others.
pub const fn affine_bits(dtype: Dtype) -> Option<u8> {
    match dtype {
        Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q4K => Some(4),
        Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q5K => Some(5),
        Dtype::Q8_0 => Some(8),
        _ => None,
    }
}

/// The codes of a row's groups as one stream of bits, low bits first.
pub fn write_codes(dtype: Dtype, row: &[u8], out: &mut [u8]) {
    let bits = affine_bits(dtype).map_or(4, usize::from);
    for (group, out) in groups(dtype, row).zip(out.chunks_exact_mut(GROUP / 8 * bits)) {
        for (eight, out) in group
            .codes()
            .as_chunks::<8>()
            .0
            .iter()
            .zip(out.chunks_mut(bits))
        {
            let mut word = 0u64;
            for code in eight.iter().rev() {
                word = word << bits | u64::from(*code);
            }
            out.copy_from_slice(&word.to_le_bytes()[..bits]);
        }
    }
}

/// Each group's scale and bias.
pub fn factors(dtype: Dtype, row: &[u8]) -> impl Iterator<Item = (f32, f32)> {
    groups(dtype, row).map(|group| group.factors())
}

/// Each group's power of two, for [`Dtype::Mxfp4`].
pub fn exponents(row: &[u8]) -> impl Iterator<Item = u8> {
    groups(Dtype::Mxfp4, row).map(|group| group.block[0])
}

/// 32 values of a block of 32 or 256.
struct Group<'a> {
    dtype: Dtype,
    block: &'a [u8],
    /// In the block.
    index: usize,
}

fn groups(dtype: Dtype, row: &[u8]) -> impl Iterator<Item = Group<'_>> {
    let blocks = row.chunks_exact(dtype.block_bytes());
    blocks.flat_map(move |block| {
        (0..dtype.block_len() / GROUP).map(move |index| Group {
            dtype,
            block,
            index,
        })
    })
}

impl Group<'_> {
    fn half(&self, at: usize) -> f32 {
        f16::from_le_bytes([self.block[at], self.block[at + 1]]).to_f32()
    }

    /// Nibbles pair value `i` with value `i + 16`, and in the blocks of 256 with `i + 32`.
    fn codes(&self) -> [u8; GROUP] {
        match self.dtype {
            Dtype::Q4_0 => halves(&self.block[2..], 0),
            Dtype::Q4_1 => halves(&self.block[4..], 0),
            Dtype::Q5_0 => halves(&self.block[6..], high_bits(&self.block[2..])),
            Dtype::Q5_1 => halves(&self.block[8..], high_bits(&self.block[4..])),
            Dtype::Q8_0 => std::array::from_fn(|i| self.block[2 + i] ^ 0x80),
            Dtype::Q4K => self.nibbles(&self.block[16..]),
            Dtype::Q5K => {
                let low = self.nibbles(&self.block[48..]);
                let high = &self.block[16..48];
                std::array::from_fn(|i| low[i] | (high[i] >> self.index & 1) << 4)
            }
            _ => halves(&self.block[1..], 0),
        }
    }

    fn nibbles(&self, bytes: &[u8]) -> [u8; GROUP] {
        let bytes = &bytes[self.index / 2 * GROUP..][..GROUP];
        let shift = self.index % 2 * 4;
        std::array::from_fn(|i| bytes[i] >> shift & 0xF)
    }

    fn factors(&self) -> (f32, f32) {
        let scale = self.half(0);
        match self.dtype {
            Dtype::Q4_0 => (scale, scale * -8.0),
            Dtype::Q5_0 => (scale, scale * -16.0),
            Dtype::Q8_0 => (scale, scale * -128.0),
            Dtype::Q4_1 | Dtype::Q5_1 => (scale, self.half(2)),
            _ => {
                let (factor, min) = k_factors(&self.block[4..16], self.index);
                (scale * f32::from(factor), -(self.half(2) * f32::from(min)))
            }
        }
    }
}

fn high_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The low nibbles of 16 bytes, then the high ones, each with its fifth bit.
fn halves(bytes: &[u8], fifth: u32) -> [u8; GROUP] {
    let (bytes, half) = (&bytes[..GROUP / 2], GROUP / 2);
    std::array::from_fn(|i| {
        let nibble = bytes[i % half] >> (i / half * 4) & 0xF;
        nibble | ((fifth >> i & 1) as u8) << 4
    })
}

/// The 6-bit scale and minimum of group `j` of 8: those of the last four have their low nibbles
/// in the last four bytes and their high bits atop the first eight.
fn k_factors(bytes: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (bytes[j] & 63, bytes[j + 4] & 63)
    } else {
        (
            bytes[j + 4] & 0xF | bytes[j - 4] >> 6 << 4,
            bytes[j + 4] >> 4 | bytes[j] >> 6 << 4,
        )
    }
}
