use super::*;
use crate::testing;

#[test]
fn refused_operation_is_an_error() {
    let Some(ops) = testing::ops() else { return };
    let a = ops.upload_f32(&[1.0; 6], &[2, 3]).unwrap();
    let refusals = [
        ("[matmul]", ops.matmul(&a, &a)),
        ("[reshape]", ops.reshape(&a, &[4, 4])),
        (
            "Shapes",
            ops.add(&a, &ops.full(&[5], 1.0, Type::F32).unwrap()),
        ),
        (
            "[concatenate]",
            ops.concatenate(&[&a, &ops.full(&[4], 1.0, Type::F32).unwrap()], 0),
        ),
        (
            "[rms_norm]",
            ops.rms_norm(&a, Some(&ops.full(&[7], 1.0, Type::F32).unwrap()), 1e-5),
        ),
        ("axis", ops.reduce(Reduce::Sum, &a, 9, false)),
        ("bytes", ops.upload(&[0; 5], &[2], Type::F32)),
    ];
    for (expected, outcome) in refusals {
        let refusal = outcome.err().expect(expected);
        assert!(
            refusal.to_string().contains(expected),
            "{expected}: {refusal}"
        );
        let sum = ops.add(&a, &a).unwrap();
        assert_eq!(testing::read(&ops, &sum), [2.0; 6]);
    }
}

#[test]
fn exhausted_memory_is_an_error() {
    let Some(ops) = testing::ops() else { return };
    let petabyte = ops.full(&[1 << 24, 1 << 24], 1.0, Type::F32);
    let refusal = petabyte.err().expect("a refusal").to_string();
    assert!(
        refusal.contains("unable to allocate 1125899906842624 bytes"),
        "{refusal}"
    );
    let two = ops.full(&[2], 2.0, Type::F32).unwrap();
    assert_eq!(testing::read(&ops, &two), [2.0; 2]);
}

#[test]
fn short_read_buffer_is_refused() {
    let Some(ops) = testing::ops() else { return };
    let a = ops.upload_f32(&[1.0, 2.0], &[2]).unwrap();
    let refusal = ops.read_f32(&a, &mut [0.0; 3]).unwrap_err();
    assert!(refusal.to_string().contains("size"), "{refusal}");
}
