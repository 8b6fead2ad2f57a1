//! A kernel and its launch.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::context::{Context, Inner};
use super::error::DriverError;
use super::ffi::{self, Handle, LaunchAttribute, SUCCESS, function_attribute as attribute};

/// Most parameters of a kernel. Ours take one struct.
const MAX_PARAMETERS: usize = 16;

/// A kernel that can be launched.
pub struct Function {
    context: Arc<Inner>,
    handle: Handle,
    name: String,
    attributes: FunctionAttributes,
    /// The sizes of the parameters, in order.
    parameters: Vec<usize>,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// What a kernel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Per thread.
    pub registers: u32,
    /// Memory of each thread for spilled registers and arrays.
    pub local_bytes: u32,
    /// Shared memory of each block, without the dynamic part.
    pub static_shared_bytes: u32,
    /// The largest block that can be launched.
    pub max_threads: u32,
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Starts when all blocks of the kernel before it have allowed that, instead of when they end
    /// (programmatic stream serialization). The kernel must wait before it reads what that one
    /// writes. Needs compute capability 9.0.
    pub dependent: bool,
    /// Blocks of a cluster. Needs compute capability 9.0.
    pub cluster: Option<[u32; 3]>,
}

impl Function {
    pub(super) fn new(
        context: Arc<Inner>,
        handle: Handle,
        name: &str,
    ) -> Result<Self, DriverError> {
        let api = context.api();
        // Loaded now, because a launch that is captured into a graph must not load code.
        // SAFETY: the module of the handle is loaded as long as the context.
        let code = unsafe { (api.function_load)(handle) };
        context.check("cuFuncLoad", code)?;
        let read = |attribute| {
            let mut value = 0;
            // SAFETY: the function writes one number.
            let code = unsafe { (api.function_attribute)(&mut value, attribute, handle) };
            context.check("cuFuncGetAttribute", code)?;
            Ok::<u32, DriverError>(u32::try_from(value).unwrap_or_default())
        };
        let attributes = FunctionAttributes {
            registers: read(attribute::REGISTERS)?,
            local_bytes: read(attribute::LOCAL_BYTES)?,
            static_shared_bytes: read(attribute::STATIC_SHARED_BYTES)?,
            max_threads: read(attribute::MAX_THREADS)?,
        };
        let parameters = (0..=MAX_PARAMETERS).map_while(|index| {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function writes two numbers, or fails after the last parameter.
            let code = unsafe { (api.function_parameter)(handle, index, &mut offset, &mut size) };
            (code == SUCCESS).then_some(size)
        });
        Ok(Self {
            parameters: parameters.collect(),
            attributes,
            handle,
            name: name.to_owned(),
            context,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn attributes(&self) -> FunctionAttributes {
        self.attributes
    }

    /// Allows blocks to have this much dynamic shared memory; above 48 KiB a kernel must ask.
    pub fn set_max_dynamic_shared(&self, bytes: u32) -> Result<(), DriverError> {
        self.context.make_current()?;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let attribute = attribute::MAX_DYNAMIC_SHARED_BYTES;
        // SAFETY: the kernel is loaded.
        let code =
            unsafe { (self.context.api().function_set_attribute)(self.handle, attribute, bytes) };
        self.context.check("cuFuncSetAttribute", code)
    }

    /// The blocks of this size that one multiprocessor runs at a time.
    pub fn max_active_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32, DriverError> {
        self.context.make_current()?;
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: the function writes one number.
        let code = unsafe {
            let api = self.context.api();
            (api.function_active_blocks)(&mut blocks, self.handle, threads, shared_bytes as usize)
        };
        let call = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
        self.context.check(call, code)?;
        Ok(u32::try_from(blocks).unwrap_or_default())
    }
}

impl Function {
    /// The clusters of so many blocks of this size that the GPU runs at a time.
    pub fn max_active_clusters(
        &self,
        threads: u32,
        shared_bytes: u32,
        blocks: u32,
    ) -> Result<u32, DriverError> {
        self.context.make_current()?;
        let mut attributes = [LaunchAttribute::cluster([blocks, 1, 1])];
        let config = ffi::LaunchConfig {
            // The question does not depend on it, but it must be whole clusters.
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes,
            stream: self.context.stream,
            attributes: attributes.as_mut_ptr(),
            attribute_count: 1,
        };
        let mut clusters = 0;
        // SAFETY: the function writes one number, and reads the configuration and its attribute.
        let code = unsafe {
            let api = self.context.api();
            (api.function_active_clusters)(&mut clusters, self.handle, &config)
        };
        self.context.check("cuOccupancyMaxActiveClusters", code)?;
        Ok(u32::try_from(clusters).unwrap_or_default())
    }
}

impl Context {
    /// Starts a kernel with the bytes of its parameters. Their sizes are checked.
    ///
    /// # Safety
    /// The kernel accesses memory by the addresses in its parameters, within what is allocated,
    /// until it ends; for a captured launch, until the last launch of its graph ends.
    pub unsafe fn launch(
        &self,
        function: &Function,
        config: &LaunchConfig,
        parameters: &[&[u8]],
    ) -> Result<(), DriverError> {
        let sizes = parameters.iter().map(|bytes| bytes.len());
        if !sizes.clone().eq(function.parameters.iter().copied())
            || parameters.len() > MAX_PARAMETERS
        {
            return Err(DriverError::Parameters {
                function: function.name.clone(),
                expected: function.parameters.clone(),
                found: sizes.collect(),
            });
        }
        let mut pointers: [*mut c_void; MAX_PARAMETERS] = [ptr::null_mut(); MAX_PARAMETERS];
        for (pointer, bytes) in pointers.iter_mut().zip(parameters) {
            *pointer = bytes.as_ptr().cast_mut().cast();
        }
        let mut attributes = [LaunchAttribute::UNUSED; 2];
        let mut count = 0;
        if config.dependent {
            attributes[count] = LaunchAttribute::dependent();
            count += 1;
        }
        if let Some(cluster) = config.cluster {
            attributes[count] = LaunchAttribute::cluster(cluster);
            count += 1;
        }
        let config = ffi::LaunchConfig {
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
            stream: self.inner.stream,
            attributes: attributes.as_mut_ptr(),
            attribute_count: count as c_uint,
        };
        self.inner.make_current()?;
        // SAFETY: the driver copies the parameters, whose number and sizes are the kernel's, before
        // it returns; the caller answers for what the kernel does.
        let code = unsafe {
            let api = self.inner.api();
            (api.launch)(
                &config,
                function.handle,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.inner.check("cuLaunchKernelEx", code)
    }
}
