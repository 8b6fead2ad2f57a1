//! What a case consists of, apart from addresses.

use half::bf16;

use crate::ops::{Address, Format, MatrixRef, Op, Step, Tables};

/// How a compared buffer's bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    F32,
    Bf16,
    U32,
}

impl Element {
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Element::F32 => {
                let words = bytes.as_chunks::<4>().0.iter();
                words.map(|word| f32::from_le_bytes(*word).into()).collect()
            }
            Element::Bf16 => {
                let words = bytes.as_chunks::<2>().0.iter();
                words
                    .map(|word| bf16::from_le_bytes(*word).into())
                    .collect()
            }
            Element::U32 => {
                let words = bytes.as_chunks::<4>().0.iter();
                words.map(|word| u32::from_le_bytes(*word).into()).collect()
            }
        }
    }
}

impl From<Format> for Element {
    fn from(format: Format) -> Self {
        match format {
            Format::F32 => Element::F32,
            Format::Bf16 => Element::Bf16,
        }
    }
}

/// A place in one of a case's buffers, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operand(pub Option<(usize, u64)>);

impl Operand {
    pub const NONE: Self = Self(None);

    /// `values` of 4 bytes further.
    pub fn values(self, values: usize) -> Self {
        Self(
            self.0
                .map(|(buffer, offset)| (buffer, offset + 4 * values as u64)),
        )
    }
}

/// The addresses of a case's buffers on a device.
pub struct Placed(pub Vec<Address>);

impl Placed {
    pub fn at(&self, place: Operand) -> Address {
        match place.0 {
            Some((buffer, offset)) => self.0[buffer].offset(offset),
            None => Address::NONE,
        }
    }
}

pub struct Buffer {
    pub bytes: Vec<u8>,
    /// Where addresses are in it, and of what.
    pub pointers: Vec<(usize, Operand)>,
    pub compared: Option<Element>,
}

impl Buffer {
    pub fn placed_bytes(&self, placed: &Placed) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (at, place) in &self.pointers {
            bytes[*at..at + 8].copy_from_slice(&placed.at(*place).0.to_le_bytes());
        }
        bytes
    }
}

/// The tables of [`Tables`].
#[derive(Default)]
pub struct TablePlaces {
    pub ids: Operand,
    pub positions: Operand,
    pub rope: Operand,
    pub seen_end: Operand,
    pub token_row: Operand,
    pub features: Operand,
    pub feature_stride: u64,
    pub rows: Operand,
    pub snapshots: Operand,
    pub page_runs: Operand,
    pub run_stride: u64,
    pub pages: Operand,
    pub emitted: Operand,
    pub draws: Operand,
}

/// One launch with all that it reads and writes.
pub struct Case {
    pub buffers: Vec<Buffer>,
    pub tables: TablePlaces,
    pub first: usize,
    pub count: usize,
    pub rows: usize,
    pub build: Box<dyn Fn(&Placed) -> Op>,
}

impl Case {
    pub fn op(&self, placed: &Placed) -> Op {
        (self.build)(placed)
    }

    pub fn step(&self, placed: &Placed) -> Step {
        let tables = &self.tables;
        Step {
            first: self.first as u32,
            count: self.count as u32,
            rows: self.rows as u32,
            reserved: 0,
            tables: Tables {
                ids: placed.at(tables.ids),
                positions: placed.at(tables.positions),
                rope: placed.at(tables.rope),
                seen_end: placed.at(tables.seen_end),
                token_row: placed.at(tables.token_row),
                features: placed.at(tables.features),
                feature_stride: tables.feature_stride,
                rows: placed.at(tables.rows),
                snapshots: placed.at(tables.snapshots),
                page_runs: placed.at(tables.page_runs),
                run_stride: tables.run_stride,
                pages: placed.at(tables.pages),
                emitted: placed.at(tables.emitted),
                draws: placed.at(tables.draws),
            },
        }
    }

    /// Instead of addresses, for descriptions: billions count buffers, the rest is bytes.
    pub fn numbered(&self) -> Placed {
        Placed(
            (1..=self.buffers.len() as u64)
                .map(|n| Address(n * 1_000_000_000))
                .collect(),
        )
    }

    pub fn describe(&self, op: &Op, seed: u64) -> String {
        let range = self.first..self.first + self.count;
        format!("seed {seed}, {range:?} of {} rows: {op:?}", self.rows)
    }
}

/// Vectors of every token, some values apart.
#[derive(Clone, Copy)]
pub struct Vectors {
    pub at: Operand,
    pub stride: u32,
}

/// A matrix of a case.
#[derive(Clone, Copy)]
pub struct Matrix {
    pub at: Operand,
    pub rows: usize,
    pub cols: usize,
    pub format: Format,
}

impl Matrix {
    pub fn place(&self, placed: &Placed) -> MatrixRef {
        MatrixRef {
            values: placed.at(self.at),
            rows: self.rows as u32,
            cols: self.cols as u32,
            format: self.format,
            reserved: 0,
        }
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
