//! Ranges of addresses whose memory is committed in parts, so that what grows keeps its address.

use super::context::{Block, Context};
use super::error::DriverError;
use super::ffi::{Access, AllocationProperties, MINIMUM_GRANULARITY};

impl Context {
    /// Parts are committed in multiples of this many bytes; 2 MiB on GPUs so far.
    pub fn granularity(&self) -> Result<u64, DriverError> {
        self.inner.make_current()?;
        let properties = AllocationProperties::on(self.inner.device);
        let mut bytes = 0;
        // SAFETY: the function writes one number.
        let code = unsafe {
            (self.inner.api().memory_granularity)(&mut bytes, &properties, MINIMUM_GRANULARITY)
        };
        self.inner.check("cuMemGetAllocationGranularity", code)?;
        Ok(bytes as u64)
    }

    /// Reserves addresses without memory, for at least this many bytes. The caller
    /// [frees](Self::free) them, or dropping the context does.
    pub fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        let granularity = self.granularity()?;
        let len = bytes.max(1).checked_next_multiple_of(granularity);
        let size = len.and_then(|len| usize::try_from(len).ok());
        let size = size.ok_or(DriverError::OutOfMemory { wanted: bytes })?;
        let mut address = 0;
        // SAFETY: the function writes an address.
        let code = unsafe { (self.inner.api().address_reserve)(&mut address, size, 0, 0, 0) };
        self.inner
            .check_memory("cuMemAddressReserve", code, bytes)?;
        let mut memory = self.inner.memory();
        memory.reservations.insert(address, size as u64);
        Ok(address)
    }

    /// Backs a part of a reserved range, which has none yet, with memory. Its contents are
    /// undefined.
    pub fn commit(&self, address: u64, len: u64) -> Result<(), DriverError> {
        let size = self.check_part(address, len)?;
        let api = self.inner.api();
        let properties = AllocationProperties::on(self.inner.device);
        let mut handle = 0;
        // SAFETY: the function writes a handle.
        let code = unsafe { (api.memory_create)(&mut handle, size, &properties, 0) };
        self.inner.check_memory("cuMemCreate", code, len)?;
        // SAFETY: the range is reserved; the driver refuses one that is mapped.
        let code = unsafe { (api.memory_map)(address, size, 0, handle, 0) };
        if let Err(error) = self.inner.check("cuMemMap", code) {
            // SAFETY: the handle was created and nothing is mapped to it.
            unsafe { (api.memory_release)(handle) };
            return Err(error);
        }
        let block = Block {
            len,
            committed: Some(handle),
        };
        let access = Access::read_write(self.inner.device);
        // SAFETY: the range was mapped.
        let code = unsafe { (api.memory_set_access)(address, size, &access, 1) };
        if let Err(error) = self.inner.check("cuMemSetAccess", code) {
            self.unmap(address, block);
            return Err(error);
        }
        self.inner.memory().blocks.insert(address, block);
        Ok(())
    }

    /// Takes the memory of a part back, once work that was started before is done. The part is one
    /// that was committed at once.
    pub fn decommit(&self, address: u64, len: u64) -> Result<(), DriverError> {
        let mut memory = self.inner.memory();
        let block = memory.blocks.get(&address).copied();
        let committed = block.filter(|block| block.committed.is_some() && block.len == len);
        let block = committed.ok_or(DriverError::NotAllocated { address, len })?;
        memory.blocks.remove(&address);
        drop(memory);
        self.synchronize()?;
        self.unmap(address, block);
        Ok(())
    }

    /// Frees a reserved range with all of its parts.
    pub(super) fn free_reservation(&self, address: u64) -> Result<(), DriverError> {
        self.synchronize()?;
        let mut memory = self.inner.memory();
        let Some(len) = memory.reservations.remove(&address) else {
            return Err(DriverError::NotAllocated { address, len: 0 });
        };
        let parts: Vec<(u64, Block)> = memory
            .blocks
            .range(address..address + len)
            .map(|(part, block)| (*part, *block))
            .collect();
        for (part, block) in parts {
            memory.blocks.remove(&part);
            self.unmap(part, block);
        }
        // SAFETY: it was reserved, and nothing is mapped there any more.
        let code = unsafe { (self.inner.api().address_free)(address, len as usize) };
        self.inner.check("cuMemAddressFree", code)
    }

    /// Errors are ignored: they mean that the context is lost, which every other call reports.
    fn unmap(&self, address: u64, block: Block) {
        let api = self.inner.api();
        // SAFETY: the block was mapped here, and the stream does nothing with it any more.
        unsafe {
            (api.memory_unmap)(address, block.len as usize);
            if let Some(handle) = block.committed {
                (api.memory_release)(handle);
            }
        }
    }

    /// The size of a part of a reservation, refused if it is not made of whole granules.
    fn check_part(&self, address: u64, len: u64) -> Result<usize, DriverError> {
        let granularity = self.granularity()?;
        let memory = self.inner.memory();
        let before = memory.reservations.range(..=address).next_back();
        let is_inside = before.is_some_and(|(start, reserved)| {
            let offset = address - start;
            len <= reserved.saturating_sub(offset)
        });
        if !is_inside {
            return Err(DriverError::NotAllocated { address, len });
        }
        let is_whole = address.is_multiple_of(granularity) && len.is_multiple_of(granularity);
        match usize::try_from(len) {
            Ok(size) if is_whole && size > 0 => Ok(size),
            _ => Err(DriverError::Granularity {
                address,
                len,
                granularity,
            }),
        }
    }
}
