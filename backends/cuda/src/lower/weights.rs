//! Weights on the device, by role.

use std::collections::BTreeMap;

use loquat_session::OpenError;
use loquat_session::loading;
use loquat_spec::{Role, Rope};
use loquat_weights::{Dtype, EncodedRow, Matrix, Weights};

use crate::device::{Device, DeviceError};
use crate::fused::{FusedOp, PackFragments};
use crate::ops::{Address, Format, MatrixRef, Step};

/// Bytes that are decoded before they are copied to the device.
const CHUNK: usize = 32 << 20;

/// Loads each role once, or only counts its bytes.
pub struct WeightLoader<'a> {
    weights: &'a Weights,
    /// None: only counts.
    device: Option<&'a mut dyn Device>,
    format: Format,
    matrices: BTreeMap<Role, MatrixRef>,
    packed: BTreeMap<PackedKey, Address>,
    /// Memory for matrices before they are packed, and its size.
    unpacked: [(Address, usize); 2],
    vectors: BTreeMap<Role, Address>,
    bytes: WeightBytes,
    progress: &'a mut dyn FnMut(f32),
    chunk: Vec<u8>,
}

/// What is packed together.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum PackedKey {
    Stacked(Vec<Role>),
    Gates(Role, Role),
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
            packed: BTreeMap::new(),
            unpacked: Default::default(),
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

    /// Matrices one below the other, in fragment order.
    pub fn packed(&mut self, roles: &[Role]) -> Result<Address, OpenError> {
        let key = PackedKey::Stacked(roles.to_vec());
        if let Some(known) = self.packed.get(&key) {
            return Ok(*known);
        }
        let mut sizes = Vec::with_capacity(roles.len());
        for role in roles {
            let matrix = loading::matrix(self.weights, *role)?;
            sizes.push((matrix.rows().next_multiple_of(16), matrix.cols()));
        }
        let bytes = sizes.iter().map(|(rows, cols)| 2 * rows * cols).sum();
        let out = self.allocate_packed(bytes)?;
        let mut to = out;
        for (role, (rows, cols)) in roles.iter().zip(sizes) {
            let matrix = loading::matrix(self.weights, *role)?;
            self.pack(to, [Some(matrix), None])?;
            to = to.offset(2 * (rows * cols) as u64);
        }
        self.packed.insert(key, out);
        Ok(out)
    }

    /// A gate's and an up matrix, of which each tile has eight rows.
    pub fn packed_gates(&mut self, gate: Role, up: Role) -> Result<Address, OpenError> {
        let key = PackedKey::Gates(gate, up);
        if let Some(known) = self.packed.get(&key) {
            return Ok(*known);
        }
        let [gate, up] = [gate, up].map(|role| loading::matrix(self.weights, role));
        let (gate, up) = (gate?, up?);
        let out = self.allocate_packed(4 * gate.rows() * gate.cols())?;
        self.pack(out, [Some(gate), Some(up)])?;
        self.packed.insert(key, out);
        Ok(out)
    }

    fn allocate_packed(&mut self, bytes: usize) -> Result<Address, OpenError> {
        self.bytes.0 += bytes as u64;
        match &mut self.device {
            Some(device) => Ok(device.allocate(bytes)?),
            None => Ok(Address(1)),
        }
    }

    /// Copies matrices to the device as they are, and packs them there.
    fn pack(&mut self, out: Address, matrices: [Option<&Matrix>; 2]) -> Result<(), OpenError> {
        let Some(device) = &mut self.device else {
            return Ok(());
        };
        let mut copies = [Address::NONE; 2];
        let mut size = (0, 0);
        for ((matrix, copy), staging) in matrices.iter().zip(&mut copies).zip(&mut self.unpacked) {
            let Some(matrix) = matrix else {
                continue;
            };
            size = (matrix.rows(), matrix.cols());
            let bytes = 2 * size.0 * size.1;
            if staging.1 < bytes {
                device.free(staging.0);
                *staging = (Address::NONE, 0);
                *staging = (device.allocate(bytes)?, bytes);
            }
            let chunk = &mut self.chunk;
            upload_rows(&mut **device, staging.0, matrix, Format::Bf16, chunk)?;
            *copy = staging.0;
        }
        let pack = PackFragments {
            out,
            matrix: copies[0],
            up: copies[1],
            rows: size.0 as u32,
            cols: size.1 as u32,
        };
        let step = Step {
            count: 1,
            ..Step::default()
        };
        device.launch(&FusedOp::Pack(pack).into(), &step)?;
        Ok(())
    }

    /// Frees what packing needed.
    pub fn finish_packing(&mut self) {
        if let Some(device) = &mut self.device {
            for staging in &mut self.unpacked {
                device.free(staging.0);
                *staging = (Address::NONE, 0);
            }
        }
    }

    /// Vectors one after another, with zeros for those that the checkpoint does not have; none if
    /// it has none of them.
    pub fn joined(&mut self, roles: &[Role], lens: &[usize]) -> Result<Address, OpenError> {
        let vectors: Vec<_> = roles
            .iter()
            .map(|role| self.weights.vector(*role))
            .collect();
        if vectors.iter().all(Option::is_none) {
            return Ok(Address::NONE);
        }
        let mut joined = Vec::new();
        for (vector, len) in vectors.into_iter().zip(lens) {
            match vector {
                Some(values) => joined.extend_from_slice(values),
                None => joined.resize(joined.len() + len, 0.0),
            }
        }
        self.constants(&joined)
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

    /// Values of a vector; 0 if the checkpoint does not have it.
    pub fn len(&self, role: Role) -> usize {
        self.weights.vector(role).map_or(0, <[f32]>::len)
    }

    /// A vector times -1.
    pub fn negative(&mut self, role: Role) -> Result<Address, OpenError> {
        let values = loading::vector(self.weights, role)?;
        let negative: Vec<f32> = values.iter().map(|value| -value).collect();
        self.constants(&negative)
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
