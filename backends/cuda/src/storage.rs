//! What sequences hold on the device: pages of keys and values, recurrent states, encoded media.
//!
//! Each group of layers has a range of addresses for as many pages as fit the whole budget. Memory
//! is committed in chunks when a page of theirs is used, and taken back from idle chunks when another
//! group needs it, so that all groups together stay within the budget.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ops::Range;

use loquat_session::sequences::{CopyOnWrite, PageSpan, SequenceStorage, Slot, TransferStorage};
use loquat_session::{MediaId, SessionError};

use crate::device::{Device, DeviceError};
use crate::lower::KvLayout;
use crate::ops::{Address, KvRef, PAGE};

/// Memory is committed in multiples of this, the granularity of GPUs.
const CHUNK: usize = 2 << 20;

pub struct DeviceStorage {
    device: RefCell<Box<dyn Device>>,
    layout: KvLayout,
    /// By group.
    pools: Vec<PagePool>,
    /// Bytes of committed chunks.
    committed: usize,
    /// What the pages in use may take.
    capacity: usize,
    /// By slot, allocated when first used.
    states: Vec<Address>,
    media: BTreeMap<MediaId, MediaFeatures>,
    /// A failure that a method could not report.
    failure: Option<DeviceError>,
}

/// Encoded media: `f32[level][position][hidden]`.
#[derive(Clone, Copy)]
pub struct MediaFeatures {
    pub values: Address,
    pub levels: usize,
    pub positions: usize,
}

