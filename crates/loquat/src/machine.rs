//! What this machine has, as the system and a short measurement tell it.

pub use loquat_cpu::{
    MachineCores, MachineLimits, MachineMemory, cpu_features, measure_quickly, processor_name,
};

/// The instruction sets that the CPU backend could compute with here, fastest first; it takes the
/// first.
pub fn instruction_sets() -> Vec<&'static str> {
    loquat_cpu::CpuBackend::instruction_sets()
}
