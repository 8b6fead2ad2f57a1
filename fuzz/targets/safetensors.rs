//! Parses arbitrary bytes as a safetensors file: an error, or tensors that all decode.

#![no_main]

mod decode_all;

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use loquat_weights::Blob;
use loquat_weights::safetensors::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensors) = parse(Blob::from_vec(bytes.to_vec()), Path::new("fuzz")) {
        decode_all::decode_all(&tensors);
    }
});
