//! Arbitrary bytes as a GGUF file: refused, or tensors that all decode.

#![no_main]

mod decode_all;

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use loquat_weights::Blob;
use loquat_weights::gguf::Gguf;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = Gguf::parse(Blob::from_vec(bytes.to_vec()), Path::new("fuzz")) {
        decode_all::decode_all(file.tensors());
    }
});
