//! Whether models can run on this machine's GPUs, and if not, what to do.

use loquat_session::{Device, DeviceKind, Probe};

use crate::driver::{DeviceInfo, DriverError, Library};
use crate::kernels::{self, KernelError};

/// Inspects the build, the driver and the GPUs. Creates no context.
pub fn probe() -> Probe {
    if let Err(error) = kernels::check_built() {
        return explain(&error);
    }
    match usable_devices() {
        Ok(devices) => Probe::Available(devices.iter().map(describe).collect()),
        Err(error) => explain(&error),
    }
}

/// The GPUs that the kernels of this build run on; at least one. Models are opened on the first.
pub fn usable_devices() -> Result<Vec<DeviceInfo>, KernelError> {
    kernels::check_built()?;
    usable(Library::load()?.devices()?, kernels::check_support)
}

fn usable(
    devices: Vec<DeviceInfo>,
    check: impl Fn(crate::ComputeCapability) -> Result<(), KernelError>,
) -> Result<Vec<DeviceInfo>, KernelError> {
    let mut refused = None;
    let mut usable = Vec::new();
    for device in devices {
        match check(device.compute_capability) {
            Ok(()) => usable.push(device),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        _ if !usable.is_empty() => Ok(usable),
        Some(error) => Err(error),
        None => Err(DriverError::NoDevice.into()),
    }
}

fn describe(device: &DeviceInfo) -> Device {
    Device {
        kind: DeviceKind::Gpu,
        label: label(device),
        memory_bytes: Some(device.total_memory),
        memory_bytes_per_second: device
            .memory_bandwidth_bytes_per_s
            .map(|bandwidth| bandwidth as u64),
    }
}

/// The device's name in reports.
pub fn label(device: &DeviceInfo) -> String {
    format!("cuda {} ({})", device.driver_version, device.name)
}

fn explain(error: &KernelError) -> Probe {
    let why = error.to_string();
    let mut letters = why.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    Probe::Unavailable {
        why: format!("{}{}.", first.collect::<String>(), letters.as_str()),
        remedy: remedy(error).to_owned(),
    }
}

fn remedy(error: &KernelError) -> &'static str {
    const DRIVER: &str = "Install NVIDIA's driver 580 or newer.";
    match error {
        KernelError::NotBuilt { .. } => {
            "Run `cargo xtask cuda` to download the CUDA compiler and build with `--features cuda`."
        }
        KernelError::Unsupported { .. } | KernelError::Missing { .. } => {
            "Build with LOQUAT_CUDA_ARCHITECTURES set to the GPU's compute capability, such as 80 \
             for 8.0, or use another backend."
        }
        KernelError::Driver(error) => match error {
            DriverError::LibraryMissing { .. }
            | DriverError::TooOld { .. }
            | DriverError::MissingFunction { .. } => DRIVER,
            DriverError::NoDevice | DriverError::UnknownDevice { .. } => {
                "Check that `nvidia-smi` lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it."
            }
            _ => {
                "Check with `nvidia-smi` that the driver works; after an update, restart the machine."
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ComputeCapability;
    use crate::driver::{CudaVersion, MIN_CUDA, Status};

    fn device(ordinal: u32, major: u32, minor: u32) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            name: "Some GPU".to_owned(),
            compute_capability: ComputeCapability { major, minor },
            sm_count: 132,
            total_memory: 80 << 30,
            memory_bandwidth_bytes_per_s: Some(4.8e12),
            driver_version: MIN_CUDA,
            l2_bytes: 50 << 20,
            max_shared_bytes: 227 << 10,
        }
    }

    #[test]
    fn every_reason_is_a_sentence_with_a_remedy() {
        let status = Status {
            code: 803,
            name: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH".to_owned(),
            text: "system has unsupported display driver / cuda driver combination".to_owned(),
        };
        let old = DriverError::TooOld {
            found: CudaVersion::from_number(12_080),
            needed: MIN_CUDA,
        };
        let missing = DriverError::LibraryMissing {
            name: "libcuda.so.1",
            why: "no such file".to_owned(),
        };
        let table: [(KernelError, &str, &str); 6] = [
            (
                KernelError::NotBuilt { why: "of a reason" },
                "This build has no CUDA kernels: of a reason.",
                "cargo xtask cuda",
            ),
            (
                KernelError::Unsupported {
                    found: ComputeCapability { major: 7, minor: 5 },
                    compiled: "90a".to_owned(),
                },
                "The kernels are compiled for 90a, which a GPU of 7.5 does not run.",
                "LOQUAT_CUDA_ARCHITECTURES",
            ),
            (
                missing.into(),
                "The NVIDIA driver's library `libcuda.so.1` cannot be loaded: no such file.",
                "580",
            ),
            (
                old.into(),
                "The NVIDIA driver supports CUDA 12.8, and CUDA 13.0 is needed.",
                "580",
            ),
            (
                DriverError::NoDevice.into(),
                "There is no NVIDIA GPU that CUDA can use.",
                "nvidia-smi",
            ),
            (
                DriverError::Unusable { status }.into(),
                "The NVIDIA driver cannot be used: system has unsupported display driver / cuda \
                 driver combination (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803).",
                "restart",
            ),
        ];
        for (error, sentence, named) in table {
            let Probe::Unavailable { why, remedy } = explain(&error) else {
                panic!("an error is not a device");
            };
            assert_eq!(why, sentence);
            assert!(remedy.contains(named), "{remedy}");
            assert!(remedy.ends_with('.'), "{remedy}");
        }
    }

    #[test]
    fn only_supported_gpus_are_used() {
        let check = |gpu: ComputeCapability| {
            if gpu.major == 9 {
                Ok(())
            } else {
                Err(KernelError::Unsupported {
                    found: gpu,
                    compiled: "90a".to_owned(),
                })
            }
        };
        let found = usable(vec![device(0, 7, 5), device(1, 9, 0)], check).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].ordinal, 1);
        let described = describe(&found[0]);
        assert_eq!(described.label, "cuda 13.0 (Some GPU)");
        assert_eq!(described.memory_bytes_per_second, Some(4_800_000_000_000));
        let refused = usable(vec![device(0, 7, 5), device(1, 8, 0)], check).unwrap_err();
        assert!(refused.to_string().contains("7.5"), "{refused}");
        let absent = usable(Vec::new(), check).unwrap_err();
        assert_eq!(absent, DriverError::NoDevice.into());
    }
}
