//! The element formats of the KV cache.

use half::slice::HalfFloatSliceExt;

use super::attend_codes::{self, CodedQuery, QueryTile};
use super::attention::{HeadLayout, PageStep, Softmax, attend_floats};
use super::code_register::CodeRegister;
use super::kv_codes::CodeSpan;
use super::page::PagePtr;
use super::register::Register;
use super::{Attend, Kernels, LANES, MAX_QUERIES, PAGE, f16_to_f32};

/// What pages consist of: floats, or bytes of codes.
pub trait KvElement: Copy + Default + Send + Sync + 'static {
    const BYTES: usize = size_of::<Self>();

    /// A query, made ready for this element's pages.
    type Query<'a>: Copy;

    fn prepare<'a, const N: usize>(
        queries: [&'a [f32]; N],
        room: &'a mut Vec<QueryTile>,
    ) -> [Self::Query<'a>; N];
    /// Takes in one page.
    fn attend_page<R: CodeRegister, const N: usize>(
        step: &PageStep<Self, N>,
        softmaxes: &mut [Softmax; N],
        outs: &mut [&mut [f32]; N],
    );
    /// The table's attention kernel for this element.
    fn attend(kernels: &Kernels) -> Attend<Self>;

    /// The most queries at once that are worth compiling a kernel for.
    const QUERIES: usize;
    /// Tokens of a page share elements: one thread at a time may write a head of a page.
    const SHARED: bool;

    /// Writes one token's key and value; codes take them [rotated](Kernels::rotate_codes).
    ///
    /// # Safety
    /// The page must live and have this layout, and no other thread may access the token, or, if
    /// elements are [shared](KvElement::SHARED), the head.
    unsafe fn write_head(
        page: PagePtr<Self>,
        layout: &HeadLayout,
        slot: usize,
        key: &[f32],
        value: &[f32],
    );
    /// Bytes of a token's exported key and value.
    fn export_len(layout: &HeadLayout) -> usize;
    /// Appends a token's key and value as they are stored.
    ///
    /// # Safety
    /// The page must live and have this layout, and no thread may write it meanwhile.
    unsafe fn export_head(page: PagePtr<Self>, layout: &HeadLayout, slot: usize, out: &mut Vec<u8>);
    /// Writes what `export_head` appended.
    ///
    /// # Safety
    /// As for `write_head`.
    unsafe fn import_head(page: PagePtr<Self>, layout: &HeadLayout, slot: usize, bytes: &[u8]);
}

/// An element that is one float.
pub trait PlainElement: Copy + Default + Send + Sync + 'static {
    fn load(self) -> f32;
    fn store(value: f32) -> Self;
    /// [`PlainElement::store`] of as many values as there are elements.
    fn store_all(values: &[f32], out: &mut [Self]) {
        assert_eq!(values.len(), out.len());
        for (out, value) in out.iter_mut().zip(values) {
            *out = Self::store(*value);
        }
    }
    /// [`PlainElement::load`] of sixteen.
    fn widen<R: Register>(values: &[Self; LANES]) -> R;
    fn kernel(kernels: &Kernels) -> Attend<Self>;
    fn to_bytes(self, out: &mut Vec<u8>);
    /// Reads the bytes that `to_bytes` wrote.
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl<T: PlainElement> KvElement for T {
    type Query<'a> = &'a [f32];

    #[inline(always)]
    fn prepare<'a, const N: usize>(
        queries: [&'a [f32]; N],
        _room: &'a mut Vec<QueryTile>,
    ) -> [&'a [f32]; N] {
        queries
    }

    #[inline(always)]
    fn attend_page<R: CodeRegister, const N: usize>(
        step: &PageStep<T, N>,
        softmaxes: &mut [Softmax; N],
        outs: &mut [&mut [f32]; N],
    ) {
        attend_floats::<R, T, N>(step, softmaxes, outs);
    }

    fn attend(kernels: &Kernels) -> Attend<T> {
        T::kernel(kernels)
    }

    const QUERIES: usize = MAX_QUERIES;
    const SHARED: bool = false;

    #[inline]
    unsafe fn write_head(
        page: PagePtr<T>,
        layout: &HeadLayout,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let mut stored = [T::default(); LANES];
        for (chunk, key) in key.chunks(LANES).enumerate() {
            let stored = &mut stored[..key.len()];
            T::store_all(key, stored);
            for (d, element) in stored.iter().enumerate() {
                let at = layout.keys + (chunk * LANES + d) * PAGE + slot;
                // SAFETY: the caller's promise.
                unsafe { page.write(at, *element) };
            }
        }
        if let Some(values) = layout.values {
            let first = values + slot * layout.value_dim;
            // SAFETY: the caller's promise.
            T::store_all(value, unsafe { page.slice_mut(first, layout.value_dim) });
        }
    }

    fn export_len(layout: &HeadLayout) -> usize {
        layout.elements(0).count() * T::BYTES
    }

    unsafe fn export_head(page: PagePtr<T>, layout: &HeadLayout, slot: usize, out: &mut Vec<u8>) {
        for element in layout.elements(slot) {
            // SAFETY: the caller's promise.
            let stored = unsafe { page.slice(element, 1) };
            stored[0].to_bytes(out);
        }
    }

    unsafe fn import_head(page: PagePtr<T>, layout: &HeadLayout, slot: usize, bytes: &[u8]) {
        let elements = layout.elements(slot);
        for (element, bytes) in elements.zip(bytes.chunks_exact(T::BYTES)) {
            // SAFETY: the caller's promise.
            unsafe { page.write(element, T::from_bytes(bytes)) };
        }
    }
}

