//! A GPU as the device of a program.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::device::{Device, DeviceError, RecordId, Ticket};
use crate::driver::{Context, DriverError, Event, Function, Graph, LaunchConfig, Pinned};
use crate::fused_launch::Occupancy;
use crate::kernels::{KernelError, Kernels};
use crate::launch;
use crate::ops::{Address, Op, Parameters, Step};

/// A GPU with the general kernels loaded. Launches run in order on one stream.
pub struct Gpu {
    kernels: Arc<Kernels>,
    context: Context,
    /// Blocks or clusters that run at a time, by kernel, blocks of a cluster, threads and shared
    /// memory.
    occupancy: RefCell<HashMap<(&'static str, [u32; 3]), u32>>,
    /// Recorded launches.
    graphs: Vec<Option<Graph>>,
    /// Where fetched bytes arrive, in turn.
    transfers: Vec<Transfer>,
    next_transfer: usize,
    /// Whether a launch may be dependent.
    dependent_launches: bool,
}

/// A place for fetched bytes.
struct Transfer {
    bytes: Pinned,
    arrived: Event,
}

/// Fetches that may be under way at once.
const TRANSFERS: usize = 4;

/// Bytes of a place for fetched bytes at first.
const MIN_TRANSFER: usize = 4096;

impl Gpu {
    /// Opens a device of the driver's list.
    pub fn open(ordinal: u32) -> Result<Self, KernelError> {
        let context = Context::open(ordinal)?;
        Ok(Self {
            kernels: loaded(ordinal)?,
            context,
            occupancy: RefCell::default(),
            graphs: Vec::new(),
            transfers: Vec::new(),
            next_transfer: 0,
            dependent_launches: true,
        })
    }

    /// Makes every launch start when the one before it has ended.
    pub fn disable_dependent_launches(&mut self) {
        self.dependent_launches = false;
    }

    /// The driver's context, for timing.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// The kernels on a device, which sessions share. They have a context of their own, so that they do
/// not keep the memory of the session that loaded them.
fn loaded(ordinal: u32) -> Result<Arc<Kernels>, KernelError> {
    static LOADED: Mutex<BTreeMap<u32, Weak<Kernels>>> = Mutex::new(BTreeMap::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernels) = loaded.get(&ordinal).and_then(Weak::upgrade) {
        return Ok(kernels);
    }
    let kernels = Arc::new(Kernels::load(&Context::open(ordinal)?)?);
    loaded.insert(ordinal, Arc::downgrade(&kernels));
    Ok(kernels)
}

impl Device for Gpu {
    fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        // The driver refuses empty allocations.
        Ok(Address(self.context.allocate(bytes.max(1) as u64)?))
    }

    fn free(&mut self, address: Address) {
        if !address.is_none() {
            // A failure is reported by the next call, or memory is lost that the context frees.
            let _ = self.context.free(address.0);
        }
    }

    fn reserve(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        Ok(Address(self.context.reserve(bytes as u64)?))
    }

    fn clear(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        Ok(self.context.fill_zero(at.0, bytes as u64)?)
    }

    fn commit(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        Ok(self.context.commit(at.0, bytes as u64)?)
    }

    fn decommit(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        Ok(self.context.decommit(at.0, bytes as u64)?)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(self.context.write(to.0, bytes)?)
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError> {
        Ok(self.context.read(from.0, out)?)
    }

    fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        Ok(self.context.copy(from.0, to.0, bytes as u64)?)
    }

    fn launch(&mut self, op: &Op, step: &Step) -> Result<(), DeviceError> {
        self.launch_as(op, step, waits(op))
    }

    fn record(&mut self, launches: Vec<(Op, Step)>) -> Result<RecordId, DeviceError> {
        let context = self.context.clone();
        let graph = context.capture(|_| {
            let mut follows = false;
            for (op, step) in &launches {
                self.launch_as(op, step, waits(op) && follows)?;
                follows = true;
            }
            Ok::<_, RecordError>(())
        });
        let graph = graph.map_err(|RecordError(error)| error)?;
        let free = self.graphs.iter().position(Option::is_none);
        let id = free.unwrap_or_else(|| {
            self.graphs.push(None);
            self.graphs.len() - 1
        });
        self.graphs[id] = Some(graph);
        Ok(RecordId(id))
    }

    fn replay(&mut self, record: RecordId) -> Result<(), DeviceError> {
        let Some(Some(graph)) = self.graphs.get(record.0) else {
            return Ok(());
        };
        // SAFETY: as for the launches that were recorded: their buffers live as long as the session.
        unsafe { self.context.launch_graph(graph) }?;
        Ok(())
    }

    fn forget(&mut self, record: RecordId) {
        if let Some(graph) = self.graphs.get_mut(record.0) {
            *graph = None;
        }
    }

