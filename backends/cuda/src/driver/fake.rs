//! A driver without a device, for tests: device memory is memory of the machine, work is done at
//! once, and launches are only written down. Each thread has its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::ffi::{
    Access, Address, AllocationProperties, Api, Code, Device, Handle, LaunchConfig, SUCCESS,
};
use super::library::Library;

pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_FOUND: Code = 500;
pub const ILLEGAL_ADDRESS: Code = 700;

/// What tests set, and what the functions record.
pub struct Driver {
    pub version: c_int,
    pub devices: c_int,
    pub total_memory: usize,
    /// What these calls return instead of success.
    pub failures: HashMap<&'static str, Code>,
    /// Calls that were made and matter for order or number.
    pub calls: Vec<&'static str>,
    /// Grids of launches, with their number of attributes.
    pub launches: Vec<([c_uint; 3], c_uint)>,
    pub parameters: Vec<u8>,
    allocations: HashMap<Address, Vec<u8>>,
    /// Reserved addresses, of which nothing is accessed before it is mapped.
    reserved: HashMap<Address, Vec<u8>>,
    created: usize,
    /// Mapped parts and their sizes.
    mapped: HashMap<Address, usize>,
    pinned: HashMap<usize, Box<[u8]>>,
    /// Contexts that are retained and handles that are not destroyed.
    pub alive: isize,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            version: 13_000,
            devices: 1,
            total_memory: 1 << 20,
            failures: HashMap::new(),
            calls: Vec::new(),
            launches: Vec::new(),
            parameters: Vec::new(),
            allocations: HashMap::new(),
            reserved: HashMap::new(),
            created: 0,
            mapped: HashMap::new(),
            pinned: HashMap::new(),
            alive: 0,
        }
    }
}

thread_local! {
    static DRIVER: RefCell<Driver> = RefCell::default();
}

/// Reads or changes this thread's driver.
pub fn with<T>(use_driver: impl FnOnce(&mut Driver) -> T) -> T {
    DRIVER.with_borrow_mut(use_driver)
}

impl Driver {
    pub fn allocated(&self) -> usize {
        self.allocations.len() + self.pinned.len() + self.reserved.len() + self.mapped.len()
    }

    fn used(&self) -> usize {
        self.allocations.values().map(Vec::len).sum::<usize>() + self.created
    }
}

/// Records a call and returns its result, after doing `body` if it succeeds.
fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Code) -> Code {
    with(|driver| {
        driver.calls.push(name);
        match driver.failures.get(name) {
            Some(code) => *code,
            None => body(driver),
        }
    })
}

/// Writes a handle, which counts until it is destroyed.
///
/// # Safety
/// `handle` is valid for writes.
unsafe fn make(name: &'static str, handle: *mut Handle) -> Code {
    call(name, |driver| {
        driver.alive += 1;
        // SAFETY: as the caller promises.
        unsafe { handle.write(ptr::dangling_mut()) };
        SUCCESS
    })
}

fn destroy(name: &'static str) -> Code {
    call(name, |driver| {
        driver.alive -= 1;
        SUCCESS
    })
}

/// Writes a value.
///
/// # Safety
/// `target` is valid for writes.
unsafe fn put<T>(name: &'static str, target: *mut T, value: impl FnOnce(&Driver) -> T) -> Code {
    call(name, |driver| {
        // SAFETY: as the caller promises.
        unsafe { target.write(value(driver)) };
        SUCCESS
    })
}

unsafe extern "system" fn init(_flags: c_uint) -> Code {
    call("init", |_| SUCCESS)
}

unsafe extern "system" fn driver_version(version: *mut c_int) -> Code {
    // SAFETY: the driver's callers pass valid addresses; so in all functions below.
    unsafe { put("driver_version", version, |driver| driver.version) }
}

unsafe extern "system" fn error_text(code: Code, text: *mut *const c_char) -> Code {
    let known: &CStr = match code {
        OUT_OF_MEMORY => c"out of memory",
        ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        _ => return INVALID_VALUE,
    };
    // SAFETY: see `driver_version`.
    unsafe { text.write(known.as_ptr()) };
    SUCCESS
}

unsafe extern "system" fn device_count(count: *mut c_int) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("device_count", count, |driver| driver.devices) }
}

unsafe extern "system" fn device_get(device: *mut Device, ordinal: c_int) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("device_get", device, |_| ordinal) }
}

