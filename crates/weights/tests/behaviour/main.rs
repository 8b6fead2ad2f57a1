//! Reading, binding and decoding checkpoints through the public API.

mod binding;
mod bound;
mod changed_files;
mod checkpoint;
mod common;
mod decode;
mod folder;
mod fp8;
mod hostile_gguf;
mod hostile_safetensors;
mod layouts;
mod mmproj;
mod mutation;
mod round_trip;
mod synthetic;
mod wrapped;
