//! Safe wrappers of MLX's arrays and operations: the only module that calls the shim to compute.
//!
//! Operations are lazy: they describe a computation, which [`Ops::eval`] or a read starts. Each
//! returns a new array. MLX reuses the memory of an input that nothing refers to, so an array
//! that is updated in place must be dropped before the evaluation.

use std::ffi::CStr;
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::MlxError;
use crate::ffi::{self, Api, RawArray, RawStream};

type Result<T> = std::result::Result<T, MlxError>;

/// Types of values, in the shim's numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Type {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    U32 = 3,
    I32 = 4,
    U8 = 5,
    Bool = 6,
}

impl Type {
    pub const fn bytes(self) -> usize {
        match self {
            Type::F32 | Type::U32 | Type::I32 => 4,
            Type::F16 | Type::BF16 => 2,
            Type::U8 | Type::Bool => 1,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Type::F32 => "f32",
            Type::F16 => "f16",
            Type::BF16 => "bf16",
            Type::U32 => "u32",
            Type::I32 => "i32",
            Type::U8 => "u8",
            Type::Bool => "bool",
        }
    }
}

/// The kinds of device, in the shim's numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DeviceKind {
    Cpu = 0,
    Gpu = 1,
}

#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum Unary {
    Exp = 0,
    Sigmoid = 1,
    /// `1 / sqrt(a)`
    InverseRoot = 2,
}

#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum Binary {
    Add = 0,
    Subtract = 1,
    Multiply = 2,
    Minimum = 3,
    GreaterEqual = 4,
    And = 5,
    /// The quotient's whole part.
    FloorDivide = 6,
    Maximum = 7,
}

#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum Reduce {
    Sum = 0,
    Max = 1,
    /// The index of the largest value; the lowest index of equal values.
    ArgMax = 2,
}

/// Elementwise functions that MLX compiles into one kernel, and their inputs.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum Fused {
    /// `silu(a) * b`
    SiluTimes = 0,
    GeluTimes = 1,
    GeluTanhTimes = 2,
    Silu = 3,
    Gelu = 4,
    GeluTanh = 5,
    /// Gate, up, alpha, limit.
    ClampedSwiglu = 6,
    /// `a * sigmoid(b)`
    TimesSigmoid = 7,
    /// `a * silu(b)`
    TimesSilu = 8,
    /// `tanh(a / b) * b`
    Softcap = 9,
    /// `max(a, 0)²`
    Relu2 = 10,
    Relu = 11,
    /// `a / (b + c) * d`
    Share = 12,
    /// `a * b + c * d + ...`; with an odd number of inputs, the last is added unchanged.
    SumOfProducts = 13,
    /// The SiLU of that.
    SiluOfProducts = 14,
    /// `a * (b * c + d * e + ...)`, of `a`'s type.
    TimesProducts = 15,
    /// `c * softplus(a + b)`
    LogDecay = 16,
    /// `softplus(a * b + c)`, clamped between `d` and `e`.
    StepSize = 17,
    /// `a * exp(b)`
    TimesExp = 18,
    /// `a * exp(b) + c * d`
    Remember = 19,
    /// `(a - b) * sigmoid(c)`
    Change = 20,
    /// `exp(a - b + c)`, optionally times `d`.
    PairDecay = 21,
    QuickGelu = 22,
    QuickGeluTimes = 23,
}

/// How a quantized matrix is packed, in MLX's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    pub mode: &'static CStr,
    pub bits: i32,
    pub group: i32,
}

impl Packing {
    fn raw(self) -> ffi::Packing {
        ffi::Packing {
            group: self.group,
            bits: self.bits,
            mode: self.mode.as_ptr(),
        }
    }
}

/// Codes of [..., rows, cols in words], with a scale and an optional bias per group.
#[derive(Clone)]
pub struct Packed {
    pub codes: Array,
    pub scales: Array,
    pub biases: Option<Array>,
    pub packing: Packing,
}

/// Which keys each query attends to.
#[derive(Clone, Copy)]
pub enum Mask<'a> {
    /// Every query attends to every key.
    None,
    /// The last query attends to all keys, the one before it to one less, and so on.
    Causal,
    /// Booleans (true: attend), or values that are added to the scores.
    Array(&'a Array),
}

/// An MLX array, which may not be computed yet. Cloning is cheap and shares it.
pub struct Array {
    raw: *mut RawArray,
    api: &'static Api,
}

// SAFETY: MLX counts references atomically, and an array has no tie to the thread that made it;
// it is used by one thread at a time, since it is not `Sync`.
unsafe impl Send for Array {}