impl HeadLayout {
    /// A token's floats, first its key's.
    fn elements(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let (keys, value_dim) = (self.keys, self.value_dim);
        let key = (0..self.key_dim).map(move |d| keys + d * PAGE + slot);
        let value = self.values.into_iter().flat_map(move |at| {
            let first = at + slot * value_dim;
            first..first + value_dim
        });
        key.chain(value)
    }

    /// A token's exported key and value, each with its span.
    fn exported<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (CodeSpan, &'a [u8])> {
        self.codes.into_iter().flat_map(move |codes| {
            let (key, value) = bytes.split_at(codes.key.export_bytes());
            [(codes.key, key), (codes.value, value)]
        })
    }
}

/// A byte of codes, which head layouts interpret.
impl KvElement for u8 {
    type Query<'a> = CodedQuery<'a>;

    #[inline(always)]
    fn prepare<'a, const N: usize>(
        queries: [&'a [f32]; N],
        room: &'a mut Vec<QueryTile>,
    ) -> [CodedQuery<'a>; N] {
        attend_codes::prepare(queries, room)
    }

    #[inline(always)]
    fn attend_page<R: CodeRegister, const N: usize>(
        step: &PageStep<u8, N>,
        softmaxes: &mut [Softmax; N],
        outs: &mut [&mut [f32]; N],
    ) {
        attend_codes::attend_page::<R, N>(step, softmaxes, outs);
    }

    fn attend(kernels: &Kernels) -> Attend<u8> {
        kernels.attend_codes
    }

    const QUERIES: usize = 4;
    const SHARED: bool = true;

    unsafe fn write_head(
        page: PagePtr<u8>,
        layout: &HeadLayout,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        if let Some(codes) = &layout.codes {
            // SAFETY: the caller's promise.
            unsafe {
                codes.key.write(page, slot, key);
                codes.value.write(page, slot, value);
            }
        }
    }

    fn export_len(layout: &HeadLayout) -> usize {
        let codes = layout.codes.as_ref();
        codes.map_or(0, |codes| {
            codes.key.export_bytes() + codes.value.export_bytes()
        })
    }

    unsafe fn export_head(page: PagePtr<u8>, layout: &HeadLayout, slot: usize, out: &mut Vec<u8>) {
        if let Some(codes) = &layout.codes {
            // SAFETY: the caller's promise.
            unsafe {
                codes.key.export(page, slot, out);
                codes.value.export(page, slot, out);
            }
        }
    }

    unsafe fn import_head(page: PagePtr<u8>, layout: &HeadLayout, slot: usize, bytes: &[u8]) {
        for (span, bytes) in layout.exported(bytes) {
            // SAFETY: the caller's promise.
            unsafe { span.import(page, slot, bytes) };
        }
    }
}

impl PlainElement for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn store(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        R::load(values)
    }

    fn kernel(kernels: &Kernels) -> Attend<Self> {
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

impl PlainElement for F16Bits {
    #[inline(always)]
    fn load(self) -> f32 {
        f16_to_f32(self.0)
    }

    /// Saturates: a finite activation never becomes infinite.
    #[inline(always)]
    fn store(value: f32) -> Self {
        F16Bits(half::f16::from_f32(value.clamp(-65504.0, 65504.0)).to_bits())
    }

    /// By sixteen: `half` looks for the instruction at every call.
    fn store_all(values: &[f32], out: &mut [Self]) {
        assert_eq!(values.len(), out.len());
        for (out, values) in out.chunks_mut(LANES).zip(values.chunks(LANES)) {
            let mut clamped = [0.0f32; LANES];
            for (clamped, value) in clamped.iter_mut().zip(values) {
                *clamped = value.clamp(-65504.0, 65504.0);
            }
            let mut halves = [half::f16::ZERO; LANES];
            halves.convert_from_f32_slice(&clamped);
            for (out, half) in out.iter_mut().zip(halves) {
                *out = F16Bits(half.to_bits());
            }
        }
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        // SAFETY: the element is its bits, and nothing else.
        R::from_f16(unsafe { &*values.as_ptr().cast() })
    }

    fn kernel(kernels: &Kernels) -> Attend<Self> {
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

impl PlainElement for Bf16Bits {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Saturates like [`F16Bits`].
    #[inline(always)]
    fn store(value: f32) -> Self {
        let most = half::bf16::MAX.to_f32();
        Bf16Bits(half::bf16::from_f32(value.clamp(-most, most)).to_bits())
    }

    #[inline(always)]
    fn widen<R: Register>(values: &[Self; LANES]) -> R {
        // SAFETY: the element is its bits, and nothing else.
        R::from_bf16(unsafe { &*values.as_ptr().cast() })
    }

    fn kernel(kernels: &Kernels) -> Attend<Self> {
        kernels.attend_bf16
    }

    fn to_bytes(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Bf16Bits(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}
