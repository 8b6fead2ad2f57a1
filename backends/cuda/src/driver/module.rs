//! Compiled kernels, loaded onto a device.

use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, PoisonError};

use super::context::{Context, Inner};
use super::error::{DriverError, ErrorClass, classify};
use super::ffi::Handle;
use super::function::Function;

/// A fatbin on a device. It stays loaded as long as its context.
pub struct Module {
    context: Arc<Inner>,
    handle: Handle,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Context {
    /// Loads what `nvcc --fatbin` wrote.
    pub fn load_module(&self, fatbin: &[u8]) -> Result<Module, DriverError> {
        check_fatbin(fatbin)?;
        // The driver reads the header's fields where they are aligned.
        let mut aligned = vec![0u64; fatbin.len().div_ceil(8)];
        for (word, bytes) in aligned.iter_mut().zip(fatbin.chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(eight);
        }
        self.inner.make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the header's size is within the buffer, and the driver copies what it keeps.
        let code = unsafe { (self.inner.api().module_load)(&mut handle, aligned.as_ptr().cast()) };
        self.inner.check("cuModuleLoadData", code)?;
        let mut modules = self
            .inner
            .modules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        modules.push(handle);
        Ok(Module {
            context: Arc::clone(&self.inner),
            handle,
        })
    }
}

impl Module {
    /// A kernel by the name it has in the compiled code.
    pub fn function(&self, name: &str) -> Result<Function, DriverError> {
        let unknown = || DriverError::UnknownFunction {
            name: name.to_owned(),
        };
        let symbol = CString::new(name).map_err(|_| unknown())?;
        self.context.make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero.
        let code = unsafe {
            (self.context.api().module_function)(&mut handle, self.handle, symbol.as_ptr())
        };
        if classify(code) == ErrorClass::UnknownName {
            return Err(unknown());
        }
        self.context.check("cuModuleGetFunction", code)?;
        Function::new(Arc::clone(&self.context), handle, name)
    }
}

/// Refuses bytes whose header does not say that they are a fatbin of this length: the driver would
/// read past their end.
fn check_fatbin(bytes: &[u8]) -> Result<(), DriverError> {
    const MAGIC: u32 = 0xba55_ed50;
    let invalid = |why| Err(DriverError::InvalidImage { why });
    let Some((header, _)) = bytes.split_first_chunk::<16>() else {
        return invalid("they are too short");
    };
    let [m0, m1, m2, m3, _, _, h0, h1, size @ ..] = *header;
    if u32::from_le_bytes([m0, m1, m2, m3]) != MAGIC {
        return invalid("they do not start like a fatbin");
    }
    let header_len = u64::from(u16::from_le_bytes([h0, h1]));
    let end = u64::from_le_bytes(size).checked_add(header_len);
    if end.is_none_or(|end| end > bytes.len() as u64) {
        return invalid("their end is missing");
    }
    Ok(())
}