impl Clone for Array {
    fn clone(&self) -> Self {
        // SAFETY: `raw` is a live array of this library.
        let raw = unsafe { (self.api.array_clone)(self.raw) };
        // Cloning allocates one small object; Rust aborts too when that fails.
        assert!(!raw.is_null(), "out of memory");
        Self { raw, api: self.api }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live array of this library, owned by this value.
        unsafe { (self.api.array_free)(self.raw) };
    }
}

impl Array {
    pub fn dim(&self, axis: usize) -> i32 {
        // SAFETY: `raw` is a live array of this library.
        unsafe { (self.api.array_dim)(self.raw, axis) }
    }

    pub fn dtype(&self) -> Type {
        // SAFETY: `raw` is a live array of this library.
        let code = unsafe { (self.api.array_dtype)(self.raw) };
        let known = [
            Type::F32,
            Type::F16,
            Type::BF16,
            Type::U32,
            Type::I32,
            Type::U8,
            Type::Bool,
        ];
        known.get(code as usize).copied().unwrap_or(Type::F32)
    }

    pub fn shape(&self) -> Vec<i32> {
        // SAFETY: `raw` is a live array of this library.
        let dims = unsafe { (self.api.array_dims)(self.raw) };
        (0..dims).map(|axis| self.dim(axis)).collect()
    }
}

fn raw(array: Option<&Array>) -> *const RawArray {
    array.map_or(ptr::null(), |array| array.raw.cast_const())
}

fn list(arrays: &[&Array]) -> Vec<*const RawArray> {
    arrays.iter().map(|array| array.raw.cast_const()).collect()
}

/// A range of one dimension.
pub fn slice_axis(ops: &Ops, x: &Array, axis: usize, range: Range<usize>) -> Result<Array> {
    let mut stop = x.shape();
    let (first, end) = (range.start as i32, range.end as i32);
    if first == 0 && end == stop[axis] {
        return Ok(x.clone());
    }
    let mut start = vec![0; stop.len()];
    (start[axis], stop[axis]) = (first, end);
    ops.slice(x, &start, &stop)
}

/// A device's stream of work, and the operations on it.
pub struct Ops {
    api: &'static Api,
    device: DeviceKind,
    stream: *mut RawStream,
}

// SAFETY: the shim makes streams that any thread may use, one at a time; `Ops` is not `Sync`.
unsafe impl Send for Ops {}

/// Unused streams, for reuse: MLX never frees one, nor the thread behind a CPU stream.
static IDLE: Mutex<Vec<Ops>> = Mutex::new(Vec::new());

impl Drop for Ops {
    fn drop(&mut self) {
        idle().push(Self { ..*self });
    }
}

fn idle() -> MutexGuard<'static, Vec<Ops>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ops {
    pub fn new(api: &'static Api, device: DeviceKind) -> Result<Self> {
        let mut idle = idle();
        let fits = |ops: &Ops| ptr::eq(ops.api, api) && ops.device == device;
        if let Some(index) = idle.iter().position(fits) {
            return Ok(idle.swap_remove(index));
        }
        // SAFETY: the library is never unloaded.
        let stream = unsafe { (api.stream_new)(device as u32) };
        if stream.is_null() {
            Err(last_error(api))
        } else {
            Ok(Self {
                api,
                device,
                stream,
            })
        }
    }

    /// Whether this is an NVIDIA GPU: Apple's exist only on macOS.
    pub fn is_cuda(&self) -> bool {
        self.device == DeviceKind::Gpu && !cfg!(target_os = "macos")
    }

    /// Takes ownership of an operation's result.
    fn wrap(&self, raw: *mut RawArray) -> Result<Array> {
        if raw.is_null() {
            Err(last_error(self.api))
        } else {
            Ok(Array { raw, api: self.api })
        }
    }

    fn check(&self, succeeded: bool) -> Result<()> {
        if succeeded {
            Ok(())
        } else {
            Err(last_error(self.api))
        }
    }
}

/// Why the last call on this thread failed, as the shim recorded it.
pub fn last_error(api: &Api) -> MlxError {
    // SAFETY: the text belongs to this thread until its next call.
    let text = unsafe {
        let text = (api.error)();
        std::slice::from_raw_parts(text.data, text.len)
    };
    MlxError(String::from_utf8_lossy(text).into_owned())
}

/// Each body calls one function of the shim with this value's stream.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) => $call:ident($($value:expr),*);)*) => {
        impl Ops {
            $(
                $(#[$doc])*
                pub fn $name(&self, $($argument: $type),*) -> Result<Array> {
                    // SAFETY: arrays are live and of this library, lists outlive the call, and the
                    // shim checks shapes and types.
                    self.wrap(unsafe { (self.api.$call)($($value,)* self.stream) })
                }
            )*
        }
    };
}

