//! Keys and values in pages that sequences share until one of them writes.

use std::collections::HashMap;

use loquat_session::{SequenceId, SessionError};
use loquat_spec::ModelSpec;

use crate::kernels::{KvElement, PAGE};
use crate::shared::PagePtr;

/// Where each layer's keys and values lie inside a page.
#[derive(Clone)]
pub struct PageLayout {
    layers: Vec<LayerLayout>,
    len: usize,
}

#[derive(Clone, Copy)]
pub struct LayerLayout {
    keys: usize,
    values: usize,
    head_dim: usize,
    kv_heads: usize,
}

impl PageLayout {
    pub fn new(spec: &ModelSpec) -> Self {
        let mut len = 0;
        let layers = spec.attentions().map(|attention| {
            let size = attention.kv_dim() * PAGE;
            let layer = LayerLayout {
                keys: len,
                values: len + size,
                head_dim: attention.head_dim,
                kv_heads: attention.kv_heads,
            };
            len += 2 * size;
            layer
        });
        let layers = layers.collect();
        Self { layers, len }
    }

    pub fn layer(&self, index: usize) -> LayerLayout {
        self.layers[index]
    }

    /// Elements of one token over all layers.
    pub fn token_len(&self) -> usize {
        self.len / PAGE
    }
}

impl LayerLayout {
    pub fn key_offset(&self, head: usize) -> usize {
        self.keys + head * self.head_dim * PAGE
    }

    pub fn value_offset(&self, head: usize) -> usize {
        self.values + head * self.head_dim * PAGE
    }

    /// Writes one token's keys and values, all heads, into its page through `write(at, value)`.
    #[inline]
    pub fn write_token(
        &self,
        slot: usize,
        keys: &[f32],
        values: &[f32],
        mut write: impl FnMut(usize, f32),
    ) {
        for head in 0..self.kv_heads {
            let range = head * self.head_dim..(head + 1) * self.head_dim;
            for (d, key) in keys[range.clone()].iter().enumerate() {
                write(self.key_offset(head) + d * PAGE + slot, *key);
            }
            for (d, value) in values[range].iter().enumerate() {
                write(self.value_offset(head) + slot * self.head_dim + d, *value);
            }
        }
    }

    /// The places of one token's elements in a page, in export order.
    fn token_places(&self, slot: usize) -> impl Iterator<Item = usize> + use<> {
        let layout = *self;
        (0..layout.kv_heads).flat_map(move |head| {
            let keys = (0..layout.head_dim).map(move |d| layout.key_offset(head) + d * PAGE + slot);
            let values = (0..layout.head_dim)
                .map(move |d| layout.value_offset(head) + slot * layout.head_dim + d);
            keys.chain(values)
        })
    }
}

/// All sequences of a session and the pages they hold.
pub struct Cache<T: KvElement> {
    layout: PageLayout,
    /// Allocated when first used, kept for reuse.
    pages: Vec<Page<T>>,
    free: Vec<u32>,
    capacity: usize,
    sequences: HashMap<SequenceId, Sequence>,
    max_sequences: usize,
    next_id: u64,
}

struct Page<T> {
    data: PagePtr<T>,
    holders: u32,
}

#[derive(Clone, Default)]
struct Sequence {
    len: usize,
    pages: Vec<u32>,
}

impl<T: KvElement> Cache<T> {
    /// A cache of at most `capacity_tokens`, rounded down to whole pages.
    pub fn new(layout: PageLayout, capacity_tokens: usize, max_sequences: usize) -> Self {
        Self {
            layout,
            pages: Vec::new(),
            free: Vec::new(),
            capacity: capacity_tokens / PAGE,
            sequences: HashMap::new(),
            max_sequences,
            next_id: 0,
        }
    }

    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    pub fn capacity_tokens(&self) -> usize {
        self.capacity * PAGE
    }

    pub fn tokens_in_use(&self) -> usize {
        (self.pages.len() - self.free.len()) * PAGE
    }

