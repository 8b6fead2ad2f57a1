//! Weights on the device, by role.

use std::collections::BTreeMap;

use loquat_session::OpenError;
use loquat_session::loading;
use loquat_spec::{Role, Rope};
use loquat_weights::{Dtype, EncodedRow, Matrix, Weights};

use crate::device::{Device, DeviceError};
use crate::ops::{Address, Format, MatrixRef};

/// Bytes that are decoded before they are copied to the device.
const CHUNK: usize = 32 << 20;

/// Loads each role once, or only counts its bytes.
pub struct WeightLoader<'a> {
    weights: &'a Weights,
    /// None: only counts.
    device: Option<&'a mut dyn Device>,
    format: Format,
    matrices: BTreeMap<Role, MatrixRef>,
    vectors: BTreeMap<Role, Address>,
    bytes: WeightBytes,
    progress: &'a mut dyn FnMut(f32),
    chunk: Vec<u8>,
}

/// Bytes on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightBytes(pub u64);

impl<'a> WeightLoader<'a> {
    /// Stores matrices in `format`, or only counts their bytes without a device.
    pub fn new(
        weights: &'a Weights,
        device: Option<&'a mut dyn Device>,
        format: Format,
        progress: &'a mut dyn FnMut(f32),
    ) -> Self {
        Self {
            weights,
            device,
            format,
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
            bytes: WeightBytes::default(),
            progress,
            chunk: Vec::new(),
        }
    }

    pub fn bytes(&self) -> WeightBytes {
        self.bytes
    }

    /// Reports that `done` of `steps` parts are loaded.
    pub fn progress(&mut self, done: usize, steps: usize) {
        if self.device.is_some() {
            (self.progress)(done as f32 / steps as f32);
        }
    }

    pub fn matrix(&mut self, role: Role) -> Result<MatrixRef, OpenError> {
        if let Some(known) = self.matrices.get(&role) {
            return Ok(*known);
        }
        let matrix = loading::matrix(self.weights, role)?;
        self.upload(role, std::slice::from_ref(matrix))
    }

    /// The first of a stack's matrices, which are contiguous.
    pub fn stack(&mut self, role: Role) -> Result<MatrixRef, OpenError> {
        if let Some(known) = self.matrices.get(&role) {
            return Ok(*known);
        }
        let matrices = loading::stack(self.weights, role)?;
        self.upload(role, matrices)
    }

    pub fn vector(&mut self, role: Role) -> Result<Address, OpenError> {
        if let Some(known) = self.vectors.get(&role) {
            return Ok(*known);
        }
        let values = loading::vector(self.weights, role)?;
        let address = self.constants(values)?;
        self.vectors.insert(role, address);
        Ok(address)
    }

    /// None if the checkpoint does not have it.
    pub fn optional(&mut self, role: Role) -> Result<Address, OpenError> {
        match self.weights.vector(role) {
            Some(_) => self.vector(role),
            None => Ok(Address::NONE),
        }
    }

    /// The only value of a vector.
    pub fn number(&self, role: Role) -> Result<f32, OpenError> {
        let values = loading::vector(self.weights, role)?;
        Ok(values.first().copied().unwrap_or(1.0))
    }

    pub fn frequencies(&self, rope: &Rope, context: usize) -> Vec<f32> {
        rope.frequencies(context, |role| self.weights.vector(role))
    }

    pub fn constants(&mut self, values: &[f32]) -> Result<Address, OpenError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.write(&bytes)
    }

    pub fn words(&mut self, words: &[u32]) -> Result<Address, OpenError> {
        let bytes: Vec<u8> = words.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Address, OpenError> {
        self.bytes.0 += bytes.len() as u64;
        let Some(device) = &mut self.device else {
            return Ok(Address(1));
        };
        let address = device.allocate(bytes.len().max(4))?;
        device.write(address, bytes)?;
        Ok(address)
    }

    fn upload(&mut self, role: Role, matrices: &[Matrix]) -> Result<MatrixRef, OpenError> {
        let (rows, cols) = matrices
            .first()
            .map_or((0, 0), |matrix| (matrix.rows(), matrix.cols()));
        let row_bytes = cols * self.format.bytes();
        let bytes = matrices.len() * rows * row_bytes;
        self.bytes.0 += bytes as u64;
        let values = match &mut self.device {
            None => Address(1),
            Some(device) => {
                let address = device.allocate(bytes.max(4))?;
                let mut to = address;
                for matrix in matrices {
                    upload_rows(&mut **device, to, matrix, self.format, &mut self.chunk)?;
                    to = to.offset((rows * row_bytes) as u64);
                }
                address
            }
        };
        let matrix = MatrixRef {
            values,
            rows: rows as u32,
            cols: cols as u32,
            format: self.format,
            reserved: 0,
        };
        self.matrices.insert(role, matrix);
        Ok(matrix)
    }
}

/// Copies a matrix in chunks of rows.
pub fn upload_rows(
    device: &mut dyn Device,
    mut to: Address,
    matrix: &Matrix,
    format: Format,
    chunk: &mut Vec<u8>,
) -> Result<(), OpenError> {
    let mut values = vec![0.0; matrix.cols()];
    chunk.clear();
    for row in 0..matrix.rows() {
        push_row(matrix, row, format, &mut values, chunk)?;
        if chunk.len() >= CHUNK || row + 1 == matrix.rows() {
            device.write(to, chunk)?;
            to = to.offset(chunk.len() as u64);
            chunk.clear();
        }
    }
    Ok(())
}

fn push_row(
    matrix: &Matrix,
    row: usize,
    format: Format,
    values: &mut [f32],
    out: &mut Vec<u8>,
) -> Result<(), OpenError> {
    if let Some(EncodedRow::Plain { dtype, bytes }) = matrix.encoded_row(row)
        && matches!(
            (dtype, format),
            (Dtype::BF16, Format::Bf16) | (Dtype::F32, Format::F32)
        )
    {
        out.extend_from_slice(bytes);
        return Ok(());
    }
    matrix.decode_row(row, values)?;
    match format {
        Format::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Format::Bf16 => {
            let rounded = values.iter().map(|value| half::bf16::from_f32(*value));
            out.extend(rounded.flat_map(half::bf16::to_le_bytes));
        }
    }
    Ok(())
}

impl From<DeviceError> for OpenError {
    fn from(error: DeviceError) -> Self {
        error.into_open_error()
    }
}
