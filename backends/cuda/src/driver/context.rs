//! A GPU opened for use: its memory and one stream of work.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{self, DeviceInfo};
use super::error::DriverError;
use super::ffi::{Api, Code, Device, Handle, STREAM_NON_BLOCKING};
use super::library::Library;
use super::pinned::Pinned;

/// The device's primary context with a stream of its own. Copies and launches run on that stream,
/// in order. A clone refers to the same context; with the last one, and with everything made from
/// it, its memory is freed.
///
/// Every method makes the context current on the calling thread, so that it may move between
/// threads. Addresses are checked against what this context allocated.
#[derive(Clone)]
pub struct Context {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    library: Library,
    pub(super) device: Device,
    info: DeviceInfo,
    context: Handle,
    pub(super) stream: Handle,
    memory: Mutex<AllocatedMemory>,
    /// Unloaded at the end, because functions and graphs refer to them.
    pub(super) modules: Mutex<Vec<Handle>>,
    is_lost: AtomicBool,
}

/// What a context has on its device.
#[derive(Default)]
pub(super) struct AllocatedMemory {
    /// Allocations and committed parts of reservations, by address.
    pub blocks: BTreeMap<u64, Block>,
    /// The sizes of reserved ranges of addresses, by address.
    pub reservations: BTreeMap<u64, u64>,
}

/// Memory that can be accessed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub len: u64,
    /// The driver's handle of a committed part; `None` for an allocation.
    pub committed: Option<u64>,
}

