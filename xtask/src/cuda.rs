//! Downloads the CUDA compiler: five Python wheels, unpacked into one folder of this checkout's
//! `target`. The CUDA backend's build script looks there.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::program;
use crate::error::Error;
use crate::tools::require_cxx_compiler;
use crate::wheel::{Platform, Wheel, Wheels};

/// Where the wheels are unpacked, relative to the root. The build script of `backends/cuda` has the
/// same path.
const FOLDER: &str = "target/cuda";
/// The toolkit's folder in all of the wheels.
const TOOLKIT: &str = "nvidia/cu13";

struct Package {
    name: &'static str,
    version: &'static str,
    platforms: &'static [Platform],
}

const fn package(
    name: &'static str,
    version: &'static str,
    platforms: &'static [Platform; 2],
) -> Package {
    Package {
        name,
        version,
        platforms,
    }
}

const fn x86_64(sha256: &'static str) -> Platform {
    Platform {
        os: "linux",
        arch: "x86_64",
        tag: "manylinux2014_x86_64",
        sha256,
    }
}

const fn aarch64(sha256: &'static str) -> Platform {
    Platform {
        os: "linux",
        arch: "aarch64",
        tag: "manylinux2014_aarch64",
        sha256,
    }
}

/// The hashes are those of the package index.
const PACKAGES: &[Package] = &[
    package(
        "nvidia-cuda-nvcc",
        "13.0.88",
        &[
            x86_64("56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"),
            aarch64("c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f"),
        ],
    ),
    // The part of the compiler that turns CUDA C++ into PTX.
    package(
        "nvidia-nvvm",
        "13.0.88",
        &[
            x86_64("c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"),
            aarch64("c4376a291d72d22a315d9d2f69bdae8f8cd83a627f75bad395cee49a0fe65dc1"),
        ],
    ),
    // Headers that the compiler includes on its own.
    package(
        "nvidia-cuda-crt",
        "13.0.88",
        &[
            x86_64("2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"),
            aarch64("ee2ea2a97073e02ee62bb27841f437332be2c248e3eac013df07997ada39c003"),
        ],
    ),
    package(
        "nvidia-cuda-runtime",
        "13.0.96",
        &[
            x86_64("7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"),
            aarch64("ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55"),
        ],
    ),
    // Headers that the runtime's headers include.
    package(
        "nvidia-cuda-cccl",
        "13.0.85",
        &[
            x86_64("e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"),
            aarch64("6f0203e29fed809ee2b7fe9b1344df66ecab990c37d6a2e0e189b26d6c97ed7c"),
        ],
    ),
];

/// A kernel with an instruction that only the target `sm_90a` has, to try the compiler.
const PROBE: &str = "\
#include <cuda_fp16.h>
extern \"C\" __global__ void probe(half *x) {
    asm volatile(\"wgmma.fence.sync.aligned;\");
    x[threadIdx.x] = __float2half(1.0f);
}
";

/// Downloads the compiler and tries it.
pub fn run(root: &Path, args: &[String]) -> Result<(), Error> {
    if let Some(extra) = args.first() {
        let message = format!("cuda takes no arguments, got `{extra}`");
        return Err(Error::Usage { message });
    }
    find_or_download(root)?;
    println!("builds with the feature `cuda` use it unless LOQUAT_NVCC is set");
    Ok(())
}

/// The compiler, downloaded if needed. It works: a kernel for `sm_90a` was compiled.
pub fn find_or_download(root: &Path) -> Result<PathBuf, Error> {
    require_cxx_compiler(root)?;
    let folder = root.join(FOLDER);
    let wheels: Vec<Wheel> = PACKAGES.iter().map(Package::wheel).collect();
    let nvcc = folder.join(TOOLKIT).join("bin/nvcc");
    let wheels = Wheels {
        wheels: &wheels,
        other_source: "or install CUDA 13.0 and set CUDA_HOME",
    };
    if wheels.are_complete(&folder) {
        println!("the CUDA compiler is already in {FOLDER}");
    } else if !has_wheels(OS, ARCH) {
        return Err(Error::Missing {
            what: format!("a CUDA compiler for {OS} on {ARCH}"),
            remedy: "build on Linux, on x86-64 or ARM64".to_string(),
        });
    } else {
        wheels.fetch(root, &folder)?;
        println!("the CUDA compiler is in {FOLDER}");
    }
    // Unpacking does not keep permissions.
    for programs in ["bin", "nvvm/bin"] {
        make_executable(&folder.join(TOOLKIT).join(programs))?;
    }
    try_compiler(root, &nvcc)?;
    Ok(nvcc)
}

fn has_wheels(os: &str, arch: &str) -> bool {
    let mut packages = PACKAGES.iter();
    packages.all(|package| !package.platforms_for(os, arch).is_empty())
}

impl Package {
    fn wheel(&self) -> Wheel {
        Wheel {
            package: self.name,
            version: self.version,
            platforms: self.platforms_for(OS, ARCH),
            fallback: None,
        }
    }

    fn platforms_for(&self, os: &str, arch: &str) -> Vec<&'static Platform> {
        let platforms = self.platforms.iter();
        let matching = platforms.filter(|platform| platform.os == os && platform.arch == arch);
        matching.collect()
    }
}

#[cfg(unix)]
fn make_executable(folder: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let io_error = |source| Error::Io {
        path: folder.to_owned(),
        source,
    };
    for entry in fs::read_dir(folder).map_err(io_error)? {
        let path = entry.map_err(io_error)?.path();
        if path.is_file() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(io_error)?;
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_executable(_folder: &Path) -> Result<(), Error> {
    Ok(())
}

/// Compiles [`PROBE`], so that a missing part of the compiler is reported here.
fn try_compiler(root: &Path, nvcc: &Path) -> Result<(), Error> {
    let scratch = tempfile::tempdir_in(root.join(FOLDER)).map_err(|source| Error::Io {
        path: root.join(FOLDER),
        source,
    })?;
    let source = scratch.path().join("probe.cu");
    fs::write(&source, PROBE).map_err(|error| Error::Io {
        path: source.clone(),
        source: error,
    })?;
    let args = ["-arch=sm_90a", "--cubin", "-o", "probe.cubin", "probe.cu"];
    program(scratch.path(), nvcc, &args).run_quiet()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_wheels_for_linux() {
        for (os, arch, expected) in [
            ("linux", "x86_64", true),
            ("linux", "aarch64", true),
            ("macos", "aarch64", false),
            ("windows", "x86_64", false),
        ] {
            assert_eq!(has_wheels(os, arch), expected, "{os} {arch}");
        }
    }

    #[test]
    fn hashes_are_valid_and_unique() {
        let platforms = PACKAGES.iter().flat_map(|package| package.platforms);
        let mut hashes: Vec<&str> = platforms.map(|platform| platform.sha256).collect();
        for hash in &hashes {
            assert_eq!(hash.len(), 64, "{hash}");
        }
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    #[test]
    fn arguments_are_refused() {
        let message = run(Path::new("."), &["sm_90a".to_string()]);
        assert!(message.unwrap_err().to_string().contains("`sm_90a`"));
    }
}
