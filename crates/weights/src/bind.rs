//! Binding: every role of the spec gets exactly one tensor of the right shape, or the whole
//! list of what is wrong.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use loquat_spec::{Kind, ModelSpec, Naming, Role, Slot, Transform};

use crate::decode::MlxMode;
use crate::matrix::{Matrix, Storage, file_row};
use crate::quantization::MlxQuantization;
use crate::{Dtype, RawTensor, WeightsError, decode};

/// A model's weights by role. Matrices stay in the file's encoding; norms, biases and other
/// vectors are small and come as the `f32` values that are multiplied or added.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    matrices: BTreeMap<Role, Matrix>,
    vectors: BTreeMap<Role, Vec<f32>>,
}

/// Everything in which a checkpoint departs from its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// Names of tensors a role needs and the file lacks.
    pub missing: Vec<String>,
    /// Names of tensors no role asks for.
    pub surplus: Vec<String>,
    /// Name, expected and found shape.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Names of tensors whose type cannot fill their role, and that type.
    pub mistyped: Vec<(String, Dtype)>,
}

impl Weights {
    pub fn matrix(&self, role: Role) -> Option<&Matrix> {
        self.matrices.get(&role)
    }

    pub fn vector(&self, role: Role) -> Option<&[f32]> {
        self.vectors.get(&role).map(Vec::as_slice)
    }

    pub fn matrices(&self) -> impl Iterator<Item = (Role, &Matrix)> {
        self.matrices.iter().map(|(role, matrix)| (*role, matrix))
    }

    pub fn vectors(&self) -> impl Iterator<Item = (Role, &[f32])> {
        let vectors = self.vectors.iter();
        vectors.map(|(role, values)| (*role, values.as_slice()))
    }

    /// Bytes of all bound tensors as they stand in the files.
    pub fn bytes(&self) -> u64 {
        let vectors: usize = self.vectors.values().map(|values| values.len() * 4).sum();
        self.matrices.values().map(Matrix::bytes).sum::<u64>() + vectors as u64
    }
}

/// Binds `tensors` to the roles of `spec` under `naming`.
pub fn bind(
    spec: &ModelSpec,
    naming: &Naming,
    tensors: &[RawTensor],
    quantization: Option<&MlxQuantization>,
) -> Result<Weights, WeightsError> {
    let mut binder = Binder {
        by_name: tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor))
            .collect(),
        used: HashSet::new(),
        reported: HashSet::new(),
        quantization,
        mismatch: Mismatch::default(),
    };
    let mut weights = Weights::default();
    for slot in naming.slots(spec) {
        match slot.kind {
            Kind::Matrix { rows, cols } => {
                if let Some(matrix) = binder.matrix(&slot, rows, cols)? {
                    weights.matrices.insert(slot.role, matrix);
                }
            }
            Kind::Vector { len } => {
                if let Some(vector) = binder.vector(&slot, len)? {
                    weights.vectors.insert(slot.role, vector);
                }
            }
        }
    }
    let mut mismatch = binder.mismatch;
    let unused = tensors.iter().map(|tensor| tensor.name.as_str());
    mismatch.surplus = unused
        .filter(|name| !binder.used.contains(name) && !naming.ignores(spec, name))
        .map(str::to_owned)
        .collect();
    if mismatch == Mismatch::default() {
        Ok(weights)
    } else {
        Err(WeightsError::Binding(mismatch))
    }
}

struct Binder<'a> {
    by_name: HashMap<&'a str, &'a RawTensor>,
    used: HashSet<&'a str>,
    /// Names already in the report: one tensor may fill several roles.
    reported: HashSet<String>,
    quantization: Option<&'a MlxQuantization>,
    mismatch: Mismatch,
}

