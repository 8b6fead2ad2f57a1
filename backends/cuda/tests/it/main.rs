//! The CUDA backend's programs, interpreted.

mod conformance;
