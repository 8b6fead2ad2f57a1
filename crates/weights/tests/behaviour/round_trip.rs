//! Written files read back unchanged.

use crate::common;
use std::path::Path;

use loquat_weights::gguf::{Gguf, Metadata, Value, save_gguf, write_gguf};
use loquat_weights::safetensors::{self, save_safetensors, write_safetensors};
use loquat_weights::{Blob, Dtype, RawTensor, WeightsError};

fn assert_same(expected: &[RawTensor], found: &[RawTensor]) {
    assert_eq!(expected.len(), found.len());
    for tensor in expected {
        let other = found.iter().find(|t| t.name == tensor.name).unwrap();
        assert_eq!(other.dtype, tensor.dtype, "{}", tensor.name);
        assert_eq!(other.shape, tensor.shape, "{}", tensor.name);
        assert_eq!(*other.data, *tensor.data, "{}", tensor.name);
    }
}

#[test]
fn gguf() {
    let (metadata, tensors) = common::gguf_content();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, write_gguf(&metadata, &tensors).unwrap()).unwrap();
    let file = Gguf::open(&path).unwrap();
    assert_eq!(*file.metadata(), metadata);
    assert_same(&tensors, file.tensors());
}

#[test]
fn gguf_version_2_has_the_same_layout() {
    let (metadata, tensors) = common::gguf_content();
    let mut bytes = write_gguf(&metadata, &tensors).unwrap();
    bytes[4] = 2;
    let file = Gguf::parse(Blob::from_vec(bytes), Path::new("v2")).unwrap();
    assert_same(&tensors, file.tensors());
}

#[test]
fn safetensors() {
    let tensors = common::safetensors_content();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, write_safetensors(&tensors).unwrap()).unwrap();
    assert_same(&tensors, &safetensors::open(&path).unwrap());
}

#[test]
fn saved_file_equals_written_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved");
    let (metadata, tensors) = common::gguf_content();
    save_gguf(&path, &metadata, &tensors).unwrap();
    let bytes = write_gguf(&metadata, &tensors).unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);

    let tensors = common::safetensors_content();
    save_safetensors(&path, &tensors).unwrap();
    let bytes = write_safetensors(&tensors).unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);

    let nowhere = dir.path().join("missing").join("saved");
    for outcome in [
        save_gguf(&nowhere, &metadata, &[]),
        save_safetensors(&nowhere, &tensors),
    ] {
        let named = matches!(&outcome, Err(WeightsError::Write { path, .. }) if *path == nowhere);
        assert!(named, "{outcome:?}");
    }
}

#[test]
fn unsupported_content_cannot_be_written() {
    let tensor = |name: &str, dtype: Dtype, shape: &[usize]| {
        let values: usize = shape.iter().product();
        let bytes = values / dtype.block_len() * dtype.block_bytes();
        let data = Blob::from_vec(vec![0; bytes]);
        RawTensor::new(name, dtype, shape.to_vec(), data).unwrap()
    };
    let gguf = |tensors: &[RawTensor]| write_gguf(&Metadata::default(), tensors);
    let bad_alignment = [("general.alignment", Value::U32(3))].into_iter().collect();
    let float = tensor("f", Dtype::F32, &[1]);
    let refused = [
        (gguf(&[tensor("u", Dtype::U32, &[1])]), "u"),
        (gguf(&[tensor("deep", Dtype::F32, &[1; 5])]), "deep"),
        (gguf(&[tensor("none", Dtype::F32, &[0])]), "none"),
        (gguf(&[float.clone(), float.clone()]), "f"),
        (write_gguf(&bad_alignment, &[]), "general.alignment"),
        (write_safetensors(&[tensor("q", Dtype::Q4_0, &[32])]), "q"),
        (write_safetensors(&[float.clone(), float]), "f"),
        (
            write_safetensors(&[tensor("__metadata__", Dtype::F32, &[1])]),
            "__metadata__",
        ),
    ];
    for (result, expected) in refused {
        match result {
            Err(WeightsError::Unwritable { item, .. }) => assert_eq!(item, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}
