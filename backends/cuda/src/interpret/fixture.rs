//! What tests of operations need: an interpreter with buffers.

use half::bf16;

use super::Interpreter;
use crate::device::{Device, DeviceError};
use crate::ops::{Address, Format, MatrixRef, Op, RowTable, StateCopy, Step, Tables};

/// An interpreter, and the tables of a step.
#[derive(Default)]
pub struct Bench {
    pub device: Interpreter,
    pub tables: Tables,
    pub rows: usize,
}

impl Bench {
    pub fn bytes(&mut self, bytes: &[u8]) -> Address {
        let address = self.device.allocate(bytes.len()).unwrap();
        self.device.write(address, bytes).unwrap();
        address
    }

    /// Memory that was not written.
    pub fn empty(&mut self, values: usize) -> Address {
        self.device.allocate(4 * values).unwrap()
    }

    pub fn f32s(&mut self, values: &[f32]) -> Address {
        self.stored(values, Format::F32)
    }

    pub fn set_bf16(&mut self, at: Address, value: f32) {
        let bytes = bf16::from_f32(value).to_le_bytes();
        self.device.write(at, &bytes).unwrap();
    }

    pub fn u32s(&mut self, values: &[u32]) -> Address {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.bytes(&bytes)
    }

    pub fn addresses(&mut self, addresses: &[Address]) -> Address {
        let words = addresses.iter().map(|address| address.0);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.bytes(&bytes)
    }

    pub fn stored(&mut self, values: &[f32], format: Format) -> Address {
        self.bytes(&encode(values, format))
    }

    pub fn matrix(&mut self, values: &[f32], rows: usize, format: Format) -> MatrixRef {
        MatrixRef {
            values: self.stored(values, format),
            rows: rows as u32,
            cols: (values.len() / rows) as u32,
            format,
            reserved: 0,
        }
    }

    pub fn set_rows(&mut self, rows: &[RowTable], snapshots: &[StateCopy]) {
        let bytes: Vec<u8> = rows.iter().flat_map(bytemuck::bytes_of).copied().collect();
        self.tables.rows = self.bytes(&bytes);
        let bytes: Vec<u8> = snapshots
            .iter()
            .flat_map(bytemuck::bytes_of)
            .copied()
            .collect();
        self.tables.snapshots = self.bytes(&bytes);
        self.rows = rows.len();
    }

    pub fn try_run(
        &mut self,
        op: impl Into<Op>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let step = Step {
            first: first as u32,
            count: count as u32,
            rows: self.rows as u32,
            reserved: 0,
            tables: self.tables,
        };
        self.device.launch(&op.into(), &step)
    }

    pub fn run(&mut self, op: impl Into<Op>, count: usize) {
        self.try_run(op, 0, count).unwrap();
    }

    /// What a launch that must fail says.
    pub fn refusal(&mut self, op: impl Into<Op>, count: usize) -> String {
        self.try_run(op, 0, count).unwrap_err().to_string()
    }

    pub fn read(&mut self, from: Address, values: usize) -> Vec<f32> {
        let words = self.read_u32s(from, values);
        words.into_iter().map(f32::from_bits).collect()
    }

    pub fn read_bf16s(&mut self, from: Address, values: usize) -> Vec<f32> {
        let mut bytes = vec![0; 2 * values];
        self.device.read(from, &mut bytes).unwrap();
        let halves = bytes.as_chunks::<2>().0.iter();
        halves
            .map(|half| bf16::from_le_bytes(*half).to_f32())
            .collect()
    }

    pub fn read_u32s(&mut self, from: Address, values: usize) -> Vec<u32> {
        let mut bytes = vec![0; 4 * values];
        self.device.read(from, &mut bytes).unwrap();
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_le_bytes(*word)).collect()
    }
}

pub fn encode(values: &[f32], format: Format) -> Vec<u8> {
    match format {
        Format::F32 => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        Format::Bf16 => {
            let halves = values.iter().map(|value| bf16::from_f32(*value));
            halves.flat_map(bf16::to_le_bytes).collect()
        }
    }
}

/// What is left of values that are stored in a format.
pub fn rounded(values: &[f32], format: Format) -> Vec<f32> {
    match format {
        Format::F32 => values.to_vec(),
        Format::Bf16 => values
            .iter()
            .map(|value| bf16::from_f32(*value).to_f32())
            .collect(),
    }
}

/// Values between -1 and 1 that differ between seeds.
pub fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    // The first ones of similar seeds are similar.
    (0..len + 8).map(|_| next()).skip(8).collect()
}

#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = (found - expected).abs() <= 2e-6 * expected.abs().max(1.0);
        let both_nan = found.is_nan() && expected.is_nan();
        assert!(
            close || both_nan || found == expected,
            "value {index}: {found} instead of {expected}"
        );
    }
}