unsafe extern "system" fn device_name(name: *mut c_char, _len: c_int, _device: Device) -> Code {
    let text = c"Fake GPU";
    // SAFETY: the caller's array is longer than this name.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), name, text.count_bytes() + 1) };
    SUCCESS
}

unsafe extern "system" fn device_attribute(value: *mut c_int, which: c_int, _: Device) -> Code {
    let known = match which {
        16 => 132,
        36 => 3_201_000,
        37 => 6144,
        38 => 50 << 20,
        75 => 9,
        76 => 0,
        97 => 227 << 10,
        _ => return INVALID_VALUE,
    };
    // SAFETY: see `driver_version`.
    unsafe { value.write(known) };
    SUCCESS
}

unsafe extern "system" fn device_memory(bytes: *mut usize, _device: Device) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("device_memory", bytes, |driver| driver.total_memory) }
}

unsafe extern "system" fn context_retain(context: *mut Handle, _device: Device) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { make("context_retain", context) }
}

unsafe extern "system" fn context_release(_device: Device) -> Code {
    destroy("context_release")
}

unsafe extern "system" fn context_set_current(_context: Handle) -> Code {
    SUCCESS
}

unsafe extern "system" fn stream_create(stream: *mut Handle, _flags: c_uint) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { make("stream_create", stream) }
}

unsafe extern "system" fn stream_destroy(_stream: Handle) -> Code {
    destroy("stream_destroy")
}

unsafe extern "system" fn stream_synchronize(_stream: Handle) -> Code {
    call("stream_synchronize", |_| SUCCESS)
}

unsafe extern "system" fn stream_begin_capture(_stream: Handle, _mode: c_int) -> Code {
    call("stream_begin_capture", |_| SUCCESS)
}

unsafe extern "system" fn stream_end_capture(_stream: Handle, graph: *mut Handle) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { make("stream_end_capture", graph) }
}

unsafe extern "system" fn memory_info(free: *mut usize, total: *mut usize) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("memory_info", total, |driver| driver.total_memory) };
    // SAFETY: as above.
    unsafe {
        put("memory_info", free, |driver| {
            driver.total_memory - driver.used()
        })
    }
}

unsafe extern "system" fn memory_allocate(address: *mut Address, bytes: usize) -> Code {
    call("memory_allocate", |driver| {
        if driver.used() + bytes > driver.total_memory {
            return OUT_OF_MEMORY;
        }
        let mut memory = vec![0xaa; bytes];
        let at = memory.as_mut_ptr() as Address;
        driver.allocations.insert(at, memory);
        // SAFETY: see `driver_version`.
        unsafe { address.write(at) };
        SUCCESS
    })
}

unsafe extern "system" fn memory_free(address: Address) -> Code {
    call("memory_free", |driver| {
        match driver.allocations.remove(&address) {
            Some(_) => SUCCESS,
            None => INVALID_VALUE,
        }
    })
}

/// # Safety
/// Both addresses are valid for this many bytes.
unsafe fn copy_bytes(name: &'static str, to: u64, from: u64, bytes: usize) -> Code {
    call(name, |_| {
        // SAFETY: as the caller promises.
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
        SUCCESS
    })
}

unsafe extern "system" fn memory_write(
    to: Address,
    from: *const c_void,
    bytes: usize,
    _stream: Handle,
) -> Code {
    // SAFETY: the driver's callers check both ranges; so in the next three functions.
    unsafe { copy_bytes("memory_write", to, from as u64, bytes) }
}

unsafe extern "system" fn memory_read(
    to: *mut c_void,
    from: Address,
    bytes: usize,
    _stream: Handle,
) -> Code {
    // SAFETY: see `memory_write`.
    unsafe { copy_bytes("memory_read", to as u64, from, bytes) }
}

unsafe extern "system" fn memory_copy(
    to: Address,
    from: Address,
    bytes: usize,
    _stream: Handle,
) -> Code {
    // SAFETY: see `memory_write`.
    unsafe { copy_bytes("memory_copy", to, from, bytes) }
}

unsafe extern "system" fn memory_fill(
    address: Address,
    value: u8,
    bytes: usize,
    _stream: Handle,
) -> Code {
    call("memory_fill", |_| {
        // SAFETY: see `memory_write`.
        unsafe { ptr::write_bytes(address as *mut u8, value, bytes) };
        SUCCESS
    })
}