// SAFETY: handles of the driver may be used from any thread, and the driver locks its own data.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// Opens a GPU.
    pub fn open(ordinal: u32) -> Result<Self, DriverError> {
        Self::open_on(*Library::load()?, ordinal)
    }

    pub(super) fn open_on(library: Library, ordinal: u32) -> Result<Self, DriverError> {
        let device = device::handle(&library, ordinal)?;
        let info = DeviceInfo::read(&library, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: the function writes a handle, which is released when `Inner` is dropped.
        let code = unsafe { (library.api().context_retain)(&mut context, device) };
        library.check("cuDevicePrimaryCtxRetain", code)?;
        let mut inner = Inner {
            library,
            device,
            info,
            context,
            stream: ptr::null_mut(),
            memory: Mutex::default(),
            modules: Mutex::default(),
            is_lost: AtomicBool::new(false),
        };
        inner.make_current()?;
        let mut stream = ptr::null_mut();
        // SAFETY: the function writes a handle, which is destroyed when `Inner` is dropped.
        let code = unsafe { (inner.api().stream_create)(&mut stream, STREAM_NON_BLOCKING) };
        inner.check("cuStreamCreate", code)?;
        inner.stream = stream;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub fn device(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Whether a call found the device lost. All later calls fail.
    pub fn is_lost(&self) -> bool {
        self.inner.is_lost.load(Ordering::Relaxed)
    }

    /// Free and total memory of the device, in bytes, with what other programs use.
    pub fn memory_info(&self) -> Result<(u64, u64), DriverError> {
        self.inner.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two numbers.
        let code = unsafe { (self.inner.api().memory_info)(&mut free, &mut total) };
        self.inner.check("cuMemGetInfo", code)?;
        Ok((free as u64, total as u64))
    }

    /// What this context has allocated on the device, in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        let memory = self.inner.memory();
        memory.blocks.values().map(|block| block.len).sum()
    }

    /// Allocates memory on the device, at least one byte, and returns its address. Its contents are
    /// undefined. The caller frees it, or dropping the context does.
    pub fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        let size = usize::try_from(bytes.max(1));
        let size = size.map_err(|_| DriverError::OutOfMemory { wanted: bytes })?;
        self.inner.make_current()?;
        let mut address = 0;
        // SAFETY: the function writes an address.
        let code = unsafe { (self.inner.api().memory_allocate)(&mut address, size) };
        self.inner.check_memory("cuMemAlloc", code, bytes)?;
        let block = Block {
            len: size as u64,
            committed: None,
        };
        self.inner.memory().blocks.insert(address, block);
        Ok(address)
    }

    /// Frees what [`allocate`](Self::allocate) or [`reserve`](Self::reserve) returned, once work
    /// that was started before is done.
    pub fn free(&self, address: u64) -> Result<(), DriverError> {
        if self.inner.memory().reservations.contains_key(&address) {
            return self.free_reservation(address);
        }
        let mut memory = self.inner.memory();
        let block = memory.blocks.get(&address);
        if block.is_none_or(|block| block.committed.is_some()) {
            return Err(DriverError::NotAllocated { address, len: 0 });
        }
        memory.blocks.remove(&address);
        drop(memory);
        self.synchronize()?;
        // SAFETY: it was allocated, and the stream does nothing with it any more.
        let code = unsafe { (self.inner.api().memory_free)(address) };
        self.inner.check("cuMemFree", code)
    }

    /// Copies `bytes` to the device and waits for that.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.inner.check_range(address, bytes.len() as u64)?;
        self.inner.make_current()?;
        // SAFETY: the memory is allocated, and `bytes` lives until the copy is done.
        let code = unsafe {
            let source = bytes.as_ptr().cast::<c_void>();
            (self.inner.api().memory_write)(address, source, bytes.len(), self.inner.stream)
        };
        self.inner.check("cuMemcpyHtoDAsync", code)?;
        self.synchronize()
    }

    /// Starts a copy of a part of a pinned buffer to the device. If the buffer changes before the
    /// copy is done, the device may get either content; dropping it waits.
    pub fn write_async(
        &self,
        address: u64,
        source: &Pinned,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        let len = source.check_range(&range)?;
        if len == 0 {
            return Ok(());
        }
        self.inner.check_range(address, len as u64)?;
        self.inner.make_current()?;
        // SAFETY: both memories have this many bytes, and the buffer waits when it is dropped.
        let code = unsafe {
            let from = source.pointer().add(range.start).cast::<c_void>();
            (self.inner.api().memory_write)(address, from, len, self.inner.stream)
        };
        self.inner.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies from the device once all work before is done, and waits for that.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), DriverError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.inner.check_range(address, bytes.len() as u64)?;
        self.inner.make_current()?;
        // SAFETY: the memory is allocated, and `bytes` is borrowed until the copy is done.
        let code = unsafe {
            let target = bytes.as_mut_ptr().cast::<c_void>();
            (self.inner.api().memory_read)(target, address, bytes.len(), self.inner.stream)
        };
        self.inner.check("cuMemcpyDtoHAsync", code)?;
        self.synchronize()
    }

    /// Starts a copy from the device into a part of a pinned buffer. Dropping the buffer waits.
    ///
    /// # Safety
    /// Until an event or [`synchronize`](Self::synchronize) says that the copy is done, the caller
    /// does not access that part.
    pub unsafe fn read_async(
        &self,
        address: u64,
        target: &Pinned,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        let len = target.check_range(&range)?;
        if len == 0 {
            return Ok(());
        }
        self.inner.check_range(address, len as u64)?;
        self.inner.make_current()?;
        // SAFETY: both memories have this many bytes, and the caller does not access the buffer.
        let code = unsafe {
            let to = target.pointer().add(range.start).cast::<c_void>();
            (self.inner.api().memory_read)(to, address, len, self.inner.stream)
        };
        self.inner.check("cuMemcpyDtoHAsync", code)
    }

    /// Starts a copy within the device. The two ranges must not overlap.
    pub fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), DriverError> {
        if len == 0 {
            return Ok(());
        }
        self.inner.check_range(from, len)?;
        let size = self.inner.check_range(to, len)?;
        self.inner.make_current()?;
        // SAFETY: both ranges are allocated.
        let code = unsafe { (self.inner.api().memory_copy)(to, from, size, self.inner.stream) };
        self.inner.check("cuMemcpyDtoDAsync", code)
    }

    /// Starts to set bytes on the device to zero.
    pub fn fill_zero(&self, address: u64, len: u64) -> Result<(), DriverError> {
        if len == 0 {
            return Ok(());
        }
        let size = self.inner.check_range(address, len)?;
        self.inner.make_current()?;
        // SAFETY: the range is allocated.
        let code = unsafe { (self.inner.api().memory_fill)(address, 0, size, self.inner.stream) };
        self.inner.check("cuMemsetD8Async", code)
    }

    /// Waits for all work on the stream. Errors of kernels are reported here.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.inner.make_current()?;
        // SAFETY: the stream lives as long as `Inner`.
        let code = unsafe { (self.inner.api().stream_synchronize)(self.inner.stream) };
        self.inner.check("cuStreamSynchronize", code)
    }

    /// A buffer of the machine's memory that the device can copy from and to by itself.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, DriverError> {
        Pinned::new(Arc::clone(&self.inner), bytes)
    }
}

