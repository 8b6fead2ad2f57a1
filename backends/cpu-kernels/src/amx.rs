//! The tile unit of x86-64 (AMX): whether this process may use it, and its product of bytes.
//!
//! The processor must report the unit, the operating system must save its state and permit this
//! process to use it, and a self-test must match plain arithmetic. The instructions are assembly,
//! since the intrinsics are not stable.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{GROUP, TILE_ROWS};

/// Rows of activations in one product.
pub const TOKENS: usize = 16;

/// A product's whole numbers, `[token][row]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Dots(pub [[i32; TILE_ROWS]; TOKENS]);

impl Dots {
    pub const ZERO: Self = Self([[0; TILE_ROWS]; TOKENS]);
}

/// What goes into one product.
#[derive(Clone, Copy)]
pub struct Operands {
    /// [`TOKENS`] rows of a block's codes.
    pub activations: *const i8,
    /// Bytes from one row of activations to the next.
    pub stride: usize,
    /// A block's weight codes, a line of four columns of [`TILE_ROWS`] rows after the other.
    pub lines: *const u8,
}

/// Multiplies a block of [`GROUP`] columns: the unit, or its scalar reference.
pub trait Multiply {
    /// Writes all of `out`; weight codes are `SIGNED` or not. Neighbouring products of different
    /// `parity` may overlap in time.
    ///
    /// # Safety
    /// The operands must be readable in full.
    unsafe fn product<const SIGNED: bool>(&self, parity: usize, operands: Operands, out: &mut Dots);
}

/// The reference.
pub struct ScalarUnit;

impl Multiply for ScalarUnit {
    unsafe fn product<const SIGNED: bool>(&self, _: usize, operands: Operands, out: &mut Dots) {
        for (token, dots) in out.0.iter_mut().enumerate() {
            for (row, dot) in dots.iter_mut().enumerate() {
                let products = (0..GROUP).map(|col| {
                    let (line, within) = (col / 4, row * 4 + col % 4);
                    // SAFETY: the caller vouches for both operands.
                    unsafe {
                        let x = *operands.activations.add(token * operands.stride + col);
                        let code = *operands.lines.add(line * 4 * TILE_ROWS + within);
                        let code = if SIGNED {
                            i32::from(code as i8)
                        } else {
                            i32::from(code)
                        };
                        i32::from(x) * code
                    }
                });
                *dot = products.sum();
            }
        }
    }
}

/// This thread's tile unit, set up until it is dropped.
pub struct Unit {
    /// The state belongs to the thread that loaded it.
    not_send: PhantomData<*const ()>,
}

impl Unit {
    /// # Safety
    /// Only after [`available`], and with no other `Unit` alive on this thread.
    pub unsafe fn new() -> Self {
        const CONFIGURATION: Configuration = Configuration::new();
        // SAFETY: the caller has made sure of the unit; the configuration is 64 valid bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &CONFIGURATION, options(nostack, preserves_flags));
        }
        Self {
            not_send: PhantomData,
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: there is a configuration to release, as `new` has loaded one.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// One product with the instruction `$multiply` in the tiles `$dots`, `$activations` and `$lines`.
macro_rules! product {
    ($multiply:literal, $operands:ident, $out:ident, $dots:tt, $activations:tt, $lines:tt) => {
        asm!(
            concat!("tilezero ", $dots),
            concat!("tileloadd ", $activations, ", [{activations} + {stride}]"),
            concat!("tileloadd ", $lines, ", [{lines} + {line}]"),
            concat!($multiply, " ", $dots, ", ", $activations, ", ", $lines),
            concat!("tilestored [{out} + {line}], ", $dots),
            activations = in(reg) $operands.activations,
            stride = in(reg) $operands.stride,
            lines = in(reg) $operands.lines,
            line = in(reg) 4 * TILE_ROWS,
            out = in(reg) $out,
            out($dots) _,
            out($activations) _,
            out($lines) _,
            options(nostack, preserves_flags)
        )
    };
}

impl Multiply for Unit {
    #[inline(always)]
    unsafe fn product<const SIGNED: bool>(
        &self,
        parity: usize,
        operands: Operands,
        out: &mut Dots,
    ) {
        // SAFETY: while `self` lives the tiles are configured; the caller vouches for what is
        // read, and `out` is as large as a tile of dots.
        unsafe {
            match (SIGNED, parity) {
                (true, 0) => product!("tdpbssd", operands, out, "tmm0", "tmm1", "tmm2"),
                (true, _) => product!("tdpbssd", operands, out, "tmm3", "tmm4", "tmm5"),
                (false, 0) => product!("tdpbsud", operands, out, "tmm0", "tmm1", "tmm2"),
                (false, _) => product!("tdpbsud", operands, out, "tmm3", "tmm4", "tmm5"),
            }
        }
    }
}

/// What `ldtilecfg` reads: the shapes of the tiles.
#[derive(Debug, PartialEq)]
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Tiles 0 and 3 hold dots, 1 and 4 activations, 2 and 5 lines of weights.
    const fn new() -> Self {
        const DOTS: (u8, u16) = (TOKENS as u8, 4 * TILE_ROWS as u16);
        const ACTIVATIONS: (u8, u16) = (TOKENS as u8, GROUP as u16);
        const LINES: (u8, u16) = (GROUP as u8 / 4, 4 * TILE_ROWS as u16);
        let mut configuration = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut tile = 0;
        while tile < 6 {
            let (rows, row_bytes) = [DOTS, ACTIVATIONS, LINES][tile % 3];
            configuration.rows[tile] = rows;
            configuration.row_bytes[tile] = row_bytes;
            tile += 1;
        }
        configuration
    }
}

/// Whether this process may use the unit and the unit passes its self-test. Checked once; the
/// permission holds for all threads.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the self-test runs only if the unit is reported, enabled and permitted.
    *AVAILABLE.get_or_init(|| is_reported() && request_permission() && unsafe { self_test() })
}