    pub fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.insert(Sequence::default())
    }

    fn insert(&mut self, sequence: Sequence) -> Result<SequenceId, SessionError> {
        if self.sequences.len() >= self.max_sequences {
            return Err(SessionError::TooManySequences {
                max: self.max_sequences,
            });
        }
        for page in &sequence.pages {
            self.pages[*page as usize].holders += 1;
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        Ok(self.get(id)?.len)
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, SessionError> {
        self.sequences
            .get(&id)
            .ok_or(SessionError::UnknownSequence(id))
    }

    pub fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let source = self.get(source)?;
        check_len(len, source.len)?;
        let pages = source.pages[..len.div_ceil(PAGE)].to_vec();
        self.insert(Sequence { len, pages })
    }

    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), SessionError> {
        check_len(len, self.get(id)?.len)?;
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Err(SessionError::UnknownSequence(id));
        };
        sequence.len = len;
        let dropped = sequence.pages.split_off(len.div_ceil(PAGE));
        self.drop_pages(&dropped);
        Ok(())
    }

    pub fn release(&mut self, id: SequenceId) -> Result<(), SessionError> {
        let sequence = self.sequences.remove(&id);
        let sequence = sequence.ok_or(SessionError::UnknownSequence(id))?;
        self.drop_pages(&sequence.pages);
        Ok(())
    }

    fn drop_pages(&mut self, pages: &[u32]) {
        for page in pages {
            let holders = &mut self.pages[*page as usize].holders;
            *holders -= 1;
            if *holders == 0 {
                self.free.push(*page);
            }
        }
    }

    /// Makes room for `tokens` more, so that writing them touches no shared page. The length
    /// stays as it was until [`Cache::commit`].
    pub fn reserve(&mut self, id: SequenceId, tokens: usize) -> Result<(), SessionError> {
        // Room that was made for tokens which never came is given back first.
        self.truncate(id, self.get(id)?.len)?;
        let sequence = self.get(id)?;
        let (len, held) = (sequence.len, sequence.pages.len());
        let partial = (len % PAGE != 0).then(|| sequence.pages[held - 1]);
        let shared = partial.filter(|page| self.pages[*page as usize].holders > 1);
        let wanted = (len + tokens).div_ceil(PAGE) - held + usize::from(shared.is_some());
        let available = self.capacity - (self.pages.len() - self.free.len());
        if wanted > available {
            return Err(SessionError::KvExhausted {
                wanted: wanted * PAGE,
                available: available * PAGE,
            });
        }
        let mut fresh: Vec<u32> = (0..wanted).map(|_| self.take_page()).collect();
        if let Some(shared) = shared {
            let copy = fresh.swap_remove(0);
            self.copy_page(shared, copy);
            self.pages[shared as usize].holders -= 1;
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.pages[held - 1] = copy;
            }
        }
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.pages.append(&mut fresh);
        }
        Ok(())
    }

    /// Counts tokens that have been written into reserved room.
    pub fn commit(&mut self, id: SequenceId, tokens: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.len += tokens;
        }
    }

    fn take_page(&mut self) -> u32 {
        let page = self.free.pop().unwrap_or_else(|| {
            self.pages.push(Page {
                data: PagePtr::allocate(self.layout.len),
                holders: 0,
            });
            self.pages.len() as u32 - 1
        });
        self.pages[page as usize].holders = 1;
        page
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        let [from, to] = [from, to].map(|page| self.pages[page as usize].data);
        // SAFETY: both belong to this cache, which nobody else touches through `&mut self`.
        unsafe { to.copy_from(from) };
    }

    /// The page a position of the sequence lies in.
    pub fn page_of(&self, id: SequenceId, position: usize) -> Option<PagePtr<T>> {
        let page = *self.sequences.get(&id)?.pages.get(position / PAGE)?;
        Some(self.pages[page as usize].data)
    }

    /// The sequence's pages, oldest first.
    pub fn pages(&self, id: SequenceId) -> impl Iterator<Item = PagePtr<T>> {
        let sequence = self.sequences.get(&id);
        let pages = sequence.map_or(&[][..], |sequence| &sequence.pages);
        pages.iter().map(|page| self.pages[*page as usize].data)
    }

    /// The first `len` tokens' elements, token after token.
    pub fn export_tokens(&self, id: SequenceId, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let sequence = self.get(id)?;
        for position in 0..sequence.len {
            let page = self.pages[sequence.pages[position / PAGE] as usize].data;
            // SAFETY: steps need `&mut self`, so nobody writes while this borrow lives.
            let page = unsafe { page.slice(0, self.layout.len) };
            for layer in &self.layout.layers {
                for place in layer.token_places(position % PAGE) {
                    page[place].to_bytes(out);
                }
            }
        }
        Ok(())
    }

    /// Makes a sequence of `len` tokens from exported bytes, which the caller has measured.
    pub fn import_tokens(&mut self, len: usize, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let id = self.create()?;
        if let Err(error) = self.reserve(id, len) {
            self.release(id)?;
            return Err(error);
        }
        let mut elements = bytes.chunks_exact(T::BYTES).map(T::from_bytes);
        let layers = self.layout.layers.clone();
        for position in 0..len {
            let Some(page) = self.page_of(id, position) else {
                break;
            };
            for layer in &layers {
                for place in layer.token_places(position % PAGE) {
                    // SAFETY: the page is this new sequence's own, reached through `&mut self`.
                    unsafe { page.write(place, elements.next().unwrap_or_default()) };
                }
            }
        }
        self.commit(id, len);
        Ok(id)
    }
}

impl<T: KvElement> Drop for Cache<T> {
    fn drop(&mut self) {
        for page in self.pages.drain(..) {
            // SAFETY: pointers to pages are used only inside a step, which borrows the cache.
            unsafe { page.data.free() };
        }
    }
}

fn check_len(len: usize, available: usize) -> Result<(), SessionError> {
    if len <= available {
        Ok(())
    } else {
        Err(SessionError::LengthOutOfRange { len, available })
    }
}
