//! The kernels of this build: compiled by the build script, loaded onto a device by name.

use std::collections::HashMap;
use std::sync::LazyLock;

use thiserror::Error;

use crate::architectures::{ComputeCapability, Target, parse_targets};
use crate::driver::{Context, DriverError, Function, Module};
use crate::launch;

/// Every kernel that the backend launches, with the file that has it. A test compares this list
/// with what was compiled.
pub static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let general = launch::KERNELS.iter();
    let general = general.map(|name| Kernel::new("general", name));
    SELF_CHECK.iter().copied().chain(general).collect()
});

/// Kernels of tests.
const SELF_CHECK: [Kernel; 3] = [
    Kernel::new("self_check", "self_check_fill"),
    Kernel::new("self_check", "self_check_multiply"),
    Kernel::new("self_check", "self_check_cluster"),
];

/// A kernel by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// The file of `kernels/`, without its ending.
    pub module: &'static str,
    /// As in the source, where it is `extern "C"`.
    pub name: &'static str,
    /// Whether it may keep registers in memory. Kernels for speed must not.
    pub may_spill: bool,
}

impl Kernel {
    /// A kernel that must not spill.
    pub const fn new(module: &'static str, name: &'static str) -> Self {
        Self {
            module,
            name,
            may_spill: false,
        }
    }

    /// Allows it to spill.
    pub const fn spilling(self) -> Self {
        Self {
            may_spill: true,
            ..self
        }
    }

    /// The kernel of this name, if it is in the list.
    pub fn named(name: &str) -> Option<&'static Self> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }
}

/// A compiled file of kernels.
struct Image {
    module: &'static str,
    /// What it was compiled for, separated by commas.
    targets: &'static str,
    fatbin: &'static [u8],
}

/// What ptxas reported of a file.
#[cfg(test)]
struct Report {
    module: &'static str,
    targets: &'static str,
    ptxas: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

impl Image {
    fn targets(&self) -> Vec<Target> {
        // The build script wrote the list.
        parse_targets(self.targets).unwrap_or_default()
    }

