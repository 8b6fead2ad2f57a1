//! Compiles the kernels into fatbins that are part of the program. Without nvcc, the crate has no
//! kernels and says so when it is probed.

#[path = "src/architectures.rs"]
#[allow(dead_code)]
mod architectures;
#[path = "build/kernels.rs"]
mod kernels;
#[path = "build/nvcc.rs"]
mod nvcc;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use kernels::{Build, Module};

const TARGETS: &str = "LOQUAT_CUDA_ARCHITECTURES";
/// Development builds run where the backend is developed.
const DEVELOPMENT_TARGETS: &str = "90a";
const RELEASE_TARGETS: &str = "80,86,89,90a,100f,120f,compute_80";
const REMEDY: &str = "run `cargo xtask cuda` to download it, or set CUDA_HOME to an installation \
                      of CUDA 13";

fn main() {
    for variable in nvcc::VARIABLES.iter().chain(&[TARGETS, "NVCC_CCBIN"]) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for path in ["kernels", "build", "build.rs", "src/architectures.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let (modules, not_built) = match build(&out) {
        Ok(Some(modules)) => (modules, None),
        Ok(None) => {
            println!(
                "cargo::warning=nvcc was not found, so the CUDA backend will be unavailable: {REMEDY}"
            );
            (Vec::new(), Some("nvcc was not found when it was built"))
        }
        Err(Refusal::NotWanted) => (Vec::new(), Some("it was built without the feature `cuda`")),
        // A toolchain that was found but does not work fails the build.
        Err(Refusal::Failed(why)) => panic!("the CUDA kernels do not build: {why}"),
    };
    let text = kernels::generate(&modules, not_built);
    if let Err(error) = fs::write(out.join("kernels.rs"), text) {
        panic!("cannot write the list of kernels: {error}");
    }
}

enum Refusal {
    NotWanted,
    Failed(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// The compiled kernel files; `None` without nvcc.
fn build(out: &Path) -> Result<Option<Vec<Module>>, Refusal> {
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Err(Refusal::NotWanted);
    }
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let repository = folder.join("../..");
    let Some(nvcc) = nvcc::find(|name| env::var_os(name), &repository)? else {
        return Ok(None);
    };
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let default = if is_release {
        RELEASE_TARGETS
    } else {
        DEVELOPMENT_TARGETS
    };
    let targets = env::var(TARGETS).ok().filter(|list| !list.is_empty());
    let targets = architectures::parse_targets(targets.as_deref().unwrap_or(default))
        .map_err(|why| format!("{TARGETS}: {why}"))?;
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok());
    let build = Build {
        nvcc,
        targets,
        folder: folder.join("kernels"),
        out: out.to_owned(),
        has_line_info: !is_release,
        jobs: jobs.unwrap_or(1),
    };
    Ok(Some(build.run()?))
}