/// The processor has the unit and the operating system keeps its state.
fn is_reported() -> bool {
    const HAS_XGETBV: u32 = 1 << 27;
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const TILE_STATES: u64 = 1 << 17 | 1 << 18;
    const FEATURES: u32 = 7;
    const PALETTES: u32 = 0x1d;
    // SAFETY: `cpuid` is part of x86-64, and leaves are read only if the processor has
    // them, and `xgetbv` only if the operating system has enabled it.
    unsafe {
        if __cpuid(0).eax < PALETTES || __cpuid(1).ecx & HAS_XGETBV == 0 {
            return false;
        }
        let palette = __cpuid_count(PALETTES, 1);
        __cpuid_count(FEATURES, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
            && enabled_states() & TILE_STATES == TILE_STATES
            && large_enough(palette.ebx, palette.ecx)
    }
}

/// Rows of 64 bytes, six tiles, sixteen rows: what [`Configuration`] asks for.
fn large_enough(row_bytes_and_tiles: u32, rows: u32) -> bool {
    let (row_bytes, tiles) = (row_bytes_and_tiles & 0xffff, row_bytes_and_tiles >> 16);
    row_bytes as usize >= 4 * TILE_ROWS && tiles >= 6 && rows & 0xffff >= TOKENS as u32
}

/// # Safety
/// The operating system must have enabled `xgetbv`.
unsafe fn enabled_states() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The tiles are eight kilobytes of state per thread, which Linux saves only on request.
fn request_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: asks for a permission; no memory is involved.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        )
    };
    refused == 0
}

/// Products of all byte values, signed and not, with all tiles, against the reference.
///
/// # Safety
/// The process must have the unit.
unsafe fn self_test() -> bool {
    // SAFETY: the caller has the unit.
    unsafe { products_match::<true>() && products_match::<false>() }
}

/// # Safety
/// The process must have the unit.
unsafe fn products_match<const SIGNED: bool>() -> bool {
    const STRIDE: usize = GROUP + 16;
    // Multipliers prime to 256, so that all bytes occur, in no order that the operands share.
    let activations: [i8; TOKENS * STRIDE] = std::array::from_fn(|i| (i * 89 + 128) as u8 as i8);
    let lines: [u8; GROUP * TILE_ROWS] = std::array::from_fn(|i| (i * 151 + i / 256 + 255) as u8);
    let operands = Operands {
        activations: activations.as_ptr(),
        stride: STRIDE,
        lines: lines.as_ptr(),
    };
    let mut expected = Dots::ZERO;
    // SAFETY: the arrays hold whole operands; the caller has the unit, and this one is dropped
    // before the next is made.
    unsafe {
        ScalarUnit.product::<SIGNED>(0, operands, &mut expected);
        let unit = Unit::new();
        (0..2).all(|parity| {
            let mut found = Dots::ZERO;
            unit.product::<SIGNED>(parity, operands, &mut found);
            found.0 == expected.0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_matches_instruction_layout() {
        let mut expected = [0u8; 64];
        expected[0] = 1;
        expected[16..28].copy_from_slice(&[64, 0, 32, 0, 64, 0, 64, 0, 32, 0, 64, 0]);
        expected[48..54].copy_from_slice(&[16, 16, 8, 16, 16, 8]);
        // SAFETY: sixty-four bytes without padding, as its fields add up to.
        let found: [u8; 64] = unsafe { std::mem::transmute(Configuration::new()) };
        assert_eq!(found, expected);
    }

    #[test]
    fn reference_knows_signed_and_unsigned_codes() {
        let mut activations = [0i8; TOKENS * GROUP];
        let mut lines = [0u8; GROUP * TILE_ROWS];
        // Token 3 has -128 and 127 at columns 5 and 6; row 9 has 255 (or -1) and 2 there.
        activations[3 * GROUP + 5..][..2].copy_from_slice(&[-128, 127]);
        lines[64 + 9 * 4 + 1..][..2].copy_from_slice(&[255, 2]);
        let operands = Operands {
            activations: activations.as_ptr(),
            stride: GROUP,
            lines: lines.as_ptr(),
        };
        let [mut unsigned, mut signed] = [Dots([[7; TILE_ROWS]; TOKENS]); 2];
        // SAFETY: the arrays hold whole operands.
        unsafe {
            ScalarUnit.product::<false>(0, operands, &mut unsigned);
            ScalarUnit.product::<true>(0, operands, &mut signed);
        }
        for (found, code) in [(unsigned, 255), (signed, -1)] {
            let mut expected = Dots::ZERO;
            expected.0[3][9] = -128 * code + 127 * 2;
            assert_eq!(found.0, expected.0);
        }
    }

    #[test]
    fn small_palettes_are_refused() {
        let table = [
            (8 << 16 | 64, 16, true),
            (5 << 16 | 64, 16, false),
            (8 << 16 | 32, 16, false),
            (8 << 16 | 64, 8, false),
            (0, 0, false),
        ];
        for (row_bytes_and_tiles, rows, expected) in table {
            let found = large_enough(row_bytes_and_tiles, rows);
            assert_eq!(found, expected, "{row_bytes_and_tiles:#x} {rows}");
        }
    }
}