pub const GRANULARITY: usize = 4096;

unsafe extern "system" fn memory_granularity(
    bytes: *mut usize,
    _properties: *const AllocationProperties,
    _which: c_int,
) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("memory_granularity", bytes, |_| GRANULARITY) }
}

unsafe extern "system" fn address_reserve(
    address: *mut Address,
    bytes: usize,
    _alignment: usize,
    _near: Address,
    _flags: u64,
) -> Code {
    call("address_reserve", |driver| {
        let mut memory = vec![0xaa; bytes + GRANULARITY];
        let at = (memory.as_mut_ptr() as Address).next_multiple_of(GRANULARITY as Address);
        driver.reserved.insert(at, memory);
        // SAFETY: see `driver_version`.
        unsafe { address.write(at) };
        SUCCESS
    })
}

unsafe extern "system" fn address_free(address: Address, _bytes: usize) -> Code {
    call("address_free", |driver| {
        match driver.reserved.remove(&address) {
            Some(_) => SUCCESS,
            None => INVALID_VALUE,
        }
    })
}

/// The handle is the size.
unsafe extern "system" fn memory_create(
    handle: *mut u64,
    bytes: usize,
    _properties: *const AllocationProperties,
    _flags: u64,
) -> Code {
    call("memory_create", |driver| {
        if driver.used() + bytes > driver.total_memory {
            return OUT_OF_MEMORY;
        }
        driver.created += bytes;
        // SAFETY: see `driver_version`.
        unsafe { handle.write(bytes as u64) };
        SUCCESS
    })
}

unsafe extern "system" fn memory_release(handle: u64) -> Code {
    call("memory_release", |driver| {
        driver.created -= handle as usize;
        SUCCESS
    })
}

unsafe extern "system" fn memory_map(
    address: Address,
    bytes: usize,
    _offset: usize,
    _handle: u64,
    _flags: u64,
) -> Code {
    call("memory_map", |driver| {
        match driver.mapped.insert(address, bytes) {
            None => SUCCESS,
            Some(_) => INVALID_VALUE,
        }
    })
}

unsafe extern "system" fn memory_set_access(
    _address: Address,
    _bytes: usize,
    _access: *const Access,
    _count: usize,
) -> Code {
    call("memory_set_access", |_| SUCCESS)
}

unsafe extern "system" fn memory_unmap(address: Address, bytes: usize) -> Code {
    call("memory_unmap", |driver| {
        if driver.mapped.remove(&address) == Some(bytes) {
            SUCCESS
        } else {
            INVALID_VALUE
        }
    })
}

unsafe extern "system" fn host_allocate(
    pointer: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> Code {
    call("host_allocate", |driver| {
        let mut memory = vec![0xaa; bytes].into_boxed_slice();
        let at = memory.as_mut_ptr();
        driver.pinned.insert(at as usize, memory);
        // SAFETY: see `driver_version`.
        unsafe { pointer.write(at.cast()) };
        SUCCESS
    })
}

unsafe extern "system" fn host_free(pointer: *mut c_void) -> Code {
    call("host_free", |driver| {
        match driver.pinned.remove(&(pointer as usize)) {
            Some(_) => SUCCESS,
            None => INVALID_VALUE,
        }
    })
}

unsafe extern "system" fn module_load(module: *mut Handle, _image: *const c_void) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { make("module_load", module) }
}

unsafe extern "system" fn module_unload(_module: Handle) -> Code {
    destroy("module_unload")
}

unsafe extern "system" fn module_function(
    function: *mut Handle,
    _module: Handle,
    name: *const c_char,
) -> Code {
    // SAFETY: the caller's name ends with a zero.
    if unsafe { CStr::from_ptr(name) } == c"absent" {
        return NOT_FOUND;
    }
    // SAFETY: see `driver_version`.
    unsafe { put("module_function", function, |_| ptr::dangling_mut()) }
}

unsafe extern "system" fn function_load(_function: Handle) -> Code {
    call("function_load", |_| SUCCESS)
}

unsafe extern "system" fn function_attribute(value: *mut c_int, which: c_int, _: Handle) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("function_attribute", value, |_| which * 10) }
}

unsafe extern "system" fn function_set_attribute(_: Handle, _: c_int, bytes: c_int) -> Code {
    call("function_set_attribute", |_| {
        if bytes > 227 << 10 {
            INVALID_VALUE
        } else {
            SUCCESS
        }
    })
}