    fn fetch(&mut self, from: Address, bytes: usize) -> Result<Ticket, DeviceError> {
        if self.transfers.len() < TRANSFERS {
            self.transfers.push(Transfer {
                bytes: self.context.pinned(bytes.max(MIN_TRANSFER))?,
                arrived: self.context.event()?,
            });
            self.next_transfer = self.transfers.len() - 1;
        }
        let index = self.next_transfer;
        self.next_transfer = (index + 1) % TRANSFERS;
        let transfer = &mut self.transfers[index];
        if transfer.bytes.as_slice().len() < bytes {
            transfer.arrived.wait()?;
            transfer.bytes = self.context.pinned(bytes)?;
        }
        // SAFETY: the buffer is neither read nor used again before `arrived`: a place's turn comes
        // after three later ones, and at most two fetches are under way.
        unsafe { self.context.read_async(from.0, &transfer.bytes, 0..bytes) }?;
        transfer.arrived.record()?;
        Ok(Ticket::Pending(index))
    }

    fn collect(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<(), DeviceError> {
        match ticket {
            Ticket::Ready(bytes) => out.copy_from_slice(&bytes),
            Ticket::Pending(index) => {
                let transfer = &self.transfers[index];
                transfer.arrived.wait()?;
                out.copy_from_slice(&transfer.bytes.as_slice()[..out.len()]);
            }
        }
        Ok(())
    }

    fn memory(&self) -> (u64, u64) {
        self.context.memory_info().unwrap_or_default()
    }
}

impl Occupancy for Gpu {
    fn multiprocessors(&self) -> u32 {
        self.context.device().sm_count
    }

    fn blocks(&self, kernel: &'static str, threads: u32, shared_bytes: u32) -> u32 {
        self.ask([0, threads, shared_bytes], kernel, &|function| {
            function.max_active_blocks(threads, shared_bytes)
        })
    }

    fn clusters(&self, kernel: &'static str, threads: u32, shared_bytes: u32, blocks: u32) -> u32 {
        self.ask([blocks, threads, shared_bytes], kernel, &|function| {
            function.max_active_clusters(threads, shared_bytes, blocks)
        })
    }
}

/// A question about a kernel.
type Question<'a> = &'a dyn Fn(&Function) -> Result<u32, DriverError>;

impl Gpu {
    /// Whether the kernels of the fast path run here.
    pub fn has_fast_path(&self) -> bool {
        self.kernels.has("fused_embed")
    }

    /// What the driver says of a kernel; 0 if it does not know it, which a launch then reports.
    fn ask(&self, sizes: [u32; 3], kernel: &'static str, question: Question<'_>) -> u32 {
        let mut known = self.occupancy.borrow_mut();
        *known.entry((kernel, sizes)).or_insert_with(|| {
            let function = self.kernels.get(kernel);
            function.map_or(0, |function| question(function).unwrap_or(0))
        })
    }

    /// Launches an operation; a `dependent` one may start before the one before it ends.
    fn launch_as(&mut self, op: &Op, step: &Step, dependent: bool) -> Result<(), DeviceError> {
        let shape = launch::shape(op, step, self);
        let function = self.kernels.get(shape.kernel)?;
        let config = LaunchConfig {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            dependent: dependent && self.dependent_launches,
            cluster: shape.cluster,
        };
        let step = bytemuck::bytes_of(step);
        let parameters: &[&[u8]] = match op.parameters() {
            Parameters::Struct(bytes) => &[bytes, step],
            Parameters::Pack(pack) => &[
                bytemuck::bytes_of(&pack.out),
                bytemuck::bytes_of(&pack.matrix),
                bytemuck::bytes_of(&pack.up),
                bytemuck::bytes_of(&pack.rows),
                bytemuck::bytes_of(&pack.cols),
            ],
        };
        // SAFETY: a lowered program accesses only the buffers that it planned, which live as long
        // as the session; the interpreter checks every access of the same programs.
        unsafe { self.context.launch(function, &config, parameters) }?;
        Ok(())
    }
}

/// Whether an operation's kernel waits for the one before it, so that it may start before that ends.
fn waits(op: &Op) -> bool {
    matches!(op, Op::Fused(op) if op.waits())
}

/// An error while launches are recorded.
struct RecordError(DeviceError);

impl From<DriverError> for RecordError {
    fn from(error: DriverError) -> Self {
        Self(error.into())
    }
}

impl From<DeviceError> for RecordError {
    fn from(error: DeviceError) -> Self {
        Self(error)
    }
}

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> Self {
        if error.is_device_lost() {
            return Self::Lost {
                why: error.to_string(),
            };
        }
        match error {
            DriverError::OutOfMemory { wanted } => Self::OutOfMemory {
                wanted,
                available: 0,
            },
            other => Self::Failed {
                what: "the GPU".to_owned(),
                why: other.to_string(),
            },
        }
    }
}

impl From<KernelError> for DeviceError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Driver(error) => error.into(),
            other => Self::Failed {
                what: "the launch".to_owned(),
                why: other.to_string(),
            },
        }
    }
}