impl Inner {
    pub fn api(&self) -> &Api {
        self.library.api()
    }

    pub fn check(&self, call: &'static str, code: Code) -> Result<(), DriverError> {
        let result = self.library.check(call, code);
        if result.as_ref().is_err_and(DriverError::is_device_lost) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        result
    }

    /// As [`check`](Self::check), for a call that wants memory.
    pub fn check_memory(
        &self,
        call: &'static str,
        code: Code,
        wanted: u64,
    ) -> Result<(), DriverError> {
        self.check(call, code).map_err(|error| match error {
            DriverError::OutOfMemory { .. } => DriverError::OutOfMemory { wanted },
            other => other,
        })
    }

    pub fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until `Inner` is dropped.
        let code = unsafe { (self.api().context_set_current)(self.context) };
        self.check("cuCtxSetCurrent", code)
    }

    pub fn memory(&self) -> MutexGuard<'_, AllocatedMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a range that is not allocated or committed.
    fn check_range(&self, address: u64, len: u64) -> Result<usize, DriverError> {
        let is_inside = self.memory().covers(address, len);
        match usize::try_from(len) {
            Ok(size) if is_inside => Ok(size),
            _ => Err(DriverError::NotAllocated { address, len }),
        }
    }
}

impl AllocatedMemory {
    /// Whether blocks without a gap between them have all of the range.
    fn covers(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else {
            return false;
        };
        let Some((&start, _)) = self.blocks.range(..=address).next_back() else {
            return false;
        };
        let mut covered = start;
        for (start, block) in self.blocks.range(start..) {
            if covered >= end || *start != covered {
                break;
            }
            covered = start + block.len;
        }
        covered >= end
    }
}

impl Drop for Inner {
    /// Frees everything. Errors are ignored: on a lost device nothing else can be done, and
    /// releasing the context frees the rest.
    fn drop(&mut self) {
        let api = *self.api();
        let _ = self.make_current();
        let modules = std::mem::take(
            self.modules
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let AllocatedMemory {
            blocks,
            reservations,
        } = std::mem::take(&mut *self.memory());
        // SAFETY: functions, graphs, events and pinned buffers hold a reference to `Inner`, so
        // nothing uses these handles after this; each was made once and is released once.
        unsafe {
            if !self.stream.is_null() {
                (api.stream_synchronize)(self.stream);
            }
            for module in modules {
                (api.module_unload)(module);
            }
            for (address, Block { len, committed }) in blocks {
                match committed {
                    Some(handle) => {
                        (api.memory_unmap)(address, len as usize);
                        (api.memory_release)(handle);
                    }
                    None => {
                        (api.memory_free)(address);
                    }
                }
            }
            for (address, len) in reservations {
                (api.address_free)(address, len as usize);
            }
            if !self.stream.is_null() {
                (api.stream_destroy)(self.stream);
            }
            (api.context_set_current)(ptr::null_mut());
            (api.context_release)(self.device);
        }
    }
}
