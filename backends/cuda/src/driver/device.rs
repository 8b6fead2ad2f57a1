//! What the driver reports of a GPU.

use std::ffi::{CStr, c_char, c_int};

use super::error::{CudaVersion, DriverError};
use super::ffi::{Device, device_attribute as attribute};
use super::library::Library;
use crate::architectures::ComputeCapability;

/// A GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    /// Its index among the GPUs that the driver shows to this process.
    pub ordinal: u32,
    pub name: String,
    pub compute_capability: ComputeCapability,
    pub sm_count: u32,
    /// All of its memory; other programs may use some.
    pub total_memory: u64,
    /// From the clock and the width of its memory, if the driver reports them.
    pub memory_bandwidth_bytes_per_s: Option<f64>,
    pub driver_version: CudaVersion,
    pub l2_bytes: u64,
    /// The most shared memory of a block, static and dynamic.
    pub max_shared_bytes: u32,
}

impl DeviceInfo {
    pub(super) fn read(library: &Library, ordinal: u32) -> Result<Self, DriverError> {
        let device = handle(library, ordinal)?;
        let api = library.api();
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the function writes at most as many bytes as it is told, with a final zero.
        let code = unsafe { (api.device_name)(name.as_mut_ptr(), name.len() as c_int, device) };
        library.check("cuDeviceGetName", code)?;
        // SAFETY: the name was written and ends with a zero; the array was zeroed.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        let mut total_memory = 0;
        // SAFETY: the function writes one number.
        let code = unsafe { (api.device_memory)(&mut total_memory, device) };
        library.check("cuDeviceTotalMem", code)?;
        let read = |attribute| {
            let mut value = 0;
            // SAFETY: the function writes one number.
            let code = unsafe { (api.device_attribute)(&mut value, attribute, device) };
            library.check("cuDeviceGetAttribute", code)?;
            Ok::<u32, DriverError>(u32::try_from(value).unwrap_or_default())
        };
        // Some drivers do not report these two.
        let clock = read(attribute::MEMORY_CLOCK_KHZ).unwrap_or_default();
        let width = read(attribute::MEMORY_BUS_BITS).unwrap_or_default();
        // Two transfers in each cycle.
        let bandwidth = 2.0 * f64::from(clock) * 1000.0 * f64::from(width) / 8.0;
        Ok(Self {
            ordinal,
            name: name.to_string_lossy().into_owned(),
            compute_capability: ComputeCapability {
                major: read(attribute::COMPUTE_CAPABILITY_MAJOR)?,
                minor: read(attribute::COMPUTE_CAPABILITY_MINOR)?,
            },
            sm_count: read(attribute::MULTIPROCESSOR_COUNT)?,
            total_memory: total_memory as u64,
            memory_bandwidth_bytes_per_s: (bandwidth > 0.0).then_some(bandwidth),
            driver_version: library.version(),
            l2_bytes: u64::from(read(attribute::L2_CACHE_BYTES)?),
            max_shared_bytes: read(attribute::MAX_SHARED_BYTES)?,
        })
    }
}

/// The driver's handle of a GPU.
pub(super) fn handle(library: &Library, ordinal: u32) -> Result<Device, DriverError> {
    let count = library.device_count()?;
    let unknown = DriverError::UnknownDevice { ordinal, count };
    let index = c_int::try_from(ordinal).map_err(|_| unknown.clone())?;
    if ordinal >= count {
        return Err(unknown);
    }
    let mut device = 0;
    // SAFETY: the function writes one number.
    let code = unsafe { (library.api().device_get)(&mut device, index) };
    library.check("cuDeviceGet", code)?;
    Ok(device)
}
