//! The driver's functions and types that we use, declared as in `cuda.h` of CUDA 13.0.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::error::DriverError;

pub type Code = u32;
pub const SUCCESS: Code = 0;
pub const NOT_READY: Code = 600;

/// `CUdevice`.
pub type Device = c_int;
/// `CUdeviceptr`.
pub type Address = u64;
/// `CUcontext`, `CUstream`, `CUmodule`, `CUfunction`, `CUgraph`, `CUgraphExec` and `CUevent` are
/// pointers to types that only the driver knows.
pub type Handle = *mut c_void;

/// `CUdevice_attribute`.
pub mod device_attribute {
    pub const MULTIPROCESSOR_COUNT: i32 = 16;
    pub const MEMORY_CLOCK_KHZ: i32 = 36;
    pub const MEMORY_BUS_BITS: i32 = 37;
    pub const L2_CACHE_BYTES: i32 = 38;
    pub const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    pub const COMPUTE_CAPABILITY_MINOR: i32 = 76;
    pub const MAX_SHARED_BYTES: i32 = 97;
}

/// `CUfunction_attribute`.
pub mod function_attribute {
    pub const MAX_THREADS: i32 = 0;
    pub const STATIC_SHARED_BYTES: i32 = 1;
    pub const LOCAL_BYTES: i32 = 3;
    pub const REGISTERS: i32 = 4;
    pub const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;
}

/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
pub const HOST_PORTABLE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub const CAPTURE_THREAD_LOCAL: c_int = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    windows_handle: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Access {
    location: Location,
    flags: c_int,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    const fn device(id: Device) -> Self {
        Self { kind: 1, id }
    }
}

impl AllocationProperties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`, as all memory on a device.
    pub const fn on(device: Device) -> Self {
        Self {
            kind: 1,
            handle_types: 0,
            location: Location::device(device),
            windows_handle: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

impl Access {
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    pub const fn read_write(device: Device) -> Self {
        Self {
            location: Location::device(device),
            flags: 3,
        }
    }
}

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub const MINIMUM_GRANULARITY: c_int = 0;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *mut LaunchAttribute,
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`. The value is a union of 64 bytes, of which we use integers.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub struct LaunchAttribute {
    id: c_int,
    padding: [c_char; 4],
    value: [c_uint; 16],
}

impl LaunchAttribute {
    pub const UNUSED: Self = Self::new(0, &[]);

    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
    pub const fn cluster(size: [c_uint; 3]) -> Self {
        Self::new(4, &size)
    }

    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
    pub const fn dependent() -> Self {
        Self::new(6, &[1])
    }

    const fn new(id: c_int, values: &[c_uint]) -> Self {
        let mut value = [0; 16];
        let mut index = 0;
        while index < values.len() {
            value[index] = values[index];
            index += 1;
        }
        Self {
            id,
            padding: [0; 4],
            value,
        }
    }
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions, all of which exist.
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub $name: unsafe extern "system" fn($($argument),*) -> Code,)*
        }

        impl Api {
            /// Finds all functions in the library.
            ///
            /// # Safety
            /// `library` is NVIDIA's driver library, and stays loaded as long as the result is
            /// used.
            pub unsafe fn resolve(library: &libloading::Library) -> Result<Self, DriverError> {
                Ok(Self {
                    $($name: {
                        let symbol = concat!($symbol, "\0").as_bytes();
                        // SAFETY: the driver has had this function with this signature since the
                        // version of the interface that the symbol's name ends with.
                        let found = unsafe {
                            library.get::<unsafe extern "system" fn($($argument),*) -> Code>(symbol)
                        };
                        *found.map_err(|_| DriverError::MissingFunction { symbol: $symbol })?
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "cuInit"(c_uint);
    driver_version = "cuDriverGetVersion"(*mut c_int);
    error_name = "cuGetErrorName"(Code, *mut *const c_char);
    error_text = "cuGetErrorString"(Code, *mut *const c_char);

    device_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut Device, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, Device);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, Device);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, Device);

    context_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, Device);
    context_release = "cuDevicePrimaryCtxRelease_v2"(Device);
    context_set_current = "cuCtxSetCurrent"(Handle);

    stream_create = "cuStreamCreate"(*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2"(Handle);
    stream_synchronize = "cuStreamSynchronize"(Handle);
    stream_begin_capture = "cuStreamBeginCapture_v2"(Handle, c_int);
    stream_end_capture = "cuStreamEndCapture"(Handle, *mut Handle);

    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_allocate = "cuMemAlloc_v2"(*mut Address, usize);
    memory_free = "cuMemFree_v2"(Address);
    memory_write = "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
    memory_read = "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
    memory_copy = "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
    memory_fill = "cuMemsetD8Async"(Address, u8, usize, Handle);
    memory_granularity =
        "cuMemGetAllocationGranularity"(*mut usize, *const AllocationProperties, c_int);
    address_reserve = "cuMemAddressReserve"(*mut Address, usize, usize, Address, u64);
    address_free = "cuMemAddressFree"(Address, usize);
    memory_create = "cuMemCreate"(*mut u64, usize, *const AllocationProperties, u64);
    memory_release = "cuMemRelease"(u64);
    memory_map = "cuMemMap"(Address, usize, usize, u64, u64);
    memory_set_access = "cuMemSetAccess"(Address, usize, *const Access, usize);
    memory_unmap = "cuMemUnmap"(Address, usize);
    host_allocate = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost"(*mut c_void);

    module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_unload = "cuModuleUnload"(Handle);
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);

    function_load = "cuFuncLoad"(Handle);
    function_attribute = "cuFuncGetAttribute"(*mut c_int, c_int, Handle);
    function_set_attribute = "cuFuncSetAttribute"(Handle, c_int, c_int);
    function_parameter = "cuFuncGetParamInfo"(Handle, usize, *mut usize, *mut usize);
    function_active_blocks =
        "cuOccupancyMaxActiveBlocksPerMultiprocessor"(*mut c_int, Handle, c_int, usize);
    function_active_clusters = "cuOccupancyMaxActiveClusters"(*mut c_int, Handle, *const LaunchConfig);
    launch = "cuLaunchKernelEx"(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);

    graph_instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
    graph_nodes = "cuGraphGetNodes"(Handle, *mut Handle, *mut usize);
    graph_upload = "cuGraphUpload"(Handle, Handle);
    graph_launch = "cuGraphLaunch"(Handle, Handle);
    graph_destroy = "cuGraphDestroy"(Handle);
    graph_executable_destroy = "cuGraphExecDestroy"(Handle);

    event_create = "cuEventCreate"(*mut Handle, c_uint);
    event_destroy = "cuEventDestroy_v2"(Handle);
    event_record = "cuEventRecord"(Handle, Handle);
    event_query = "cuEventQuery"(Handle);
    event_synchronize = "cuEventSynchronize"(Handle);
    event_elapsed = "cuEventElapsedTime_v2"(*mut f32, Handle, Handle);
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(offset_of!(LaunchConfig, stream), 32);
        assert_eq!(offset_of!(LaunchConfig, attributes), 40);
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(align_of::<LaunchAttribute>(), 8);
        assert_eq!(offset_of!(LaunchAttribute, value), 8);
        assert_eq!(size_of::<AllocationProperties>(), 32);
        assert_eq!(offset_of!(AllocationProperties, windows_handle), 16);
        assert_eq!(size_of::<Access>(), 12);
    }
}
