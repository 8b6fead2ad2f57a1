//! The storage types of tensors.

/// How a tensor's values are stored.
///
/// The `Q` types are GGUF's: each row is a sequence of blocks that carry their
/// own scales. All other types have blocks of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F64,
    F32,
    F16,
    BF16,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// A power of two from 2^-127; the scale type of microscaling formats.
    F8E8M0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    /// Microscaling 4-bit floats as GGUF lays them out.
    Mxfp4,
}

impl Dtype {
    pub const ALL: [Dtype; 25] = [
        Dtype::F64,
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F8E4M3,
        Dtype::F8E5M2,
        Dtype::F8E8M0,
        Dtype::I64,
        Dtype::I32,
        Dtype::I16,
        Dtype::I8,
        Dtype::U64,
        Dtype::U32,
        Dtype::U16,
        Dtype::U8,
        Dtype::Bool,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q8_0,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
        Dtype::Mxfp4,
    ];

    /// Name, values per block, bytes per block.
    const fn layout(self) -> (&'static str, usize, usize) {
        match self {
            Dtype::F64 => ("F64", 1, 8),
            Dtype::F32 => ("F32", 1, 4),
            Dtype::F16 => ("F16", 1, 2),
            Dtype::BF16 => ("BF16", 1, 2),
            Dtype::F8E4M3 => ("F8_E4M3", 1, 1),
            Dtype::F8E5M2 => ("F8_E5M2", 1, 1),
            Dtype::F8E8M0 => ("F8_E8M0", 1, 1),
            Dtype::I64 => ("I64", 1, 8),
            Dtype::I32 => ("I32", 1, 4),
            Dtype::I16 => ("I16", 1, 2),
            Dtype::I8 => ("I8", 1, 1),
            Dtype::U64 => ("U64", 1, 8),
            Dtype::U32 => ("U32", 1, 4),
            Dtype::U16 => ("U16", 1, 2),
            Dtype::U8 => ("U8", 1, 1),
            Dtype::Bool => ("BOOL", 1, 1),
            Dtype::Q4_0 => ("Q4_0", 32, 18),
            Dtype::Q4_1 => ("Q4_1", 32, 20),
            Dtype::Q5_0 => ("Q5_0", 32, 22),
            Dtype::Q5_1 => ("Q5_1", 32, 24),
            Dtype::Q8_0 => ("Q8_0", 32, 34),
            Dtype::Q4K => ("Q4_K", 256, 144),
            Dtype::Q5K => ("Q5_K", 256, 176),
            Dtype::Q6K => ("Q6_K", 256, 210),
            Dtype::Mxfp4 => ("MXFP4", 32, 17),
        }
    }

    pub const fn name(self) -> &'static str {
        self.layout().0
    }

    /// Values per block; 1 for a type that is not block-quantized.
    pub const fn block_len(self) -> usize {
        self.layout().1
    }

    pub const fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// Bytes of a row of `cols` values, or `None` if `cols` is not a whole
    /// number of blocks or the result overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_bytes_refuses_partial_blocks_and_overflow() {
        let table = [
            (Dtype::F32, 0, Some(0)),
            (Dtype::F32, 3, Some(12)),
            (Dtype::F32, usize::MAX / 2, None),
            (Dtype::Q4_0, 64, Some(36)),
            (Dtype::Q4_0, 33, None),
            (Dtype::Q6K, 256, Some(210)),
            (Dtype::Q6K, 128, None),
            (Dtype::Q8_0, usize::MAX - 31, None),
        ];
        for (dtype, cols, expected) in table {
            assert_eq!(dtype.row_bytes(cols), expected, "{dtype} {cols}");
        }
    }

    #[test]
    fn all_lists_every_type_once() {
        let names: std::collections::HashSet<_> = Dtype::ALL.iter().map(|d| d.name()).collect();
        assert_eq!(names.len(), Dtype::ALL.len());
    }
}
