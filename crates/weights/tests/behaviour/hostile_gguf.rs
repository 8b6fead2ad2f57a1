//! Hostile GGUF files and the expected error of each.

use std::path::Path;

use loquat_weights::gguf::Gguf;
use loquat_weights::{Blob, Dtype, GgufFault, WeightsError};

/// Codes of metadata types.
const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;

/// Codes of tensor types.
const F32: u32 = 0;
const Q4_0: u32 = 2;

const HEADER_BYTES: usize = 24;

fn header(tensors: u64, entries: u64) -> Vec<u8> {
    let version = 3u32.to_le_bytes();
    [
        b"GGUF",
        &version[..],
        &tensors.to_le_bytes(),
        &entries.to_le_bytes(),
    ]
    .concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// A file of one metadata entry named `k`, whose type is at byte 33.
fn one_entry(code: u32, value: &[u8]) -> Vec<u8> {
    [&header(0, 1)[..], &entry("k", code, value)].concat()
}

fn entry(key: &str, code: u32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes())[..], &code.to_le_bytes(), value].concat()
}

/// The value of an array entry; its item type is at byte 37 of a
/// [`one_entry`] file, its count at byte 41.
fn array(code: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&code.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
}

/// Dimensions are innermost first, as in the file.
fn record(name: &str, dims: &[u64], code: u32, start: u64) -> Vec<u8> {
    let mut out = string(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    out.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    out.extend(code.to_le_bytes());
    out.extend(start.to_le_bytes());
    out
}

/// A file of these tensors and `data` bytes of data. The first record's rank
/// is at byte 33 if its name is one letter.
fn with_tensors(records: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut file = [header(records.len() as u64, 0), records.concat()].concat();
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}

fn aligned_to(code: u32, value: &[u8]) -> Vec<u8> {
    let entry = entry("general.alignment", code, value);
    [header(0, 1), entry].concat()
}

fn parse(bytes: Vec<u8>) -> Result<Gguf, GgufFault> {
    match Gguf::parse(Blob::from_vec(bytes), Path::new("hostile.gguf")) {
        Ok(file) => Ok(file),
        Err(WeightsError::Gguf { path, fault }) => {
            assert_eq!(path, Path::new("hostile.gguf"));
            Err(fault)
        }
        Err(other) => panic!("{other}"),
    }
}

fn check(table: Vec<(Vec<u8>, GgufFault)>) {
    for (bytes, expected) in table {
        match parse(bytes) {
            Err(fault) => assert_eq!(fault, expected),
            Ok(file) => panic!("loaded instead of failing with {expected:?}: {file:?}"),
        }
    }
}

fn truncated(field: &str, offset: usize, needs: u64, left: usize) -> GgufFault {
    GgufFault::Truncated {
        field: field.into(),
        offset,
        needs,
        left,
    }
}

fn count(field: &str, offset: usize, count: u64, max: usize) -> GgufFault {
    GgufFault::Count {
        field: field.into(),
        offset,
        count,
        max,
    }
}

#[test]
fn headers() {
    let versioned = |version: [u8; 4]| [&b"GGUF"[..], &version, &[0; 16]].concat();
    check(vec![
        (vec![], truncated("magic", 0, 4, 0)),
        (b"GGML1234".to_vec(), GgufFault::Magic { found: *b"GGML" }),
        (b"GGUF\x03".to_vec(), truncated("version", 4, 4, 1)),
        (versioned([0, 0, 0, 0]), GgufFault::Version { version: 0 }),
        (versioned([1, 0, 0, 0]), GgufFault::Version { version: 1 }),
        (versioned([4, 0, 0, 0]), GgufFault::Version { version: 4 }),
        (versioned([0, 0, 0, 3]), GgufFault::BigEndian),
        (
            header(0, 0)[..12].to_vec(),
            truncated("tensor count", 8, 8, 4),
        ),
        (
            header(0, 0)[..16].to_vec(),
            truncated("metadata count", 16, 8, 0),
        ),
        (header(1 << 60, 0), count("tensor count", 8, 1 << 60, 0)),
        (
            header(0, u64::MAX),
            count("metadata count", 16, u64::MAX, 0),
        ),
    ]);
}

#[test]
fn metadata() {
    let key_of = |len: u64| [&header(0, 1)[..], &len.to_le_bytes(), &[0xFF; 8]].concat();
    check(vec![
        (key_of(u64::MAX), truncated("metadata key", 32, u64::MAX, 8)),
        (
            key_of(8),
            GgufFault::Utf8 {
                field: "metadata key".into(),
                offset: 32,
            },
        ),
        (
            one_entry(13, &[0; 8]),
            GgufFault::ValueType {
                key: "k".into(),
                offset: 33,
                code: 13,
            },
        ),
        (one_entry(U64, &[0; 7]), truncated("k", 37, 8, 7)),
        (
            one_entry(STRING, &(1u64 << 60).to_le_bytes()),
            truncated("k", 45, 1 << 60, 0),
        ),
        (
            one_entry(STRING, &string(b"ok\xFF")),
            GgufFault::Utf8 {
                field: "k".into(),
                offset: 47,
            },
        ),
        (
            one_entry(BOOL, &[2]),
            GgufFault::Bool {
                key: "k".into(),
                offset: 37,
                byte: 2,
            },
        ),
        (
            [header(0, 2), entry("k", U8, &[0]), entry("k", U8, &[1])].concat(),
            GgufFault::DuplicateKey {
                key: "k".into(),
                offset: HEADER_BYTES + 14,
            },
        ),
    ]);
}

#[test]
fn arrays() {
    check(vec![
        (
            one_entry(ARRAY, &array(STRING, 1 << 60, &[0; 16])),
            count("k", 41, 1 << 60, 2),
        ),
        (
            // This count times eight bytes overflows to zero.
            one_entry(ARRAY, &array(U64, 1 << 61, &[0; 16])),
            count("k", 41, 1 << 61, 2),
        ),
        (
            one_entry(ARRAY, &array(STRING, 1, &9u64.to_le_bytes())),
            truncated("k", 57, 9, 0),
        ),
        (
            one_entry(ARRAY, &array(BOOL, 2, &[1, 2])),
            GgufFault::Bool {
                key: "k".into(),
                offset: 50,
                byte: 2,
            },
        ),
        (
            one_entry(ARRAY, &array(13, 0, &[])),
            GgufFault::ValueType {
                key: "k".into(),
                offset: 37,
                code: 13,
            },
        ),
        (
            // The first level is refused, however deep the nesting is.
            one_entry(ARRAY, &array(ARRAY, 1, &array(ARRAY, 1, &[9; 4096]))),
            GgufFault::NestedArray {
                key: "k".into(),
                offset: 37,
            },
        ),
    ]);
}

#[test]
fn alignments() {
    let fault = |found: &str| GgufFault::Alignment {
        found: found.into(),
        max: 1 << 20,
    };
    let table = [0, 3, 1 << 21, 1 << 31, u32::MAX];
    let mut cases: Vec<_> = table
        .iter()
        .map(|value: &u32| {
            let file = aligned_to(U32, &value.to_le_bytes());
            (file, fault(&value.to_string()))
        })
        .collect();
    cases.push((aligned_to(U64, &32u64.to_le_bytes()), fault("of type U64")));
    check(cases);
    for good in [1u32, 8, 32, 1 << 20] {
        parse(aligned_to(U32, &good.to_le_bytes())).unwrap();
    }
}

#[test]
fn records() {
    let one = |dims: &[u64], code| with_tensors(&[record("t", dims, code, 0)], 32);
    let tensor = || "t".to_string();
    let type_fault = |code, name| GgufFault::TensorType {
        tensor: tensor(),
        offset: 45,
        code,
        name,
    };
    check(vec![
        (
            // Just enough bytes for one record without a name.
            [&header(1, 0)[..], &99u64.to_le_bytes(), &[0; 16]].concat(),
            truncated("tensor name", 32, 99, 16),
        ),
        (
            [header(1, 0), string(b"\xC3\x28"), vec![0; 16]].concat(),
            GgufFault::Utf8 {
                field: "tensor name".into(),
                offset: 32,
            },
        ),
        (
            [header(1, 0), record("a long name", &[1], F32, 0)].concat()[..58].to_vec(),
            truncated("a long name", 55, 4, 3),
        ),
        (
            one(&[1; 5], F32),
            GgufFault::Rank {
                tensor: tensor(),
                offset: 33,
                rank: 5,
            },
        ),
        (
            one(&[4, 0], F32),
            GgufFault::ZeroDimension {
                tensor: tensor(),
                offset: 45,
                axis: 1,
            },
        ),
        (one(&[32], 4), type_fault(4, "unknown")),
        (one(&[256], 10), type_fault(10, "Q2_K")),
        (one(&[32], u32::MAX), type_fault(u32::MAX, "unknown")),
        (
            one(&[1 << 40, 1 << 41], F32),
            GgufFault::Overflow {
                tensor: tensor(),
                offset: 33,
                shape: vec![1 << 41, 1 << 40],
            },
        ),
        (
            one(&[1 << 63], F32),
            GgufFault::Overflow {
                tensor: tensor(),
                offset: 33,
                shape: vec![1 << 63],
            },
        ),
        (
            one(&[33, 32], Q4_0),
            GgufFault::PartialBlock {
                tensor: tensor(),
                cols: 33,
                dtype: Dtype::Q4_0,
            },
        ),
    ]);
}

#[test]
fn data_offsets() {
    let at = |start| with_tensors(&[record("t", &[8], F32, start)], 32);
    let misaligned = |start| GgufFault::Misaligned {
        tensor: "t".into(),
        start,
        alignment: 32,
    };
    let out_of_file = |start, len, file_len| GgufFault::OutOfFile {
        tensor: "t".into(),
        start,
        len,
        file_len,
    };
    let pair = |second: u64| {
        let records = [record("a", &[9], F32, 0), record("b", &[8], F32, second)];
        with_tensors(&records, 96)
    };
    parse(at(0)).unwrap();
    parse(pair(64)).unwrap();
    let len = at(0).len();
    check(vec![
        (at(1), misaligned(1)),
        (at(u64::MAX), misaligned(u64::MAX)),
        (at(32), out_of_file(32, 32, len)),
        (at(1 << 63), out_of_file(1 << 63, 32, len)),
        (at(u64::MAX - 31), out_of_file(u64::MAX - 31, 32, len)),
        (
            with_tensors(&[record("t", &[9], F32, 0)], 32),
            out_of_file(0, 36, len),
        ),
        (
            // No data section at all.
            [header(1, 0), record("t", &[8], F32, 0)].concat(),
            out_of_file(0, 32, 57),
        ),
        (
            pair(32),
            GgufFault::Overlap {
                first: "a".into(),
                second: "b".into(),
            },
        ),
        (
            pair(0),
            GgufFault::Overlap {
                first: "a".into(),
                second: "b".into(),
            },
        ),
        (
            with_tensors(&[record("t", &[8], F32, 0), record("t", &[8], F32, 32)], 64),
            GgufFault::DuplicateTensor {
                tensor: "t".into(),
                offset: 57,
            },
        ),
    ]);
}

#[test]
fn scalar_has_no_dimensions() {
    let file = parse(with_tensors(&[record("t", &[], F32, 0)], 4)).unwrap();
    let tensor = &file.tensors()[0];
    assert_eq!((&tensor.shape[..], tensor.data.len()), (&[][..], 4));
}

#[test]
fn dimensions_become_row_major() {
    let file = parse(with_tensors(&[record("t", &[4, 3, 2], F32, 0)], 96)).unwrap();
    assert_eq!(file.tensors()[0].shape, [2, 3, 4]);
}