impl MediaFeatures {
    /// All values, with `hidden` of a position.
    pub fn read(&self, device: &mut dyn Device, hidden: usize) -> Result<Vec<f32>, DeviceError> {
        let mut values = vec![0.0_f32; self.levels * self.positions * hidden];
        device.read(self.values, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

/// The pages of a group.
struct PagePool {
    base: Address,
    page_bytes: usize,
    pages: usize,
    chunks: Vec<Chunk>,
}

#[derive(Clone, Copy, Default)]
struct Chunk {
    /// Pages in use that it is a part of.
    users: u32,
    is_committed: bool,
}

impl PagePool {
    fn chunks(&self, page: Slot) -> Range<usize> {
        let start = page.index() * self.page_bytes;
        start / CHUNK..(start + self.page_bytes).div_ceil(CHUNK)
    }
}

impl DeviceStorage {
    /// Storage for `kv_tokens` tokens' worth of pages.
    pub fn new(
        mut device: Box<dyn Device>,
        layout: &mut KvLayout,
        kv_tokens: usize,
    ) -> Result<Self, DeviceError> {
        let token_bytes = layout.kv_groups().bytes_per_token() as usize;
        let capacity = kv_tokens.saturating_mul(token_bytes);
        let mut pools = Vec::new();
        let mut committed = 0;
        for group in 0..layout.groups() {
            let page_bytes = layout.page_bytes(group);
            let pages = capacity.checked_div(page_bytes).unwrap_or(0);
            let chunks = (pages * page_bytes).div_ceil(CHUNK);
            let bytes = chunks * CHUNK;
            let mut chunk = Chunk::default();
            // A single group has the whole budget from the beginning.
            let base = if layout.groups() == 1 {
                committed = bytes;
                chunk.is_committed = true;
                let base = device.allocate(bytes)?;
                device.clear(base, bytes)?;
                base
            } else {
                device.reserve(bytes)?
            };
            pools.push(PagePool {
                base,
                page_bytes,
                pages,
                chunks: vec![chunk; chunks],
            });
        }
        let bases: Vec<Address> = pools.iter().map(|pool| pool.base).collect();
        layout.place(&bases);
        Ok(Self {
            device: RefCell::new(device),
            layout: layout.clone(),
            pools,
            committed,
            capacity,
            states: Vec::new(),
            media: BTreeMap::new(),
            failure: None,
        })
    }

    /// The device, for the length of one call.
    pub fn device(&self) -> RefMut<'_, Box<dyn Device>> {
        self.device.borrow_mut()
    }

    /// Reports a failure of a method that could not.
    pub fn check(&mut self) -> Result<(), SessionError> {
        match self.failure.take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub fn state(&self, state: Slot) -> Address {
        let address = self.states.get(state.index());
        address.copied().unwrap_or(Address::NONE)
    }

    pub fn media(&self, id: MediaId) -> Option<MediaFeatures> {
        self.media.get(&id).copied()
    }

    pub fn insert_media(&mut self, id: MediaId, features: MediaFeatures) {
        self.media.insert(id, features);
    }

    fn page(&self, group: usize, page: Slot) -> Address {
        let pool = &self.pools[group];
        pool.base.offset((page.index() * pool.page_bytes) as u64)
    }

    /// Commits a page's chunks.
    fn commit(&mut self, group: usize, page: Slot) -> Result<(), DeviceError> {
        let pool = &mut self.pools[group];
        let mut grown = false;
        for index in pool.chunks(page) {
            let chunk = &mut pool.chunks[index];
            chunk.users += 1;
            if !chunk.is_committed {
                let at = pool.base.offset((index * CHUNK) as u64);
                let device = self.device.get_mut();
                device.commit(at, CHUNK)?;
                device.clear(at, CHUNK)?;
                chunk.is_committed = true;
                self.committed += CHUNK;
                grown = true;
            }
        }
        if grown && self.committed > self.capacity {
            self.take_back()?;
        }
        Ok(())
    }

    /// Takes the memory of idle chunks back.
    fn take_back(&mut self) -> Result<(), DeviceError> {
        for pool in &mut self.pools {
            for (index, chunk) in pool.chunks.iter_mut().enumerate() {
                if chunk.is_committed && chunk.users == 0 {
                    let at = pool.base.offset((index * CHUNK) as u64);
                    self.device.get_mut().decommit(at, CHUNK)?;
                    chunk.is_committed = false;
                    self.committed -= CHUNK;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, result: Result<(), DeviceError>) {
        if let Err(failure) = result {
            self.failure.get_or_insert(failure);
        }
    }
}

impl TransferStorage for DeviceStorage {
    fn position_bytes(&self, group: usize) -> usize {
        self.layout.page_bytes(group) / PAGE
    }

    fn state_len(&self) -> usize {
        self.layout.state_bytes() / size_of::<f32>()
    }

    fn read_positions(
        &self,
        (group, span): (usize, PageSpan<'_>),
        positions: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let mut page = vec![0; self.layout.page_bytes(group)];
        for (index, slots) in page_parts(positions) {
            let from = self.page(group, span.slots[index - span.first]);
            self.device().read_any(from, &mut page)?;
            for slot in slots {
                for kv in self.layout.of_group(group) {
                    copy_token(&kv, slot, |bytes| out.extend_from_slice(&page[bytes]));
                }
            }
        }
        Ok(())
    }

    fn write_positions(
        &mut self,
        (group, span): (usize, PageSpan<'_>),
        positions: Range<usize>,
        mut bytes: &[u8],
    ) -> Result<(), SessionError> {
        let mut page = vec![0; self.layout.page_bytes(group)];
        for (index, part) in page_parts(positions) {
            let at = self.page(group, span.slots[index - span.first]);
            if part.len() < PAGE && part.start > 0 {
                // What the page holds already.
                self.device().read_any(at, &mut page)?;
            }
            for slot in part {
                for kv in self.layout.of_group(group) {
                    copy_token(&kv, slot, |to| {
                        let (own, rest) = bytes.split_at(to.len());
                        page[to].copy_from_slice(own);
                        bytes = rest;
                    });
                }
            }
            self.device().write(at, &page)?;
        }
        self.check()
    }

    fn read_state(
        &self,
        state: Slot,
        numbers: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let start = out.len();
        out.resize(start + size_of::<f32>() * numbers.len(), 0);
        let from = self.state(state).values(numbers.start);
        Ok(self.device().read(from, &mut out[start..])?)
    }

    fn write_state(
        &mut self,
        state: Slot,
        numbers: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        let to = self.state(state).values(numbers.start);
        self.device().write(to, bytes)?;
        self.check()
    }
}

/// The pages of some positions, each with the slots in it.
fn page_parts(positions: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let pages = positions.start / PAGE..positions.end.div_ceil(PAGE);
    pages.filter_map(move |page| {
        let start = positions.start.max(page * PAGE);
        let end = positions.end.min((page + 1) * PAGE);
        (start < end).then(|| (page, start - page * PAGE..end - page * PAGE))
    })
}

/// Calls `copy` with the places of a token's keys and values in a page.
fn copy_token(kv: &KvRef, slot: usize, mut copy: impl FnMut(Range<usize>)) {
    let size = kv.format.bytes();
    let (heads, head_dim, value_dim) = (
        kv.heads as usize,
        kv.head_dim as usize,
        kv.value_dim as usize,
    );
    for head in 0..heads {
        let key = kv.keys as usize + (head * PAGE + slot) * head_dim * size;
        copy(key..key + head_dim * size);
        if kv.values_in_keys == 1 {
            continue;
        }
        for channel in 0..value_dim {
            let value = kv.values as usize + ((head * value_dim + channel) * PAGE + slot) * size;
            copy(value..value + size);
        }
    }
}

impl SequenceStorage for DeviceStorage {
    const COPY_ON_WRITE: CopyOnWrite = CopyOnWrite::Page;

    type Sequence = ();

    fn share(&mut self, _source: &(), _len: usize) {}

    fn release(&mut self, _sequence: ()) {}

    fn allocate_pages(&mut self, group: usize, count: usize) -> usize {
        let pool = &self.pools[group];
        if pool.page_bytes == 0 {
            // A model without attention stores nothing in its pages.
            return count;
        }
        count.min(pool.pages)
    }

    fn acquire_page(&mut self, group: usize, page: Slot) {
        let result = self.commit(group, page);
        self.note(result);
    }

    fn free_page(&mut self, group: usize, page: Slot) {
        let pool = &mut self.pools[group];
        for index in pool.chunks(page) {
            pool.chunks[index].users -= 1;
        }
    }

    fn copy_page(&mut self, group: usize, from: Slot, to: Slot) {
        let [source, target] = [from, to].map(|page| self.page(group, page));
        let bytes = self.pools[group].page_bytes;
        let result = self.device.get_mut().copy(source, target, bytes);
        self.note(result);
    }

    fn allocate_state(&mut self, state: Slot) {
        while self.states.len() <= state.index() {
            let bytes = self.layout.state_bytes();
            let allocated = self.device.get_mut().allocate(bytes);
            let address = match allocated {
                Ok(address) => address,
                Err(failure) => {
                    self.failure.get_or_insert(failure);
                    Address::NONE
                }
            };
            self.states.push(address);
        }
    }

    fn free_media(&mut self, media: MediaId) {
        if let Some(features) = self.media.remove(&media) {
            self.device.get_mut().free(features.values);
        }
    }
}
