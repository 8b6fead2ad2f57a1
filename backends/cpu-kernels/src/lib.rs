//! The arithmetic, one dispatch table per instruction set.
//!
//! Pointwise kernels are written once, over arrays of [`LANES`] values, and compiled for each
//! instruction set; attention is written once over a register type that each instruction set
//! has; integer tiles and products of plain weights have hand-written versions next to their
//! portable reference. Fused multiply-add is exact everywhere, and every reduction runs in an
//! order fixed by its length, so all tables give the same bits, which tests check.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod attend_codes;
mod attention;
mod code_register;
mod dense;
mod element;
pub mod emulated;
mod features;
mod float;
mod kv_codes;
mod low_rank;
mod page;
mod plain;
#[cfg(target_arch = "x86_64")]
mod plain_avx512;
mod register;
mod rotation;
mod tile;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tile_amx;
#[cfg(target_arch = "x86_64")]
mod tile_avx2;
#[cfg(target_arch = "x86_64")]
mod tile_avx512;
#[cfg(target_arch = "aarch64")]
mod tile_neon;
#[cfg(target_arch = "x86_64")]
mod tile_panel;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tile_walk;

pub use attention::{
    AttendArgs, AttendQuery, HeadCodes, HeadLayout, HeadPages, MAX_QUERIES, PIECE, piece_len,
    pieces, prefetch,
};
pub use dense::{
    AttendDense, DENSE_QUERIES, DENSE_TILE, DenseArgs, DenseLayout, DenseProducts, DenseScratch,
};
pub use element::{Bf16Bits, F16Bits, KvElement, PlainElement};
pub use features::cpu_features;
pub use float::{ConvWeights, DeltaStep, MambaStep};
pub use kv_codes::{CodeFormat, CodeOperand, CodeSpan};
pub use low_rank::{LowRankJob, LowRankTile};
pub use page::PagePtr;
pub use plain::{Format, PlainOut, PlainRows, Rounded};
pub use tile::{
    ActivationBlock, Codes, Element, LINE, SubScales, TILE_ROWS, Tile, TileFormat, TileInput,
};

use loquat_spec::Activation;

/// Values handled together; the widest register's worth of `f32`.
pub const LANES: usize = 16;
/// Columns that share one activation scale.
pub const GROUP: usize = 32;
/// Columns whose activation sum is kept; the smallest weight group.
pub const SUM_GROUP: usize = 16;
/// Tokens in one KV page.
pub const PAGE: usize = 32;

/// Attention of at most [`MAX_QUERIES`] queries.
pub type Attend<T> = unsafe fn(&AttendArgs<T>, &mut [AttendQuery]);

/// Exact for every half, infinities and NaN included.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    // Sign-extended and shifted, the sign lands on the sign and the rest on exponent and
    // fraction; the exponent's bias differs by 112, which the multiplication puts right.
    let placed = (i32::from(bits as i16) << 13) as u32 & 0x8fff_e000;
    let finite = f32::from_bits(placed) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(placed | 0x7f80_0000);
    if bits & 0x7c00 == 0x7c00 {
        special
    } else {
        finite
    }
}

/// One instruction set's kernels. Tables are constants: a `static` would have every program that is
/// linked with this crate, its unit tests too, compile them all.
///
/// SAFETY for every pointer in the table: calling it needs the instruction set it was built
/// for, which [`supported`] has checked before it hands the table out.
pub struct Kernels {
    pub name: &'static str,
    pub rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    pub layer_norm: unsafe fn(&mut [f32], &[f32], &[f32], f32),
    pub unit_length: unsafe fn(&mut [f32], f32),
    /// A token's values to blocks of a [`TileInput`], which must be writable.
    pub quantize: unsafe fn(&[f32], *mut ActivationBlock, usize),
    pub rotate: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub rotate_interleaved: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub activate: unsafe fn(Activation, &mut [f32], &[f32]),
    pub sigmoid_gate: unsafe fn(&mut [f32], &[f32]),
    pub silu_gate: unsafe fn(&mut [f32], &[f32]),
    pub conv_step: unsafe fn(&mut [f32], &ConvWeights, &mut [f32]),
    pub delta_step: unsafe fn(&DeltaStep, &mut [f32], &mut [f32]),
    pub mamba_step: unsafe fn(&MambaStep, &mut [f32], &mut [f32]),
    pub softcap: unsafe fn(&mut [f32], f32),
    /// Rounds activations for `plain_bf16`.
    pub round_bf16: unsafe fn(&[f32], &mut [u32]) -> f32,
    pub plain: unsafe fn(&PlainRows, &[f32], PlainOut),
    pub plain_bf16: unsafe fn(&PlainRows, &Rounded, PlainOut),
    /// Adds tiles of low-rank products to outputs, in order.
    pub add_low_rank: unsafe fn(&[LowRankJob]),
    pub attend_f32: Attend<f32>,
    pub attend_f16: Attend<F16Bits>,
    pub attend_bf16: Attend<Bf16Bits>,
    pub attend_codes: Attend<u8>,
    pub attend_dense: AttendDense,
    /// The same of numbers rounded to bf16.
    pub attend_dense_bf16: AttendDense,
    /// How `attend_dense_bf16` multiplies.
    pub dense_bf16: DenseProducts,
    /// The rotation of queries, keys and values that are attended as codes, and its inverse.
    pub rotate_codes: unsafe fn(&mut [f32]),
    pub unrotate_codes: unsafe fn(&mut [f32]),
    pub join_pieces: unsafe fn(&[f32], Option<f32>, &mut [f32]),
    pub tile: unsafe fn(&Tile, &TileInput, *mut f32, usize),
    /// Two neighbouring tiles at once, if that is faster for several tokens.
    pub tile_pair: Option<TilePair>,
}

/// Multiplies two tiles; the second's rows follow the first's in the output.
pub type TilePair = unsafe fn(&[Tile; 2], &TileInput, *mut f32, usize);

/// Every table this machine can run, fastest first; the last is the portable reference.
pub fn supported() -> Vec<&'static Kernels> {
    let mut tables: Vec<&'static Kernels> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        let bf16 = is_x86_feature_detected!("avx512bf16");
        #[cfg(target_os = "linux")]
        if avx2 && avx512 && bf16 && amx::available() {
            tables.push(&float::AMX);
        }
        if avx2 && avx512 && bf16 {
            tables.push(&float::AVX512_BF16);
        }
        if avx2 && avx512 {
            tables.push(&float::avx512::TABLE);
        }
        if avx2 && is_x86_feature_detected!("avxvnni") {
            tables.push(&float::AVX_VNNI);
        }
        if avx2 {
            tables.push(&float::avx2::TABLE);
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            tables.push(&float::NEON_DOTPROD);
        }
        tables.push(&float::NEON);
    }
    tables.push(&float::portable::TABLE);
    tables
}
