//! This machine's processor and memory, for the command line. Not part of the public API.

use std::num::NonZeroUsize;

pub use loquat_cpu::{
    MachineCores, MachineLimits, MachineMemory, cpu_features, measure_quickly, processor_name,
};

use crate::Error;

/// The instruction sets that the CPU backend can use here, fastest first. It uses the first.
pub fn instruction_sets() -> Vec<&'static str> {
    loquat_cpu::CpuBackend::instruction_sets()
}

/// Measures what the cores can do at most.
pub fn machine_limits(threads: Option<NonZeroUsize>) -> Result<MachineLimits, Error> {
    Ok(loquat_cpu::measure(threads.map(NonZeroUsize::get))?)
}
