//! Parses arbitrary bytes as a GGUF file: an error, or tensors that all decode, and a model if the
//! metadata describes one.

#![no_main]

mod decode_all;

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use loquat_spec::families;
use loquat_weights::gguf::Gguf;
use loquat_weights::{Blob, bind, fit};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = Gguf::parse(Blob::from_vec(bytes.to_vec()), Path::new("fuzz")) {
        decode_all::decode_all(file.tensors());
        if let Ok(described) = families::from_gguf(&file) {
            let tensors = file.tensors();
            let fitted = fit(&described.spec, &described.namings, tensors, None);
            let _ = fitted.and_then(|(spec, naming)| bind(&spec, &naming, tensors, None));
        }
    }
});
