//! The element formats of the KV cache.

use super::register::Register;
use super::{Attend, Kernels, LANES, f16_to_f32, float};

/// How a KV element is stored.
pub trait KvElement: Copy + Default + Send + Sync + 'static {
    const NAME: &'static str;
    const BYTES: usize = size_of::<Self>();
    /// Whether each head's key and value of a token has its own scale, an `f32`.
    const SCALED: bool = false;

    /// The element's value before its scale.
    fn load(self) -> f32;
    /// The scale for storing these values.
    fn scale_for(_values: &[f32]) -> f32 {
        1.0
    }
    fn store(value: f32, scale: f32) -> Self;
    /// [`KvElement::load`] of sixteen.
    fn widen<R: Register>(values: &[Self; LANES]) -> R;
    /// The table's attention kernel for this element.
    fn attend(kernels: &Kernels) -> Attend<Self>;
    fn to_bytes(self, out: &mut Vec<u8>);
    /// Reads the [`KvElement::BYTES`] that `to_bytes` wrote.
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl KvElement for f32 {
    const NAME: &'static str = "f32";

    #[inline(always)]
    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn store(value: f32, _scale: f32) -> Self {
        value
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        R::load(values)
    }

    fn attend(kernels: &Kernels) -> Attend<Self> {
        kernels.attend_f32
    }

    fn to_bytes(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// Half precision as its bits. Kernels widen whole registers of them
/// (`Register`); a single one is widened by plain arithmetic.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F16Bits(pub u16);

impl KvElement for F16Bits {
    const NAME: &'static str = "f16";

    #[inline(always)]
    fn load(self) -> f32 {
        f16_to_f32(self.0)
    }

    /// Saturates: a finite activation never becomes infinite.
    #[inline(always)]
    fn store(value: f32, _scale: f32) -> Self {
        F16Bits(half::f16::from_f32(value.clamp(-65504.0, 65504.0)).to_bits())
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        // SAFETY: the element is its bits, and nothing else.
        R::from_f16(unsafe { &*values.as_ptr().cast() })
    }

    fn attend(kernels: &Kernels) -> Attend<Self> {
        kernels.attend_f16
    }

    fn to_bytes(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        F16Bits(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// The upper half of an `f32`: its whole range, in eight bits of precision.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bf16Bits(pub u16);

impl KvElement for Bf16Bits {
    const NAME: &'static str = "bf16";

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Saturates like [`F16Bits`].
    #[inline(always)]
    fn store(value: f32, _scale: f32) -> Self {
        let most = half::bf16::MAX.to_f32();
        Bf16Bits(half::bf16::from_f32(value.clamp(-most, most)).to_bits())
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        // SAFETY: the element is its bits, and nothing else.
        R::from_bf16(unsafe { &*values.as_ptr().cast() })
    }

    fn attend(kernels: &Kernels) -> Attend<Self> {
        kernels.attend_bf16
    }

    fn to_bytes(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Bf16Bits(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// Eight bits with one scale for a token's key or value of one head, set by the largest element.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Q8Code(pub i8);

impl KvElement for Q8Code {
    const NAME: &'static str = "q8";
    const SCALED: bool = true;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from(self.0)
    }

    /// NaN and infinities stay visible in the scale; a finite element never becomes infinite.
    #[inline(always)]
    fn scale_for(values: &[f32]) -> f32 {
        // As integers, magnitudes order as they do as floats, with NaN above all.
        let magnitudes = values.iter().map(|value| value.abs().to_bits());
        let largest = f32::from_bits(magnitudes.max().unwrap_or(0));
        if largest.is_finite() {
            largest.min(3.4e38) / 127.0
        } else {
            largest
        }
    }

    #[inline(always)]
    fn store(value: f32, scale: f32) -> Self {
        let magic = float::ROUND_MAGIC;
        Q8Code(((value / scale + magic) - magic) as i8)
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        // SAFETY: the element is its code, and nothing else.
        R::from_i8(unsafe { &*values.as_ptr().cast() })
    }

    fn attend(kernels: &Kernels) -> Attend<Self> {
        kernels.attend_q8
    }

    fn to_bytes(self, out: &mut Vec<u8>) {
        out.push(self.0 as u8);
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Q8Code(bytes[0] as i8)
    }
}
