//! Why the driver refused a call.

use std::fmt;

use thiserror::Error;

/// A version of CUDA's interface, such as 13.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    pub major: u32,
    pub minor: u32,
}

impl CudaVersion {
    /// From the driver's number, such as 13000.
    pub fn from_number(number: i32) -> Self {
        let number = u32::try_from(number).unwrap_or_default();
        Self {
            major: number / 1000,
            minor: number % 1000 / 10,
        }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a call of the driver returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub code: u32,
    /// Such as `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver's description.
    pub text: String,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, name, text } = self;
        match (name.as_str(), text.as_str()) {
            ("", _) => write!(f, "error {code}"),
            (name, "") => write!(f, "{name} ({code})"),
            (name, text) => write!(f, "{text} ({name}, {code})"),
        }
    }
}

/// Why the driver, or a check before it is called, refused an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DriverError {
    #[error("the NVIDIA driver's library `{name}` cannot be loaded: {why}")]
    LibraryMissing { name: &'static str, why: String },
    #[error("the NVIDIA driver supports CUDA {found}, and CUDA {needed} is needed")]
    TooOld {
        found: CudaVersion,
        needed: CudaVersion,
    },
    #[error("the NVIDIA driver's library has no function `{symbol}`")]
    MissingFunction { symbol: &'static str },
    #[error("the NVIDIA driver cannot be used: {status}")]
    Unusable { status: Status },
    #[error("there is no NVIDIA GPU that CUDA can use")]
    NoDevice,
    #[error("there is no GPU {ordinal}: this machine has {count}")]
    UnknownDevice { ordinal: u32, count: u32 },
    #[error("the GPU is out of memory: {wanted} bytes were requested")]
    OutOfMemory { wanted: u64 },
    /// No call on this device succeeds while this process has a context of it.
    #[error("the GPU failed and its context is lost: {call}: {status}")]
    DeviceLost { call: &'static str, status: Status },
    #[error("the kernels are not compiled for this GPU: {status}")]
    UnsupportedArchitecture { status: Status },
    #[error("these bytes are not compiled kernels: {why}")]
    InvalidImage { why: &'static str },
    #[error("there is no kernel `{name}`")]
    UnknownFunction { name: String },
    #[error("kernel `{function}` takes parameters of {expected:?} bytes, not {found:?}")]
    Parameters {
        function: String,
        expected: Vec<usize>,
        found: Vec<usize>,
    },
    #[error("the {len} bytes at address {address:#x} are not allocated on the GPU")]
    NotAllocated { address: u64, len: u64 },
    #[error("{len} bytes at address {address:#x} are not whole parts of {granularity} bytes")]
    Granularity {
        address: u64,
        len: u64,
        granularity: u64,
    },
    #[error("{end} bytes do not fit into a pinned buffer of {capacity}")]
    PinnedRange { end: usize, capacity: usize },
    #[error("{call} failed: {status}")]
    Call { call: &'static str, status: Status },
}

impl DriverError {
    /// Whether later calls on the device fail too.
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost { .. })
    }
}

/// What an error code means for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    OutOfMemory,
    NoDevice,
    Lost,
    NoImage,
    UnknownName,
    Other,
}

/// The numbers are those of `cuda.h`.
pub fn classify(code: u32) -> ErrorClass {
    match code {
        2 => ErrorClass::OutOfMemory,
        100 => ErrorClass::NoDevice,
        // PTX is invalid or too new, or no image fits; a JIT compiler is missing or disabled.
        209 | 218 | 221 | 222 | 223 => ErrorClass::NoImage,
        500 => ErrorClass::UnknownName,
        // The device is unavailable, or memory or a link has an uncorrectable error.
        46 | 214 | 220 | 226 => ErrorClass::Lost,
        // A kernel's fault: bad address, time limit, assertion, instruction, stack or launch.
        700 | 702 | 709 | 710 | 714..=719 | 721 => ErrorClass::Lost,
        // The server of shared contexts is gone; an external device failed; unknown.
        806 | 810 | 911 | 999 => ErrorClass::Lost,
        _ => ErrorClass::Other,
    }
}
