//! Random damage to whole files: each damaged file fails to load or gives tensors that decode
//! within bounds; none panics.

use crate::common;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use loquat_weights::decode::decode_row;
use loquat_weights::gguf::{Gguf, write_gguf};
use loquat_weights::safetensors::{self, write_safetensors};
use loquat_weights::{Blob, DecodeFault, RawTensor, WeightsError};

const ROUNDS: usize = 1000;

struct XorShift(u64);

impl XorShift {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// A truncation one time in four, else one to four changed bytes.
fn damage(file: &[u8], random: &mut XorShift) -> Vec<u8> {
    let mut bytes = file.to_vec();
    if random.below(4) == 0 {
        bytes.truncate(random.below(file.len()));
    } else {
        for _ in 0..=random.below(4) {
            bytes[random.below(file.len())] ^= 1 << random.below(8);
        }
    }
    bytes
}

fn decode_all(tensors: &[RawTensor]) {
    for tensor in tensors {
        // A shape with a 0 may claim any number of rows, all empty.
        if tensor.data.is_empty() {
            continue;
        }
        let mut out = vec![0.0; tensor.cols()];
        for index in 0..tensor.rows() {
            match decode_row(tensor.dtype, tensor.row(index).unwrap(), &mut out) {
                Ok(()) | Err(DecodeFault::Dtype { .. }) => {}
                Err(fault) => panic!("{}: {fault}", tensor.name),
            }
        }
    }
}

fn survives(file: &[u8], load: impl Fn(Blob) -> Result<Vec<RawTensor>, WeightsError>) {
    let intact = load(Blob::from_vec(file.to_vec())).unwrap();
    decode_all(&intact);

    let mut random = XorShift(0x10_94a7);
    let (mut loaded, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let blob = Blob::from_vec(damage(file, &mut random));
        let outcome = catch_unwind(AssertUnwindSafe(|| load(blob).map(|t| decode_all(&t))));
        match outcome {
            Ok(Ok(())) => loaded += 1,
            Ok(Err(_)) => refused += 1,
            Err(_) => panic!("round {round} panicked"),
        }
    }
    // Otherwise the damage is too mild or too strong to test anything.
    assert!(
        loaded > ROUNDS / 20 && refused > ROUNDS / 4,
        "{loaded} {refused}"
    );
}

#[test]
fn gguf_survives_damage() {
    let (metadata, tensors) = common::gguf_content();
    let file = write_gguf(&metadata, &tensors).unwrap();
    survives(&file, |blob| {
        Ok(Gguf::parse(blob, Path::new("damaged"))?.tensors().to_vec())
    });
}

#[test]
fn safetensors_survive_damage() {
    let file = write_safetensors(&common::safetensors_content()).unwrap();
    survives(&file, |blob| safetensors::parse(blob, Path::new("damaged")));
}

#[test]
fn every_truncation_is_refused() {
    let (metadata, tensors) = common::gguf_content();
    let gguf = write_gguf(&metadata, &tensors).unwrap();
    for len in 0..gguf.len() {
        let blob = Blob::from_vec(gguf[..len].to_vec());
        assert!(Gguf::parse(blob, Path::new("short")).is_err(), "gguf {len}");
    }
    let file = write_safetensors(&common::safetensors_content()).unwrap();
    for len in 0..file.len() {
        let blob = Blob::from_vec(file[..len].to_vec());
        let result = safetensors::parse(blob, Path::new("short"));
        assert!(result.is_err(), "safetensors {len}");
    }
}
