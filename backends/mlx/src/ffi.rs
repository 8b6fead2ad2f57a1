//! The shim's functions, looked up in the loaded library. `shim/shim.h` says what each does and
//! who owns what; the signatures in both files must agree, which [`ABI`] checks.

use std::ffi::c_char;

use libloading::Library;

/// A hash of the files on both sides, so that only a matching shim is loaded.
pub const ABI: u64 = match u64::from_str_radix(env!("LOQUAT_MLX_ABI"), 16) {
    Ok(abi) => abi,
    Err(_) => panic!("the build sets LOQUAT_MLX_ABI to a number"),
};

/// An `mlx::core::array` of the shim's.
#[repr(C)]
pub struct RawArray {
    _opaque: [u8; 0],
}

/// An `mlx::core::Stream` of the shim's.
#[repr(C)]
pub struct RawStream {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dims {
    data: *const i32,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Arrays {
    data: *const *const RawArray,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Packing {
    pub group: i32,
    pub bits: i32,
    pub mode: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    pub data: *const u8,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByteSlices {
    data: *const Bytes,
    len: usize,
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }
}

impl From<&[Bytes]> for ByteSlices {
    fn from(parts: &[Bytes]) -> Self {
        Self {
            data: parts.as_ptr(),
            len: parts.len(),
        }
    }
}

impl From<&[i32]> for Dims {
    fn from(dims: &[i32]) -> Self {
        Self {
            data: dims.as_ptr(),
            len: dims.len(),
        }
    }
}

impl From<&[*const RawArray]> for Arrays {
    fn from(arrays: &[*const RawArray]) -> Self {
        Self {
            data: arrays.as_ptr(),
            len: arrays.len(),
        }
    }
}

type In = *const RawArray;
type Out = *mut RawArray;
type Stream = *const RawStream;

macro_rules! api {
    ($($name:ident($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions, valid as long as the library, which is kept with them.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
            _library: Library,
        }

        impl Api {
            /// # Safety
            /// Functions of these names in the library must have these signatures.
            pub unsafe fn resolve(library: Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: as the caller promises.
                    $($name: unsafe {
                        *library.get(concat!("lq_", stringify!($name), "\0").as_bytes())?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

api! {
    version() -> Text;
    error() -> Text;
    device_available(u32) -> bool;
    device_name(u32, *mut u64) -> Text;
    stream_new(u32) -> *mut RawStream;
    synchronize(Stream) -> bool;
    memory(*mut u64, *mut u64, *mut u64);
    set_limits(u64, u64) -> bool;
    memory_limit() -> u64;
    set_wired_limit(u64) -> bool;
    clear_cache() -> bool;
    set_compile(bool);
    array_free(Out);
    array_clone(In) -> Out;
    array_dims(In) -> usize;
    array_dim(In, usize) -> i32;
    array_dtype(In) -> u32;
    from_parts(ByteSlices, Dims, u32) -> Out;
    settle(In, Stream) -> Out;
    full(Dims, f32, u32, Stream) -> Out;
    arange(i32, i32, u32, Stream) -> Out;
    eval(Arrays) -> bool;
    async_eval(Arrays) -> bool;
    read(In, *mut u8, usize, Stream) -> bool;
    astype(In, u32, Stream) -> Out;
    reshape(In, Dims, Stream) -> Out;
    transpose(In, Dims, Stream) -> Out;
    broadcast_to(In, Dims, Stream) -> Out;
    slice(In, Dims, Dims, Stream) -> Out;
    slice_update(In, In, Dims, Dims, Stream) -> Out;
    put_tokens(In, In, In, In, Stream) -> Out;
    concatenate(Arrays, i32, Stream) -> Out;
    contiguous(In, Stream) -> Out;
    take(In, In, i32, Stream) -> Out;
    take_along_axis(In, In, i32, Stream) -> Out;
    put_along_axis(In, In, In, i32, Stream) -> Out;
    unary(u32, In, Stream) -> Out;
    binary(u32, In, In, Stream) -> Out;
    scale(In, f32, Stream) -> Out;
    select(In, In, In, Stream) -> Out;
    reduce(u32, In, i32, bool, Stream) -> Out;
    cumsum(In, i32, Stream) -> Out;
    argpartition(In, i32, i32, Stream) -> Out;
    largest(In, i32, i32, Stream) -> Out;
    argsort(In, i32, Stream) -> Out;
    softmax(In, i32, Stream) -> Out;
    fused(u32, Arrays, Stream) -> Out;
    matmul(In, In, Stream) -> Out;
    addmm(In, In, In, Stream) -> Out;
    quantized_matmul(In, In, In, In, Packing, Stream) -> Out;
    dequantize(In, In, In, Packing, u32, Stream) -> Out;
    gather_matmul(In, In, In, bool, Stream) -> Out;
    gather_quantized_matmul(In, In, In, In, In, Packing, bool, Stream) -> Out;
    rms_norm(In, In, f32, Stream) -> Out;
    layer_norm(In, In, In, f32, Stream) -> Out;
    rope(In, i32, bool, In, In, Stream) -> Out;
    attention(In, In, In, f32, bool, In, In, Stream) -> Out;
    gated_delta(In, In, In, In, In, In, *mut Out, Stream) -> Out;
}
