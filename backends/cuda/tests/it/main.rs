//! The CUDA backend's programs: interpreted, and on a GPU if there is one.

mod adapters;
mod conformance;
mod fast_path;
mod kernels;
mod vision;
