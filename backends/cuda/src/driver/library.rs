//! Finds, loads and initializes the driver's library.

use std::error::Error as _;
use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::OnceLock;

use super::device::DeviceInfo;
use super::error::{CudaVersion, DriverError, ErrorClass, Status, classify};
use super::ffi::{Api, Code, SUCCESS};

/// Kernels compiled by CUDA 13.0 need a driver that supports it.
pub const MIN_CUDA: CudaVersion = CudaVersion {
    major: 13,
    minor: 0,
};

const NAME: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so.1"
};

/// The driver, initialized. It is never unloaded.
#[derive(Clone, Copy)]
pub struct Library {
    api: Api,
    version: CudaVersion,
}

impl Library {
    /// Loads the library at the first call. Later calls return the same result.
    pub fn load() -> Result<&'static Self, DriverError> {
        static LOADED: OnceLock<Result<Library, DriverError>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| {
            // SAFETY: the driver's initializers have no requirements.
            let library = unsafe { libloading::Library::new(NAME) };
            let library = library.map_err(|error| DriverError::LibraryMissing {
                name: NAME,
                // The source has the reason; the error itself only names the failed call.
                why: error
                    .source()
                    .map_or_else(|| error.to_string(), ToString::to_string),
            })?;
            // Threads of the driver may run as long as the process.
            let library = Box::leak(Box::new(library));
            check_version(library)?;
            // SAFETY: it is the driver's library, and it was leaked.
            Self::new(unsafe { Api::resolve(library) }?)
        });
        loaded.as_ref().map_err(Clone::clone)
    }

    pub(super) fn new(api: Api) -> Result<Self, DriverError> {
        let mut number = 0;
        // SAFETY: the function writes one number.
        let code = unsafe { (api.driver_version)(&mut number) };
        let library = Self {
            api,
            version: CudaVersion::from_number(number),
        };
        library.check("cuDriverGetVersion", code)?;
        if library.version < MIN_CUDA {
            return Err(DriverError::TooOld {
                found: library.version,
                needed: MIN_CUDA,
            });
        }
        // SAFETY: no flags are defined.
        let code = unsafe { (api.init)(0) };
        library.check("cuInit", code).map_err(|error| match error {
            DriverError::Call { status, .. } | DriverError::DeviceLost { status, .. } => {
                DriverError::Unusable { status }
            }
            other => other,
        })?;
        Ok(library)
    }

    pub(super) fn api(&self) -> &Api {
        &self.api
    }

    /// The newest version of CUDA that the driver supports.
    pub fn version(&self) -> CudaVersion {
        self.version
    }

    /// The GPUs, in the driver's order. Creates no context.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, DriverError> {
        let count = self.device_count()?;
        (0..count)
            .map(|ordinal| DeviceInfo::read(self, ordinal))
            .collect()
    }

    pub(super) fn device_count(&self) -> Result<u32, DriverError> {
        let mut count = 0;
        // SAFETY: the function writes one number.
        let code = unsafe { (self.api.device_count)(&mut count) };
        self.check("cuDeviceGetCount", code)?;
        Ok(u32::try_from(count).unwrap_or_default())
    }

    /// Turns what `call` returned into a result.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), DriverError> {
        if code == SUCCESS {
            return Ok(());
        }
        let status = self.status(code);
        Err(match classify(code) {
            ErrorClass::NoDevice => DriverError::NoDevice,
            ErrorClass::OutOfMemory => DriverError::OutOfMemory { wanted: 0 },
            ErrorClass::Lost => DriverError::DeviceLost { call, status },
            ErrorClass::NoImage => DriverError::UnsupportedArchitecture { status },
            ErrorClass::UnknownName | ErrorClass::Other => DriverError::Call { call, status },
        })
    }

    fn status(&self, code: Code) -> Status {
        let text = |function: unsafe extern "system" fn(Code, *mut *const c_char) -> Code| {
            let mut text = ptr::null();
            // SAFETY: the function writes null or the address of a constant string.
            unsafe {
                if function(code, &mut text) != SUCCESS || text.is_null() {
                    return String::new();
                }
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Status {
            code,
            name: text(self.api.error_name),
            text: text(self.api.error_text),
        }
    }
}

/// An old driver lacks functions, which would be reported first; its version says more.
fn check_version(library: &libloading::Library) -> Result<(), DriverError> {
    let symbol = "cuDriverGetVersion";
    // SAFETY: every driver has this function with this signature.
    let found = unsafe { library.get::<unsafe extern "system" fn(*mut i32) -> Code>(symbol) };
    let driver_version = found.map_err(|_| DriverError::MissingFunction { symbol })?;
    let mut number = 0;
    // SAFETY: the function writes one number.
    let code = unsafe { driver_version(&mut number) };
    let found = CudaVersion::from_number(number);
    if code == SUCCESS && found < MIN_CUDA {
        return Err(DriverError::TooOld {
            found,
            needed: MIN_CUDA,
        });
    }
    Ok(())
}