/// Every kernel takes 16 bytes and 4 bytes.
unsafe extern "system" fn function_parameter(
    _function: Handle,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Code {
    let Some((at, bytes)) = [(0, 16), (16, 4)].get(index).copied() else {
        return INVALID_VALUE;
    };
    // SAFETY: see `driver_version`.
    unsafe {
        offset.write(at);
        size.write(bytes);
    }
    SUCCESS
}

unsafe extern "system" fn function_active_blocks(
    blocks: *mut c_int,
    _function: Handle,
    threads: c_int,
    _shared: usize,
) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("function_active_blocks", blocks, |_| 2048 / threads) }
}

unsafe extern "system" fn function_active_clusters(
    clusters: *mut c_int,
    _function: Handle,
    _config: *const LaunchConfig,
) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("function_active_clusters", clusters, |_| 16) }
}

unsafe extern "system" fn launch(
    config: *const LaunchConfig,
    _function: Handle,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    call("launch", |driver| {
        // SAFETY: the caller passes a valid configuration and the parameters of
        // `function_parameter`.
        unsafe {
            driver
                .launches
                .push(((*config).grid, (*config).attribute_count));
            let first = std::slice::from_raw_parts((*parameters).cast::<u8>(), 16);
            driver.parameters = first.to_vec();
        }
        SUCCESS
    })
}

unsafe extern "system" fn graph_instantiate(
    executable: *mut Handle,
    _graph: Handle,
    _flags: u64,
) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { make("graph_instantiate", executable) }
}

unsafe extern "system" fn graph_nodes(_: Handle, _nodes: *mut Handle, count: *mut usize) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("graph_nodes", count, |driver| driver.launches.len()) }
}

unsafe extern "system" fn graph_upload(_executable: Handle, _stream: Handle) -> Code {
    call("graph_upload", |_| SUCCESS)
}

unsafe extern "system" fn graph_launch(_executable: Handle, _stream: Handle) -> Code {
    call("graph_launch", |_| SUCCESS)
}

unsafe extern "system" fn graph_destroy(_graph: Handle) -> Code {
    destroy("graph_destroy")
}

unsafe extern "system" fn graph_executable_destroy(_executable: Handle) -> Code {
    destroy("graph_executable_destroy")
}

unsafe extern "system" fn event_create(event: *mut Handle, _flags: c_uint) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { make("event_create", event) }
}

unsafe extern "system" fn event_destroy(_event: Handle) -> Code {
    destroy("event_destroy")
}

unsafe extern "system" fn event_record(_event: Handle, _stream: Handle) -> Code {
    call("event_record", |_| SUCCESS)
}

unsafe extern "system" fn event_query(_event: Handle) -> Code {
    call("event_query", |_| SUCCESS)
}

unsafe extern "system" fn event_synchronize(_event: Handle) -> Code {
    call("event_synchronize", |_| SUCCESS)
}

unsafe extern "system" fn event_elapsed(elapsed: *mut f32, _: Handle, _: Handle) -> Code {
    // SAFETY: see `driver_version`.
    unsafe { put("event_elapsed", elapsed, |_| 1.5) }
}

/// Opens this thread's driver.
pub fn library() -> Result<Library, super::DriverError> {
    Library::new(Api {
        init,
        driver_version,
        error_name: error_text,
        error_text,
        device_count,
        device_get,
        device_name,
        device_attribute,
        device_memory,
        context_retain,
        context_release,
        context_set_current,
        stream_create,
        stream_destroy,
        stream_synchronize,
        stream_begin_capture,
        stream_end_capture,
        memory_info,
        memory_allocate,
        memory_free,
        memory_write,
        memory_read,
        memory_copy,
        memory_fill,
        memory_granularity,
        address_reserve,
        address_free,
        memory_create,
        memory_release,
        memory_map,
        memory_set_access,
        memory_unmap,
        host_allocate,
        host_free,
        module_load,
        module_unload,
        module_function,
        function_load,
        function_attribute,
        function_set_attribute,
        function_parameter,
        function_active_blocks,
        function_active_clusters,
        launch,
        graph_instantiate,
        graph_nodes,
        graph_upload,
        graph_launch,
        graph_destroy,
        graph_executable_destroy,
        event_create,
        event_destroy,
        event_record,
        event_query,
        event_synchronize,
        event_elapsed,
    })
}