operations! {
    full(dims: &[i32], value: f32, of: Type) => full(dims.into(), value, of as u32);
    arange(start: i32, stop: i32, of: Type) => arange(start, stop, of as u32);
    astype(a: &Array, to: Type) => astype(a.raw, to as u32);
    reshape(a: &Array, dims: &[i32]) => reshape(a.raw, dims.into());
    transpose(a: &Array, order: &[i32]) => transpose(a.raw, order.into());
    broadcast_to(a: &Array, dims: &[i32]) => broadcast_to(a.raw, dims.into());
    /// `start..stop` in each dimension.
    slice(a: &Array, start: &[i32], stop: &[i32]) => slice(a.raw, start.into(), stop.into());
    /// `a` with `update` at `start..stop`.
    slice_update(a: &Array, update: &Array, start: &[i32], stop: &[i32])
        => slice_update(a.raw, update.raw, start.into(), stop.into());
    /// `a` of [rows, heads, positions, dim] with `update` of [n, 1, heads, 1, dim] at these rows
    /// and positions.
    put_tokens(a: &Array, rows: &Array, places: &Array, update: &Array)
        => put_tokens(a.raw, rows.raw, places.raw, update.raw);
    concatenate(arrays: &[&Array], axis: i32)
        => concatenate(list(arrays).as_slice().into(), axis);
    contiguous(a: &Array) => contiguous(a.raw);
    take_rows(a: &Array, indices: &Array, axis: i32) => take(a.raw, indices.raw, axis);
    take_along(a: &Array, indices: &Array, axis: i32) => take_along_axis(a.raw, indices.raw, axis);
    put_along(a: &Array, indices: &Array, values: &Array, axis: i32)
        => put_along_axis(a.raw, indices.raw, values.raw, axis);
    unary(op: Unary, a: &Array) => unary(op as u32, a.raw);
    binary(op: Binary, a: &Array, b: &Array) => binary(op as u32, a.raw, b.raw);
    /// Multiplies by a number of the array's type.
    scale(a: &Array, factor: f32) => scale(a.raw, factor);
    select(condition: &Array, yes: &Array, no: &Array) => select(condition.raw, yes.raw, no.raw);
    reduce(op: Reduce, a: &Array, axis: i32, keep: bool) => reduce(op as u32, a.raw, axis, keep);
    cumsum(a: &Array, axis: i32) => cumsum(a.raw, axis);
    /// Indices that move the `kth` smallest values to the front.
    argpartition(a: &Array, kth: i32, axis: i32) => argpartition(a.raw, kth, axis);
    /// The `count` largest values, in any order.
    largest(a: &Array, count: i32, axis: i32) => largest(a.raw, count, axis);
    argsort(a: &Array, axis: i32) => argsort(a.raw, axis);
    softmax(a: &Array, axis: i32) => softmax(a.raw, axis);
    fused(function: Fused, inputs: &[&Array])
        => fused(function as u32, list(inputs).as_slice().into());
    matmul(a: &Array, b: &Array) => matmul(a.raw, b.raw);
    /// `c + a @ b`
    addmm(c: &Array, a: &Array, b: &Array) => addmm(c.raw, a.raw, b.raw);
    /// `x` times a packed matrix, transposed.
    quantized_matmul(x: &Array, matrix: &Packed) => quantized_matmul(
        x.raw, matrix.codes.raw, matrix.scales.raw, raw(matrix.biases.as_ref()),
        matrix.packing.raw()
    );
    dequantize(matrix: &Packed, to: Type) => dequantize(
        matrix.codes.raw, matrix.scales.raw, raw(matrix.biases.as_ref()), matrix.packing.raw(),
        to as u32
    );
    /// `x[i] @ stack[chosen[i]]` for each `i`; `sorted` states that `chosen` is ascending.
    gather_matmul(x: &Array, stack: &Array, chosen: &Array, sorted: bool)
        => gather_matmul(x.raw, stack.raw, chosen.raw, sorted);
    /// The same with packed matrices, transposed.
    gather_quantized_matmul(x: &Array, stack: &Packed, chosen: &Array, sorted: bool)
        => gather_quantized_matmul(
            x.raw, stack.codes.raw, stack.scales.raw, raw(stack.biases.as_ref()), chosen.raw,
            stack.packing.raw(), sorted
        );
    rms_norm(x: &Array, weight: Option<&Array>, eps: f32) => rms_norm(x.raw, raw(weight), eps);
    layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32)
        => layer_norm(x.raw, raw(weight), raw(bias), eps);
    /// `x`: [batch, heads, time, dim]; `offsets`: the first position of each of the batch;
    /// `periods`: the inverse of each pair's angle per position.
    rope(x: &Array, dims: i32, neighbours: bool, offsets: &Array, periods: &Array)
        => rope(x.raw, dims, neighbours, offsets.raw, periods.raw);
}

