//! Tables for tests: kernels for instructions that this machine may not have, with other
//! instructions in their place, so that everything but the instruction itself is tested.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "`tables` checks for the instruction sets that the functions need"
)]

#[cfg(not(target_arch = "x86_64"))]
pub fn tables() -> Vec<&'static super::Kernels> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
pub use x86::tables;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    #[cfg(target_os = "linux")]
    use crate::amx::ScalarUnit;
    #[cfg(target_os = "linux")]
    use crate::tile_amx;
    use crate::tile_avx2::{self, DotQuads};
    use crate::{Kernels, Tile, TileInput, float, supported};

    /// Both need AVX-512 around the emulated instruction.
    pub fn tables() -> Vec<&'static Kernels> {
        const AVX_VNNI: Kernels = Kernels {
            name: "emulated avx-vnni",
            tile: avx_vnni,
            ..float::portable::TABLE
        };
        #[cfg(target_os = "linux")]
        const AMX: Kernels = Kernels {
            name: "emulated amx",
            tile: amx,
            tile_pair: Some(amx_pair),
            ..float::portable::TABLE
        };
        if !supported().iter().any(|table| table.name == "avx512-vnni") {
            return Vec::new();
        }
        vec![
            &AVX_VNNI,
            #[cfg(target_os = "linux")]
            &AMX,
        ]
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512vnni")]
    unsafe fn avx_vnni(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
        unsafe { tile_avx2::tile_with::<Avx512Vnni>(tile, input, out, stride) };
    }

    /// The same product in AVX-512's encoding.
    struct Avx512Vnni;

    impl DotQuads for Avx512Vnni {
        #[inline(always)]
        unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            unsafe { _mm256_dpbusd_epi32(sum, codes, x) }
        }
    }

    #[cfg(target_os = "linux")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn amx(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
        unsafe { tile_amx::tiles(|| ScalarUnit, &[*tile], input, out, stride) };
    }

    #[cfg(target_os = "linux")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn amx_pair(pair: &[Tile; 2], input: &TileInput, out: *mut f32, stride: usize) {
        unsafe { tile_amx::tiles(|| ScalarUnit, pair, input, out, stride) };
    }
}
