//! Compiles the kernels of the CUDA backend for every architecture, and runs the crate's tests with
//! them. They compare what was compiled with what the backend launches, and need no GPU.

use std::path::Path;

use super::{Context, Note};
use crate::command::{cargo, program};
use crate::cuda;
use crate::error::Error;

/// As in a release build; the backend's build script reads the variable.
const ARCHITECTURES: (&str, &str) = (
    "LOQUAT_CUDA_ARCHITECTURES",
    "80,86,89,90a,100f,120f,compute_80",
);
const NO_GPU: &str = "tests on a GPU: NOT RUN (no GPU)";

pub fn install(root: &Path) -> Result<(), Error> {
    cuda::find_or_download(root).map(drop)
}

pub fn run(context: &Context) -> Result<Note, Error> {
    let root = context.root;
    let nvcc = cuda::find_or_download(root)?;
    let has_gpu = program(root, "nvidia-smi", &["--list-gpus"])
        .probe()
        .is_some_and(|gpus| gpus.contains("GPU"));
    let (variable, architectures) = ARCHITECTURES;
    let test = ["test", "--package", "loquat-cuda", "--features", "cuda"];
    cargo(root, &test)
        .env("LOQUAT_NVCC", nvcc)
        .env(variable, architectures)
        .env(REQUIRE_GPU, if has_gpu { "1" } else { "" })
        .run()?;
    Ok((!has_gpu).then(|| NO_GPU.to_string()))
}

/// When `1`, tests that need a GPU fail without one.
const REQUIRE_GPU: &str = "LOQUAT_REQUIRE_CUDA";
