//! Hostile safetensors files and indexes, and the expected error of each.

use std::path::Path;

use loquat_weights::safetensors::{open_index, parse, write_safetensors};
use loquat_weights::{Blob, Dtype, IndexFault, RawTensor, SafetensorsFault, WeightsError};

fn file(header: &[u8], data: usize) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header, &vec![0; data]].concat()
}

fn fault(bytes: Vec<u8>) -> SafetensorsFault {
    match parse(Blob::from_vec(bytes), Path::new("hostile.safetensors")) {
        Err(WeightsError::Safetensors { path, fault }) => {
            assert_eq!(path, Path::new("hostile.safetensors"));
            fault
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn lengths() {
    let table = [
        (vec![], SafetensorsFault::NoHeader { file_len: 0 }),
        (vec![0; 7], SafetensorsFault::NoHeader { file_len: 7 }),
        (
            [&3u64.to_le_bytes()[..], b"{}"].concat(),
            SafetensorsFault::HeaderLength { len: 3, max: 2 },
        ),
        (
            [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
            SafetensorsFault::HeaderLength {
                len: u64::MAX,
                max: 2,
            },
        ),
        (
            file(b"{}", 1),
            SafetensorsFault::DataLength {
                described: 0,
                present: 1,
            },
        ),
    ];
    for (bytes, expected) in table {
        assert_eq!(fault(bytes), expected);
    }
}

/// Invalid JSON headers and the expected part of the error.
#[test]
fn headers() {
    let tensor = |name: &str, fields: &str| format!(r#"{{"{name}":{{{fields}}}}}"#).into_bytes();
    let deep = [b"{\"t\":".to_vec(), vec![b'['; 100_000]].concat();
    let table: [(Vec<u8>, &str); 15] = [
        (b"".to_vec(), "EOF"),
        (b"[]".to_vec(), "an object of tensors"),
        (b"{".to_vec(), "EOF"),
        (b"{} x".to_vec(), "trailing characters"),
        (b"{\"\xFF\":1}".to_vec(), "unicode"),
        (deep, "`t`"),
        (br#"{"__metadata__":{"format":1}}"#.to_vec(), "`__metadata__`"),
        (
            br#"{"__metadata__":{},"__metadata__":{}}"#.to_vec(),
            "`__metadata__` appears twice",
        ),
        (
            br#"{"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#
                .to_vec(),
            "`t` appears twice",
        ),
        (
            tensor("t", r#""dtype":"Q9","shape":[],"data_offsets":[0,1]"#),
            "`t`: unknown variant `Q9`",
        ),
        (
            tensor("t", r#""dtype":"U8","shape":[-1],"data_offsets":[0,1]"#),
            "`t`: invalid value: integer `-1`",
        ),
        (
            tensor("t", r#""dtype":"U8","shape":[1.5],"data_offsets":[0,1]"#),
            "`t`: invalid type: floating point",
        ),
        (
            tensor("t", r#""dtype":"U8","shape":[],"data_offsets":[0]"#),
            "`t`: invalid length 1",
        ),
        (
            tensor("t", r#""dtype":"U8","shape":[],"data_offsets":[0,18446744073709551616]"#),
            "`t`: invalid type: floating point",
        ),
        (
            tensor("t", r#""dtype":"U8","shape":[]"#),
            "`t`: missing field `data_offsets`",
        ),
    ];
    for (header, expected) in table {
        match fault(file(&header, 1)) {
            SafetensorsFault::Header { why } => {
                assert!(why.contains(expected), "{why:?} lacks {expected:?}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

fn header(tensors: &[(&str, &str, &[usize], [usize; 2])]) -> Vec<u8> {
    let records: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, offsets)| {
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#
            )
        })
        .collect();
    format!("{{{}}}", records.join(",")).into_bytes()
}

#[test]
fn tensors() {
    use SafetensorsFault::*;
    const EIGHTH: usize = 1 << (usize::BITS - 3);
    let name = |name: &str| name.to_owned();
    let table: [(Vec<u8>, SafetensorsFault); 11] = [
        (
            header(&[("t", "F4", &[2], [0, 1])]),
            TensorType {
                tensor: name("t"),
                dtype: name("F4"),
            },
        ),
        (
            header(&[("t", "U8", &[usize::MAX, 2], [0, 4])]),
            Overflow {
                tensor: name("t"),
                shape: vec![usize::MAX, 2],
            },
        ),
        (
            // The zero must not hide the overflow of the other two.
            header(&[("t", "U8", &[usize::MAX, usize::MAX, 0], [0, 0])]),
            Overflow {
                tensor: name("t"),
                shape: vec![usize::MAX, usize::MAX, 0],
            },
        ),
        (
            header(&[("t", "F32", &[1 << 62], [0, 4])]),
            Overflow {
                tensor: name("t"),
                shape: vec![1 << 62],
            },
        ),
        (
            header(&[("t", "U8", &[3], [0, 4])]),
            Span {
                tensor: name("t"),
                start: 0,
                end: 4,
                needs: 3,
            },
        ),
        (
            header(&[("a", "U8", &[2], [0, 2]), ("b", "U8", &[2], [2, 1])]),
            Span {
                tensor: name("b"),
                start: 2,
                end: 1,
                needs: 2,
            },
        ),
        (
            header(&[("a", "U8", &[3], [0, 3]), ("b", "U8", &[2], [2, 4])]),
            Offset {
                tensor: name("b"),
                start: 2,
                expected: 3,
            },
        ),
        (
            header(&[("a", "U8", &[1], [0, 1]), ("b", "U8", &[2], [2, 4])]),
            Offset {
                tensor: name("b"),
                start: 2,
                expected: 1,
            },
        ),
        (
            header(&[("t", "U8", &[5], [0, 5])]),
            DataLength {
                described: 5,
                present: 4,
            },
        ),
        (
            header(&[("t", "U8", &[3], [0, 3])]),
            DataLength {
                described: 3,
                present: 4,
            },
        ),
        (
            // Ends that add up to the largest offset.
            header(&[
                ("a", "U8", &[EIGHTH], [0, EIGHTH]),
                ("b", "U8", &[usize::MAX - EIGHTH], [EIGHTH, usize::MAX]),
            ]),
            DataLength {
                described: EIGHTH,
                present: 4,
            },
        ),
    ];
    for (header, expected) in table {
        assert_eq!(fault(file(&header, 4)), expected);
    }
}

fn shard(names: &[&str]) -> Vec<u8> {
    let tensors: Vec<_> = names
        .iter()
        .map(|name| {
            let data = Blob::from_vec(vec![1, 2]);
            RawTensor::new(*name, Dtype::U8, vec![2], data).unwrap()
        })
        .collect();
    write_safetensors(&tensors).unwrap()
}

#[test]
fn indexes() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(folder.path().join("1.safetensors"), shard(&["a", "c"])).unwrap();
    std::fs::write(folder.path().join("2.safetensors"), shard(&["b", "extra"])).unwrap();
    let open = |json: &str| {
        std::fs::write(&index, json).unwrap();
        open_index(&index)
    };

    let good = r#"{"metadata":{"total_size":6},"weight_map":
        {"b":"2.safetensors","a":"1.safetensors","c":"1.safetensors"}}"#;
    let names: Vec<_> = open(good).unwrap().into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["a", "b", "c"]);

    let table = [
        (r#"{"weight_map":{}}"#, IndexFault::Empty),
        (
            r#"{"weight_map":{"a":"2.safetensors"}}"#,
            IndexFault::MissingTensor {
                tensor: "a".into(),
                shard: "2.safetensors".into(),
            },
        ),
        (
            r#"{"weight_map":{"a":"3.safetensors"}}"#,
            IndexFault::MissingShard {
                shard: "3.safetensors".into(),
            },
        ),
        (
            r#"{"weight_map":{"a":"../1.safetensors"}}"#,
            IndexFault::ShardName {
                shard: "../1.safetensors".into(),
            },
        ),
    ];
    for (json, expected) in table {
        match open(json) {
            Err(WeightsError::Index { path, fault }) => {
                assert_eq!((path, fault), (index.clone(), expected));
            }
            other => panic!("{json}: {other:?}"),
        }
    }
    for (json, expected) in [
        ("", "EOF"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":1}"#, "an object of shard names"),
        (r#"{"weight_map":{"a":"x","a":"y"}}"#, "`a` appears twice"),
    ] {
        let message = open(json).unwrap_err().to_string();
        assert!(message.contains(expected), "{json}: {message}");
    }
}

#[test]
fn damaged_shard_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map":{"a":"1.safetensors"}}"#).unwrap();
    let shard = folder.path().join("1.safetensors");
    std::fs::write(&shard, b"short").unwrap();
    let error = open_index(&index).unwrap_err();
    assert!(matches!(error, WeightsError::Safetensors { path, .. } if path == shard));
}
