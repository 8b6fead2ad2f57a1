use super::super::Interpreter;
use super::super::fixture::{Bench, values};
use crate::device::{Device, DeviceError};
use crate::ops::{Add, Address, Clamp, Embed, Format, Linear, MatrixRef};

fn add(a: Address, b: Address, out: Address, stride: u32) -> Add {
    Add {
        a,
        b,
        out,
        a_stride: stride,
        b_stride: stride,
        out_stride: stride,
        len: 5,
        left: 1.0,
        right: 1.0,
    }
}

#[test]
fn faults_name_operation_and_operand() {
    let mut bench = Bench::default();
    let a = bench.f32s(&values(20, 1));
    let b = bench.f32s(&values(14, 2));
    let out = bench.empty(15);
    let unwritten = bench.empty(15);
    let freed = bench.f32s(&values(15, 3));
    bench.device.free(freed);
    let far = Address(u64::MAX - 3);
    let none = Address::NONE;
    let table = [
        (add(a, b, out, 5), "b: bytes 40..60 of an allocation of 56"),
        (
            add(unwritten, a, out, 5),
            "a: byte 0 of an allocation was never written",
        ),
        (add(a, freed, out, 5), "b: the memory was freed"),
        (
            add(a.offset(2), none, out, 5),
            "a: byte 2 of an allocation is not a multiple of 4",
        ),
        (add(none, a, out, 5), "a: the address is none"),
        (add(a, none, none, 5), "out: the address is none"),
        (
            add(a, none, a.offset(8), 5),
            "a: it overlaps out, which the same launch writes",
        ),
        (
            add(a, b, out, 4),
            "out: it overlaps out, which the same launch writes",
        ),
    ];
    for (op, expected) in table {
        let expected = format!("invalid access by Add to {expected}");
        assert_eq!(bench.refusal(op, 3), expected);
    }
    let unknown = bench.refusal(add(far, none, out, 5), 3);
    assert!(unknown.contains("is not in allocated memory"), "{unknown}");
    bench.run(add(a, a, out, 5), 3);
    bench.run(add(a, out, a, 5), 3);
}

#[test]
fn tokens_must_not_read_what_others_write() {
    let mut bench = Bench::default();
    let buffer = bench.f32s(&values(40, 1));
    let clamp = |input: Address, out: Address, out_stride| Clamp {
        input,
        out,
        input_stride: 4,
        out_stride,
        len: 4,
        min: 0.0,
        max: 1.0,
        reserved: 0,
    };
    bench.run(clamp(buffer, buffer, 4), 4);
    bench.run(clamp(buffer, buffer.values(16), 4), 4);
    for (out, stride) in [(buffer, 5), (buffer.values(4), 4), (buffer.values(12), 4)] {
        let refusal = bench.refusal(clamp(buffer, out, stride), 4);
        assert!(refusal.contains("input: it overlaps out"), "{refusal}");
    }
    // A product is never in place, and its matrix is every token's.
    let matrix = bench.matrix(&values(16, 2), 4, Format::F32);
    let linear = |input, out| Linear {
        matrix,
        input,
        out,
        bias: Address::NONE,
        input_stride: 4,
        out_stride: 4,
        batch: 1,
        input_step: 0,
        out_step: 0,
        reserved: 0,
    };
    let refusal = bench.refusal(linear(buffer, buffer), 1);
    assert!(refusal.contains("input: it overlaps out"), "{refusal}");
    let refusal = bench.refusal(linear(buffer, matrix.values), 1);
    assert!(refusal.contains("matrix: it overlaps out"), "{refusal}");
}

#[test]
fn invalid_ids_are_refused() {
    let mut bench = Bench::default();
    bench.tables.ids = bench.u32s(&[3, 4]);
    let table = bench.matrix(&values(20, 1), 4, Format::F32);
    let embed = Embed {
        out: bench.empty(10),
        table,
        positions: MatrixRef {
            values: Address::NONE,
            ..table
        },
        scale: 1.0,
        reserved: 0,
    };
    bench.run(embed, 1);
    let refusal = bench.refusal(embed, 2);
    assert_eq!(refusal, "invalid access by Embed to table: row 4 of 4");
}

#[test]
fn memory_is_limited_and_freed_once() {
    let mut device = Interpreter::with_memory(100);
    let address = device.allocate(60).unwrap();
    let refusal = device.allocate(41).unwrap_err();
    let expected = DeviceError::OutOfMemory {
        wanted: 41,
        available: 40,
    };
    assert_eq!(refusal, expected);
    assert_eq!(device.memory(), (40, 100));
    device.free(Address::NONE);
    device.free(address);
    assert_eq!(device.memory(), (100, 100));
    device.free(address);
    let refusal = device.allocate(1).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "invalid access by free to address: the memory was freed"
    );
    assert!(device.allocate(1).is_ok());
}

#[test]
fn reads_wait_for_writes_of_all_bytes() {
    let mut device = Interpreter::default();
    let a = device.allocate(8).unwrap();
    let b = device.allocate(8).unwrap();
    device.write(a.offset(2), &[1, 2, 3]).unwrap();
    device.copy(a, b, 8).unwrap();
    let mut out = [0; 3];
    device.read(b.offset(2), &mut out).unwrap();
    assert_eq!(out, [1, 2, 3]);
    let refusal = device.read(b.offset(3), &mut out).unwrap_err().to_string();
    let expected = "invalid access by read to from: byte 5 of an allocation was never written";
    assert_eq!(refusal, expected);
    assert!(device.copy(a, b, 9).is_err());
    assert!(device.write(b.offset(7), &[0, 0]).is_err());
}
