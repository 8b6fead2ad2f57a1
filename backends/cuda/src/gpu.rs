//! A GPU as the device of a program.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::device::{Device, DeviceError};
use crate::driver::{Context, DriverError, LaunchConfig};
use crate::kernels::{KernelError, Kernels};
use crate::launch;
use crate::ops::{Address, Op, Step};

/// A GPU with the general kernels loaded. Launches run in order on one stream.
pub struct Gpu {
    kernels: Arc<Kernels>,
    context: Context,
    /// Dynamic shared memory that each kernel may have, if more than the default.
    shared_limits: HashMap<&'static str, u32>,
}

/// Dynamic shared memory that a kernel need not ask for.
const DEFAULT_SHARED: u32 = 48 << 10;

impl Gpu {
    /// Opens a device of the driver's list.
    pub fn open(ordinal: u32) -> Result<Self, KernelError> {
        let context = Context::open(ordinal)?;
        Ok(Self {
            kernels: loaded(ordinal)?,
            context,
            shared_limits: HashMap::new(),
        })
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
        let shape = launch::shape(op, step);
        let function = self.kernels.get(shape.kernel)?;
        if shape.shared_bytes > DEFAULT_SHARED {
            let limit = self.shared_limits.entry(shape.kernel).or_default();
            if *limit < shape.shared_bytes {
                function.set_max_dynamic_shared(shape.shared_bytes)?;
                *limit = shape.shared_bytes;
            }
        }
        let config = LaunchConfig {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            dependent: false,
            cluster: None,
        };
        let parameters = [op.parameters(), bytemuck::bytes_of(step)];
        // SAFETY: a lowered program accesses only the buffers that it planned, which live as long
        // as the session; the interpreter checks every access of the same programs.
        unsafe { self.context.launch(function, &config, &parameters) }?;
        Ok(())
    }

    fn memory(&self) -> (u64, u64) {
        self.context.memory_info().unwrap_or_default()
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
