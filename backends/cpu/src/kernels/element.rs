//! How keys and values are kept: the formats of the KV cache.

use super::register::Register;
use super::{Attend, Kernels, LANES, f16_to_f32, float};

/// How a KV element is stored.
pub trait KvElement: Copy + Default + Send + Sync + 'static {
    const NAME: &'static str;
    const BYTES: usize = size_of::<Self>();
    /// Whether each head's key and value of a token has a factor of its own, an `f32` beside the
    /// elements.
    const SCALED: bool = false;

    /// What the element stands for, but for its factor.
    fn load(self) -> f32;
    /// The factor under which the values are to be stored.
    fn scale_of(_values: &[f32]) -> f32 {
        1.0
    }
    fn store(value: f32, scale: f32) -> Self;
    /// [`KvElement::load`] of sixteen.
    fn widen<R: Register>(values: &[Self; LANES]) -> R;
    /// The table's attention kernel for this element.
    fn attend(kernels: &Kernels) -> Attend<Self>;
    fn to_bytes(self, out: &mut Vec<u8>);
    /// Reads back what `to_bytes` wrote, [`KvElement::BYTES`] of it.
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
/// ([`Register`](super::register::Register)); a single one is widened by plain arithmetic.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Half(pub u16);

impl KvElement for Half {
    const NAME: &'static str = "f16";

    #[inline(always)]
    fn load(self) -> f32 {
        f16_to_f32(self.0)
    }

    /// Saturates: a finite activation never becomes infinite.
    #[inline(always)]
    fn store(value: f32, _scale: f32) -> Self {
        Half(half::f16::from_f32(value.clamp(-65504.0, 65504.0)).to_bits())
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
        Half(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// The upper half of an `f32`: its whole range, in eight bits of precision.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Brain(pub u16);

impl KvElement for Brain {
    const NAME: &'static str = "bf16";

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Saturates, as [`Half`] does.
    #[inline(always)]
    fn store(value: f32, _scale: f32) -> Self {
        let most = half::bf16::MAX.to_f32();
        Brain(half::bf16::from_f32(value.clamp(-most, most)).to_bits())
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
        Brain(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// Eight bits, under a factor of the token's key or value of one head: a head's largest element
/// decides how finely the others of the same token are kept, and none of another's.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Eighth(pub i8);

impl KvElement for Eighth {
    const NAME: &'static str = "q8";
    const SCALED: bool = true;

    #[inline(always)]
    fn load(self) -> f32 {
        f32::from(self.0)
    }

    /// NaN and infinities make a factor that does not hide them; a finite element never becomes
    /// infinite.
    #[inline(always)]
    fn scale_of(values: &[f32]) -> f32 {
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
        Eighth(((value / scale + magic) - magic) as i8)
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
        Eighth(bytes[0] as i8)
    }
}