impl<'a> Binder<'a> {
    /// The tensor, if it is there in this shape and a readable type; what is wrong goes into
    /// the report.
    fn take(
        &mut self,
        name: &str,
        shape: &[usize],
        readable: impl FnOnce(Dtype) -> bool,
    ) -> Option<&'a RawTensor> {
        let found = self.by_name.get(name).copied();
        if let Some(tensor) = found {
            self.used.insert(tensor.name.as_str());
            if tensor.shape == shape && readable(tensor.dtype) {
                return Some(tensor);
            }
        }
        if self.reported.insert(name.to_owned()) {
            let (name, mismatch) = (name.to_owned(), &mut self.mismatch);
            match found {
                None => mismatch.missing.push(name),
                Some(tensor) if tensor.shape != shape => {
                    let entry = (name, shape.to_vec(), tensor.shape.clone());
                    mismatch.misshapen.push(entry);
                }
                Some(tensor) => mismatch.mistyped.push((name, tensor.dtype)),
            }
        }
        None
    }

    fn matrix(
        &mut self,
        slot: &Slot,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Matrix>, WeightsError> {
        let file_rows = slot.rows.as_ref().map_or(rows, |fused| fused.total);
        let storage = match self.quantized(slot) {
            Some((module, quantization)) => {
                let mode = quantization.mode_of(module);
                if !cols.is_multiple_of(mode.group()) {
                    return Err(WeightsError::Quantization {
                        field: "quantization.group_size".into(),
                        found: mode.group().to_string(),
                        expected: format!("a divisor of {cols}, the row length of `{module}`"),
                    });
                }
                self.mlx_storage(module, mode, file_rows, cols)
            }
            None => self
                .take(&slot.name, &[file_rows, cols], decodable)
                .map(|tensor| Storage::Plain(tensor.clone())),
        };
        let first_row = slot.rows.as_ref().map_or(0, |fused| fused.range.start);
        Ok(storage.map(|storage| {
            let matrix = Matrix::new(rows, cols, storage, first_row);
            match slot.transform {
                Transform::Unpermute { heads } => matrix.interleaved(heads),
                Transform::None | Transform::AddOne => matrix,
            }
        }))
    }

    /// The module's name and how it was quantized, if its scales are in the file.
    fn quantized<'s>(&self, slot: &'s Slot) -> Option<(&'s str, &'a MlxQuantization)> {
        let module = slot.name.strip_suffix(".weight")?;
        let scales = format!("{module}.scales");
        let quantization = self.quantization?;
        self.by_name
            .contains_key(scales.as_str())
            .then_some((module, quantization))
    }

    fn mlx_storage(
        &mut self,
        module: &str,
        mode: MlxMode,
        rows: usize,
        cols: usize,
    ) -> Option<Storage> {
        let words = cols * usize::from(mode.bits()) / 32;
        let groups = cols / mode.group();
        let is_scale = |dtype| decode::decode_mlx_scales(mode, &[], dtype, 0).is_ok();
        let codes = self.take(&format!("{module}.weight"), &[rows, words], |dtype| {
            dtype == Dtype::U32
        });
        let scales = self.take(&format!("{module}.scales"), &[rows, groups], is_scale);
        let biases = match mode {
            MlxMode::Affine { .. } => Some(
                self.take(&format!("{module}.biases"), &[rows, groups], is_scale)?
                    .clone(),
            ),
            MlxMode::Mxfp4 | MlxMode::Mxfp8 | MlxMode::Nvfp4 => None,
        };
        Some(Storage::Mlx {
            mode,
            codes: codes?.clone(),
            scales: scales?.clone(),
            biases,
        })
    }

    fn vector(&mut self, slot: &Slot, len: usize) -> Result<Option<Vec<f32>>, WeightsError> {
        let file_len = slot.rows.as_ref().map_or(len, |fused| fused.total);
        let Some(tensor) = self.take(&slot.name, &[file_len], decodable) else {
            return Ok(None);
        };
        let mut stored = vec![0.0; file_len];
        decode::decode_row(tensor.dtype, &tensor.data, &mut stored)?;
        let first = slot.rows.as_ref().map_or(0, |fused| fused.range.start);
        let mut values = stored[first..first + len].to_vec();
        match slot.transform {
            Transform::None => {}
            Transform::AddOne => values.iter_mut().for_each(|value| *value += 1.0),
            Transform::Unpermute { heads } => {
                let head = len / heads;
                for (row, value) in values.iter_mut().enumerate() {
                    *value = stored[first + file_row(row, Some(head))];
                }
            }
        }
        Ok(Some(values))
    }
}

/// Whether the type has `f32` values, which `decode` alone knows.
fn decodable(dtype: Dtype) -> bool {
    decode::decode_row(dtype, &[], &mut []).is_ok()
}

/// How many names of each kind a message lists before it counts the rest.
const LISTED: usize = 8;

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let misshapen: Vec<String> = self
            .misshapen
            .iter()
            .map(|(name, expected, found)| format!("{name} is {found:?}, must be {expected:?}"))
            .collect();
        let mistyped: Vec<String> = self
            .mistyped
            .iter()
            .map(|(name, found)| format!("{name} is {found}"))
            .collect();
        let kinds = [
            ("missing", &self.missing),
            ("not asked for", &self.surplus),
            ("of the wrong shape", &misshapen),
            ("of a type that cannot fill its role", &mistyped),
        ];
        let mut first = true;
        for (kind, names) in kinds.iter().filter(|(_, names)| !names.is_empty()) {
            if !first {
                f.write_str("; ")?;
            }
            first = false;
            let listed = names[..names.len().min(LISTED)].join(", ");
            write!(f, "{} {kind}: {listed}", names.len())?;
            if names.len() > LISTED {
                write!(f, ", and {} more", names.len() - LISTED)?;
            }
        }
        Ok(())
    }
}