impl Ops {
    /// A copy of values in memory.
    pub fn upload(&self, bytes: &[u8], dims: &[i32], of: Type) -> Result<Array> {
        self.upload_parts(&[bytes], dims, of)
    }

    /// A copy of a weight in device memory: the concatenated parts.
    pub fn upload_weight(&self, parts: &[&[u8]], dims: &[i32], of: Type) -> Result<Array> {
        let copied = self.upload_parts(parts, dims, of)?;
        // SAFETY: as for the other operations.
        self.wrap(unsafe { (self.api.settle)(copied.raw, self.stream) })
    }

    fn upload_parts(&self, parts: &[&[u8]], dims: &[i32], of: Type) -> Result<Array> {
        let parts: Vec<ffi::Bytes> = parts.iter().map(|part| (*part).into()).collect();
        // SAFETY: the shim reads only the parts, only during the call, and checks their size.
        let raw = unsafe { (self.api.from_parts)(parts.as_slice().into(), dims.into(), of as u32) };
        self.wrap(raw)
    }

    pub fn upload_f32(&self, values: &[f32], dims: &[i32]) -> Result<Array> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.upload(&bytes, dims, Type::F32)
    }

    pub fn upload_i32(&self, values: &[i32], dims: &[i32]) -> Result<Array> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.upload(&bytes, dims, Type::I32)
    }

    pub fn upload_u32(&self, values: &[u32], dims: &[i32]) -> Result<Array> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.upload(&bytes, dims, Type::U32)
    }

    pub fn add(&self, a: &Array, b: &Array) -> Result<Array> {
        self.binary(Binary::Add, a, b)
    }

    pub fn multiply(&self, a: &Array, b: &Array) -> Result<Array> {
        self.binary(Binary::Multiply, a, b)
    }

    /// `queries`: [batch, heads, time, dim]; keys and values may have fewer heads.
    pub fn attention(
        &self,
        [queries, keys, values]: [&Array; 3],
        scale: f32,
        mask: Mask,
        sinks: Option<&Array>,
    ) -> Result<Array> {
        let (causal, given) = match mask {
            Mask::None => (false, None),
            Mask::Causal => (true, None),
            Mask::Array(mask) => (false, Some(mask)),
        };
        // SAFETY: as for the other operations.
        let raw = unsafe {
            (self.api.attention)(
                queries.raw,
                keys.raw,
                values.raw,
                scale,
                causal,
                raw(given),
                raw(sinks),
                self.stream,
            )
        };
        self.wrap(raw)
    }

    /// Outputs and the state after the last token, by the gated delta rule.
    pub fn gated_delta(
        &self,
        [queries, keys, values]: [&Array; 3],
        decay: &Array,
        beta: &Array,
        state: Option<&Array>,
    ) -> Result<(Array, Array)> {
        let mut after = ptr::null_mut();
        // SAFETY: as for the other operations; `after` is set if the call succeeds.
        let out = unsafe {
            (self.api.gated_delta)(
                queries.raw,
                keys.raw,
                values.raw,
                decay.raw,
                beta.raw,
                raw(state),
                &mut after,
                self.stream,
            )
        };
        // Both are wrapped before either is checked, so that none leaks.
        let (out, after) = (self.wrap(out), self.wrap(after));
        Ok((out?, after?))
    }

    /// Computes the arrays and waits.
    pub fn eval(&self, arrays: &[&Array]) -> Result<()> {
        // SAFETY: arrays are live, and the list outlives the call.
        self.check(unsafe { (self.api.eval)(list(arrays).as_slice().into()) })
    }

    /// Starts computing the arrays.
    pub fn start(&self, arrays: &[&Array]) -> Result<()> {
        // SAFETY: arrays are live, and the list outlives the call.
        self.check(unsafe { (self.api.async_eval)(list(arrays).as_slice().into()) })
    }

    /// Waits for everything that was started.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: this value owns the stream.
        self.check(unsafe { (self.api.synchronize)(self.stream) })
    }

    /// Computes the array and copies its values, which must be of `out`'s size.
    pub fn read(&self, array: &Array, out: &mut [u8]) -> Result<()> {
        // SAFETY: the shim checks the size before it writes.
        self.check(unsafe { (self.api.read)(array.raw, out.as_mut_ptr(), out.len(), self.stream) })
    }

    pub fn read_f32(&self, array: &Array, out: &mut [f32]) -> Result<()> {
        let mut bytes = vec![0; out.len() * 4];
        self.read(array, &mut bytes)?;
        for (value, four) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        }
        Ok(())
    }

    pub fn read_u32(&self, array: &Array, out: &mut [u32]) -> Result<()> {
        let mut bytes = vec![0; out.len() * 4];
        self.read(array, &mut bytes)?;
        for (value, four) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
