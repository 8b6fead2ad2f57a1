//! The kernels of this build: compiled by the build script, loaded onto a device by name.

use std::collections::HashMap;
use std::sync::LazyLock;

use thiserror::Error;

use crate::architectures::{ComputeCapability, Target, parse_targets};
use crate::driver::{Context, DriverError, Function};
use crate::{fused_launch, launch};

/// Every file of kernels, and every kernel that the backend launches. A test compares this list
/// with what was compiled.
pub static FILES: LazyLock<Vec<KernelFile>> = LazyLock::new(|| {
    vec![
        KernelFile {
            name: "fast",
            kernels: fused_launch::kernels(),
            // Up to 48 bytes; the times in docs/benchmarks.md include them.
            may_spill: &[
                "fused_attention_d128_q8_g2_c2",
                "fused_attention_d128_q8_g2_c4",
                "fused_attention_d128_q8_g2_c8",
                "fused_attention_d64_q16_g2_c2",
                "fused_attention_d64_q16_g2_c4",
                "fused_attention_d80_q8_g2_c2",
                "fused_attention_d80_q8_g2_c4",
                "fused_attention_d80_q8_g2_c8",
                "fused_linear_store_m2_ring8",
                "fused_linear_store_m4_ring8",
                "fused_linear_store_m8_ring8",
            ],
        },
        KernelFile {
            name: "gemm",
            kernels: fused_launch::gemm_kernels(),
            may_spill: &[
                "gemm_gated_n128",
                "gemm_gated_n128_t2",
                "gemm_gated_n64",
                "gemm_largest_n128",
                "gemm_largest_n64",
                "gemm_residual_n128",
                "gemm_residual_n128_t2",
                "gemm_residual_n64",
                "gemm_store_n128",
                "gemm_store_n128_t2",
                "gemm_store_n64",
            ],
        },
        KernelFile {
            name: "prompt",
            kernels: fused_launch::prompt_kernels(),
            may_spill: &[],
        },
        KernelFile {
            name: "step",
            kernels: vec!["advance"],
            may_spill: &[],
        },
        KernelFile {
            name: "general",
            kernels: launch::KERNELS.to_vec(),
            may_spill: &[],
        },
        KernelFile {
            name: "measure",
            kernels: vec!["measure_read"],
            may_spill: &[],
        },
        KernelFile {
            name: "self_check",
            kernels: vec![
                "self_check_fill",
                "self_check_multiply",
                "self_check_cluster",
            ],
            may_spill: &[],
        },
    ]
});

/// A file of `kernels/`.
#[derive(Debug, Clone)]
pub struct KernelFile {
    /// Without its ending.
    pub name: &'static str,
    /// As in the source, where they are `extern "C"`. A name is unique among all files.
    pub kernels: Vec<&'static str>,
    /// Kernels that may keep registers in memory. Those for speed must not.
    pub may_spill: &'static [&'static str],
}

/// Whether the backend has a kernel of this name, for some GPU.
pub fn is_declared(name: &str) -> bool {
    FILES.iter().any(|file| file.kernels.contains(&name))
}

/// A compiled file of kernels.
struct Image {
    file: &'static str,
    /// What it was compiled for, separated by commas.
    targets: &'static str,
    fatbin: &'static [u8],
}

/// What ptxas reported of a file.
#[cfg(test)]
struct Report {
    file: &'static str,
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

/// Whether a file of kernels is compiled for this GPU.
pub fn is_compiled(file: &str, gpu: ComputeCapability) -> bool {
    let mut images = IMAGES.iter();
    images.any(|image| image.file == file && image.runs_on(gpu))
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
        let mut functions = HashMap::new();
        for image in IMAGES.iter().filter(|image| image.runs_on(gpu)) {
            let module = context.load_module(image.fatbin)?;
            let files = FILES.iter().filter(|file| file.name == image.file);
            for name in files.flat_map(|file| file.kernels.iter().copied()) {
                let function = module.function(name)?;
                // Limits of a kernel hold for all sessions, so each has the largest.
                let fixed = function.attributes().static_shared_bytes;
                let most = context.device().max_shared_bytes;
                function.set_max_dynamic_shared(most.saturating_sub(fixed))?;
                functions.insert(name, function);
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
        let names: Vec<&str> = FILES
            .iter()
            .flat_map(|file| file.kernels.iter().copied())
            .collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), unique.len());
        assert!(is_declared("self_check_fill") && !is_declared("no_such_kernel"));
    }

    #[test]
    fn every_kernel_is_in_every_image_without_spills() {
        for report in REPORTS {
            let compiled = parse(report.ptxas);
            let file = FILES.iter().find(|file| file.name == report.file);
            let file = file.unwrap_or_else(|| panic!("FILES does not have {}", report.file));
            for kernel in &compiled {
                let Compiled { name, machine, .. } = kernel;
                assert!(file.kernels.contains(name), "FILES does not have {name}");
                let may_spill = file.may_spill.contains(name);
                let spilled = kernel.spilled_bytes;
                assert!(
                    may_spill || spilled == 0,
                    "{name}, {machine}: {spilled} bytes"
                );
            }
            let targets = parse_targets(report.targets).unwrap();
            for machine in targets.iter().filter_map(|target| target.machine_name()) {
                for name in &file.kernels {
                    let is_compiled =
                        |found: &Compiled| found.name == *name && found.machine == machine;
                    assert!(compiled.iter().any(is_compiled), "{name} lacks {machine}");
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
        for file in FILES.iter() {
            let path = format!("{folder}/{}.cu", file.name);
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            // A file for other architectures than this build's is not compiled.
            let is_limited = crate::architectures::file_targets(&source)
                .unwrap()
                .is_some();
            let is_compiled = IMAGES.iter().any(|image| image.file == file.name);
            assert!(is_compiled || is_limited, "{path} was not compiled");
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