    fn runs_on(&self, gpu: ComputeCapability) -> bool {
        self.targets().iter().any(|target| target.runs_on(gpu))
    }
}

/// Why kernels cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KernelError {
    #[error("this build has no CUDA kernels: {why}")]
    NotBuilt { why: &'static str },
    #[error("the kernels are compiled for {compiled}, which a GPU of {found} does not run")]
    Unsupported {
        found: ComputeCapability,
        compiled: String,
    },
    #[error("no kernel `{name}` is compiled for this GPU")]
    Missing { name: String },
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Whether this build has kernels, and any for a GPU of this compute capability.
pub fn check_support(gpu: ComputeCapability) -> Result<(), KernelError> {
    check_built()?;
    if IMAGES.iter().any(|image| image.runs_on(gpu)) {
        return Ok(());
    }
    let mut compiled: Vec<String> = Vec::new();
    for target in IMAGES.iter().flat_map(Image::targets) {
        let name = target.to_string();
        if !compiled.contains(&name) {
            compiled.push(name);
        }
    }
    Err(KernelError::Unsupported {
        found: gpu,
        compiled: compiled.join(", "),
    })
}

/// Whether this build has kernels.
pub fn check_built() -> Result<(), KernelError> {
    match NOT_BUILT {
        Some(why) => Err(KernelError::NotBuilt { why }),
        None => Ok(()),
    }
}

/// The kernels on one device.
pub struct Kernels {
    functions: HashMap<&'static str, Function>,
}

impl Kernels {
    /// Loads every kernel that is compiled for the context's device.
    pub fn load(context: &Context) -> Result<Self, KernelError> {
        let gpu = context.device().compute_capability;
        check_support(gpu)?;
        let images = IMAGES.iter().filter(|image| image.runs_on(gpu));
        let mut modules: HashMap<&str, Module> = HashMap::new();
        for image in images {
            modules.insert(image.module, context.load_module(image.fatbin)?);
        }
        let mut functions = HashMap::new();
        for kernel in KERNELS.iter() {
            if let Some(module) = modules.get(kernel.module) {
                functions.insert(kernel.name, module.function(kernel.name)?);
            }
        }
        Ok(Self { functions })
    }

    /// The kernel of this name. Files limited to other architectures have none here.
    pub fn get(&self, name: &str) -> Result<&Function, KernelError> {
        self.functions
            .get(name)
            .ok_or_else(|| KernelError::Missing {
                name: name.to_owned(),
            })
    }

    /// Whether the device has a kernel.
    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What ptxas reported of one kernel for one architecture.
    #[derive(Debug, PartialEq, Eq)]
    struct Compiled<'a> {
        name: &'a str,
        machine: &'a str,
        spilled_bytes: u64,
    }

    fn parse(ptxas: &str) -> Vec<Compiled<'_>> {
        let mut found: Vec<Compiled> = Vec::new();
        for line in ptxas.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some((_, entry)) = line.split_once("Compiling entry function '") {
                let mut quoted = entry.split('\'');
                if let (Some(name), Some(machine)) = (quoted.next(), quoted.nth(1)) {
                    found.push(Compiled {
                        name,
                        machine,
                        spilled_bytes: 0,
                    });
                }
            } else if let [
                ..,
                stores,
                "bytes",
                "spill",
                "stores,",
                loads,
                "bytes",
                "spill",
                "loads",
            ] = words[..]
                && let Some(last) = found.last_mut()
            {
                let bytes = |text: &str| text.parse::<u64>().unwrap();
                last.spilled_bytes += bytes(stores) + bytes(loads);
            }
        }
        found
    }

    #[test]
    fn ptxas_reports_are_parsed() {
        let report = "\
            ptxas info    : Compiling entry function 'f' for 'sm_90a'\n\
            ptxas info    : Function properties for f\n    \
                0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : Used 32 registers, used 0 barriers\n\
            ptxas info    : Compiling entry function 'g' for 'sm_80'\n    \
                8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
        let compiled = |name, machine, spilled_bytes| Compiled {
            name,
            machine,
            spilled_bytes,
        };
        let expected = [compiled("f", "sm_90a", 12), compiled("g", "sm_80", 0)];
        assert_eq!(parse(report), expected);
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
        assert_eq!(names.len(), KERNELS.len());
        assert_eq!(
            Kernel::named("self_check_fill").map(|found| found.module),
            Some("self_check")
        );
        assert_eq!(Kernel::named("no_such_kernel"), None);
    }

    #[test]
    fn every_kernel_is_in_every_image_without_spills() {
        for report in REPORTS {
            let compiled = parse(report.ptxas);
            for kernel in &compiled {
                let declared = Kernel::named(kernel.name);
                assert_eq!(
                    declared.map(|declared| declared.module),
                    Some(report.module),
                    "{} is compiled, but KERNELS does not list it for this file",
                    kernel.name
                );
                let may_spill = declared.is_some_and(|declared| declared.may_spill);
                assert!(may_spill || kernel.spilled_bytes == 0, "{kernel:?}");
            }
            let targets = parse_targets(report.targets).unwrap();
            let declared = KERNELS.iter();
            for kernel in declared.filter(|kernel| kernel.module == report.module) {
                for machine in targets.iter().filter_map(|target| target.machine_name()) {
                    let mut compiled = compiled.iter();
                    assert!(
                        compiled.any(|found| found.name == kernel.name && found.machine == machine),
                        "{} is not compiled for {machine}",
                        kernel.name
                    );
                }
            }
        }
    }

    #[test]
    fn every_listed_file_is_compiled() {
        if check_built().is_err() {
            return;
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        for kernel in KERNELS.iter() {
            let path = format!("{folder}/{}.cu", kernel.module);
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            let limited = crate::architectures::file_targets(&source).unwrap();
            let is_compiled = IMAGES.iter().any(|image| image.module == kernel.module);
            assert!(is_compiled || limited.is_some(), "{path} was not compiled");
        }
    }

    #[test]
    fn unsupported_gpu_is_named() {
        let old = ComputeCapability { major: 7, minor: 5 };
        let message = check_support(old).unwrap_err().to_string();
        let expected = if NOT_BUILT.is_some() {
            "no CUDA kernels"
        } else {
            "7.5"
        };
        assert!(message.contains(expected), "{message}");
    }
}
