//! Binds each role of the spec to its tensor. If shapes or names do not match, all mismatches are
//! reported together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use loquat_spec::{
    ConvShape, Kind, ModelSpec, Naming, Orientation, Role, RowMap, Slot, Transform, VisionNaming,
};

use crate::decode::MlxMode;
use crate::matrix::{Matrix, Storage};
use crate::quantization::MlxQuantization;
use crate::{Dtype, RawTensor, WeightsError, decode};

/// A model's weights by role. Matrices stay in the file's encoding; norms, biases and other
/// vectors are small and are decoded to `f32`.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    matrices: BTreeMap<Role, Vec<Matrix>>,
    vectors: BTreeMap<Role, Vec<f32>>,
}

/// All differences between a checkpoint and its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// Names of missing tensors.
    pub missing: Vec<String>,
    /// Names of tensors without a role.
    pub surplus: Vec<String>,
    /// Name, expected and found shape.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Names of tensors whose type the role does not support, and that type.
    pub mistyped: Vec<(String, Dtype)>,
}

impl Weights {
    pub fn matrix(&self, role: Role) -> Option<&Matrix> {
        self.stack(role)?.first()
    }

    /// All matrices of a role that has several.
    pub fn stack(&self, role: Role) -> Option<&[Matrix]> {
        self.matrices.get(&role).map(Vec::as_slice)
    }

    pub fn vector(&self, role: Role) -> Option<&[f32]> {
        self.vectors.get(&role).map(Vec::as_slice)
    }

    /// All matrices, including each matrix of a stack.
    pub fn matrices(&self) -> impl Iterator<Item = (Role, &Matrix)> {
        let stacks = self.matrices.iter();
        stacks.flat_map(|(role, stack)| stack.iter().map(|matrix| (*role, matrix)))
    }

    pub fn vectors(&self) -> impl Iterator<Item = (Role, &[f32])> {
        let vectors = self.vectors.iter();
        vectors.map(|(role, values)| (*role, values.as_slice()))
    }

    /// Every role that has weights.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.matrices.keys().chain(self.vectors.keys()).copied()
    }

    /// Whether no role has weights.
    pub fn is_empty(&self) -> bool {
        self.matrices.is_empty() && self.vectors.is_empty()
    }

    /// Sets a role's matrices.
    pub fn insert_stack(&mut self, role: Role, matrices: Vec<Matrix>) {
        self.matrices.insert(role, matrices);
    }

    /// Sets a role's vector.
    pub fn insert_vector(&mut self, role: Role, values: Vec<f32>) {
        self.vectors.insert(role, values);
    }

    /// Bytes of all bound tensors in the files.
    pub fn bytes(&self) -> u64 {
        let vectors: usize = self.vectors.values().map(|values| values.len() * 4).sum();
        let matrices = self.matrices().map(|(_, matrix)| matrix.bytes());
        matrices.sum::<u64>() + vectors as u64
    }
}

/// Binds `tensors` to the roles of `spec` under `naming`.
pub fn bind(
    spec: &ModelSpec,
    naming: &Naming,
    tensors: &[RawTensor],
    quantization: Option<&MlxQuantization>,
) -> Result<Weights, WeightsError> {
    let (found, mismatch) = find_text(spec, naming, tensors, quantization)?;
    if mismatch == Mismatch::default() {
        build(found)
    } else {
        Err(WeightsError::Binding(mismatch))
    }
}

/// Whether the vision part of `spec` could be bound.
pub fn check_vision(
    spec: &ModelSpec,
    naming: &VisionNaming,
    tensors: &[RawTensor],
    quantization: Option<&MlxQuantization>,
) -> Result<(), WeightsError> {
    match find_vision(spec, naming, tensors, quantization)? {
        Some((_, mismatch)) if mismatch != Mismatch::default() => {
            Err(WeightsError::Binding(mismatch))
        }
        _ => Ok(()),
    }
}

fn find_vision<'a>(
    spec: &ModelSpec,
    naming: &VisionNaming,
    tensors: &'a [RawTensor],
    quantization: Option<&'a MlxQuantization>,
) -> Result<Option<(Vec<Found<'a>>, Mismatch)>, WeightsError> {
    let Some(vision) = &spec.vision else {
        return Ok(None);
    };
    let query = RoleQuery {
        slots: naming.slots(vision, spec.hidden_size),
        conv_shape: ConvShape::ChannelFirst,
        ignores: &|name| naming.ignores(vision, name),
    };
    find(query, tensors, quantization).map(Some)
}

/// Adds the vision part of `spec` to `weights`; its tensors have canonical names.
pub fn bind_vision(
    weights: &mut Weights,
    spec: &ModelSpec,
    naming: &VisionNaming,
    tensors: &[RawTensor],
    quantization: Option<&MlxQuantization>,
) -> Result<(), WeightsError> {
    let Some((found, mismatch)) = find_vision(spec, naming, tensors, quantization)? else {
        return Ok(());
    };
    if mismatch != Mismatch::default() {
        return Err(WeightsError::Binding(mismatch));
    }
    let vision = build(found)?;
    weights.matrices.extend(vision.matrices);
    weights.vectors.extend(vision.vectors);
    Ok(())
}

/// The first of `namings` that matches `tensors`, or the closest one, and the spec adjusted for it.
pub fn fit(
    spec: &ModelSpec,
    namings: &[Naming],
    tensors: &[RawTensor],
    quantization: Option<&MlxQuantization>,
) -> Result<(ModelSpec, Naming), WeightsError> {
    let mut nearest: Option<(usize, ModelSpec, Naming)> = None;
    for naming in namings {
        let fitted = naming.fitted(spec.clone());
        let (_, mismatch) = find_text(&fitted, naming, tensors, quantization)?;
        let faults = mismatch.faults();
        if nearest.as_ref().is_none_or(|(fewest, ..)| faults < *fewest) {
            nearest = Some((faults, fitted, *naming));
        }
        if faults == 0 {
            break;
        }
    }
    match nearest {
        Some((_, fitted, naming)) => Ok((fitted, naming)),
        None => Err(WeightsError::Binding(Mismatch::default())),
    }
}

/// A role's tensors in the file.
struct Found<'a> {
    slot: Slot,
    tensors: FoundTensors<'a>,
}

enum FoundTensors<'a> {
    /// For each name: its storage, the map of the role's rows, and its number of matrices.
    Matrices(Vec<(Storage, Orientation, usize)>),
    Vector(&'a RawTensor),
}

/// The roles to look up.
struct RoleQuery<'n> {
    slots: Vec<Slot>,
    conv_shape: ConvShape,
    /// Whether a tensor without a role may be ignored.
    ignores: &'n dyn Fn(&str) -> bool,
}

fn find_text<'a>(
    spec: &ModelSpec,
    naming: &Naming,
    tensors: &'a [RawTensor],
    quantization: Option<&'a MlxQuantization>,
) -> Result<(Vec<Found<'a>>, Mismatch), WeightsError> {
    let query = RoleQuery {
        slots: naming.slots(spec),
        conv_shape: naming.conv_shape,
        ignores: &|name| naming.ignores(spec, name),
    };
    find(query, tensors, quantization)
}

/// Looks up and checks every role's tensors; reads no values.
fn find<'a>(
    query: RoleQuery<'_>,
    tensors: &'a [RawTensor],
    quantization: Option<&'a MlxQuantization>,
) -> Result<(Vec<Found<'a>>, Mismatch), WeightsError> {
    let mut binder = Binder {
        by_name: tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor))
            .collect(),
        used: HashSet::new(),
        reported: HashSet::new(),
        quantization,
        conv_shape: query.conv_shape,
        mismatch: Mismatch::default(),
    };
    let mut found = Vec::new();
    for slot in query.slots {
        // Parts that do not divide evenly among heads: no file can match the config.
        let along = match slot.layout.orientation {
            Orientation::Rows | Orientation::Columns => slot.kind.rows(),
            Orientation::PartColumns => slot.kind.cols(),
        };
        if !slot.layout.rows.stays_below(along, slot.layout.total) {
            let name = slot.names.first().cloned().unwrap_or_default();
            let entry = (name, vec![along], vec![slot.layout.total]);
            binder.mismatch.misshapen.push(entry);
            continue;
        }
        let tensors = match slot.kind {
            Kind::Matrix { .. } | Kind::Stack { .. } => binder.matrices(&slot)?,
            Kind::Vector { .. } | Kind::Vectors { .. } | Kind::Conv { .. } => {
                binder.vector(&slot).map(FoundTensors::Vector)
            }
        };
        if let Some(tensors) = tensors {
            found.push(Found { slot, tensors });
        }
    }
    let mut mismatch = binder.mismatch;
    let unused = tensors.iter().map(|tensor| tensor.name.as_str());
    mismatch.surplus = unused
        .filter(|name| !binder.used.contains(name) && !(query.ignores)(name))
        .map(str::to_owned)
        .collect();
    Ok((found, mismatch))
}

fn build(found: Vec<Found>) -> Result<Weights, WeightsError> {
    let mut weights = Weights::default();
    for Found { slot, tensors } in found {
        match tensors {
            FoundTensors::Matrices(storages) => {
                let mut matrices = Vec::with_capacity(slot.kind.count());
                for (storage, orientation, members) in &storages {
                    for member in 0..*members {
                        matrices.push(member_matrix(&slot, storage, *orientation, member)?);
                    }
                }
                weights.matrices.insert(slot.role, matrices);
            }
            FoundTensors::Vector(tensor) => {
                weights.vectors.insert(slot.role, values(&slot, tensor)?);
            }
        }
    }
    Ok(weights)
}

struct Binder<'a> {
    by_name: HashMap<&'a str, &'a RawTensor>,
    used: HashSet<&'a str>,
    /// Names already reported: several roles may use one tensor.
    reported: HashSet<String>,
    quantization: Option<&'a MlxQuantization>,
    conv_shape: ConvShape,
    mismatch: Mismatch,
}

/// The matrices in one file tensor: `members` of `rows × cols`.
#[derive(Clone, Copy)]
pub(crate) struct FileShape {
    members: usize,
    rows: usize,
    cols: usize,
}

impl FileShape {
    /// Of a tensor with `members` of the slot's matrices.
    pub(crate) fn for_slot(slot: &Slot, members: usize) -> Self {
        let (rows, cols, total) = (slot.kind.rows(), slot.kind.cols(), slot.layout.total);
        let (rows, cols) = match slot.layout.orientation {
            Orientation::Rows => (total, cols),
            Orientation::Columns => (cols, total),
            Orientation::PartColumns => (total, rows),
        };
        Self {
            members,
            rows,
            cols,
        }
    }

    /// Ignores dimensions of size 1. A stack may be stored as one tall matrix.
    pub(crate) fn matches(self, shape: &[usize]) -> bool {
        let squeezed = |dims: &[usize]| -> Vec<usize> {
            dims.iter().copied().filter(|dim| *dim != 1).collect()
        };
        let found = squeezed(shape);
        found == squeezed(&[self.members, self.rows, self.cols])
            || found == squeezed(&[self.members * self.rows, self.cols])
    }

    pub(crate) fn dims(self) -> Vec<usize> {
        let dims = [self.members, self.rows, self.cols];
        dims[usize::from(self.members == 1)..].to_vec()
    }

    fn with_cols(self, cols: usize) -> Self {
        Self { cols, ..self }
    }
}

impl<'a> Binder<'a> {
    /// The tensor if it has this shape and a readable type; otherwise reports it.
    fn take(
        &mut self,
        name: &str,
        expected: &[usize],
        fits: impl FnOnce(&[usize]) -> bool,
        readable: impl FnOnce(Dtype) -> bool,
    ) -> Option<&'a RawTensor> {
        let found = self.by_name.get(name).copied();
        let fitting = found.map(|tensor| (tensor, fits(&tensor.shape)));
        if let Some((tensor, fitting)) = fitting {
            self.used.insert(tensor.name.as_str());
            if fitting && readable(tensor.dtype) {
                return Some(tensor);
            }
        }
        if self.reported.insert(name.to_owned()) {
            let (name, mismatch) = (name.to_owned(), &mut self.mismatch);
            match fitting {
                None => mismatch.missing.push(name),
                Some((tensor, false)) => {
                    let entry = (name, expected.to_vec(), tensor.shape.clone());
                    mismatch.misshapen.push(entry);
                }
                Some((tensor, true)) => mismatch.mistyped.push((name, tensor.dtype)),
            }
        }
        None
    }

    fn take_matrix(
        &mut self,
        name: &str,
        shape: FileShape,
        readable: impl FnOnce(Dtype) -> bool,
    ) -> Option<&'a RawTensor> {
        self.take(name, &shape.dims(), |dims| shape.matches(dims), readable)
    }

    /// The role's storages; reports problems.
    fn matrices(&mut self, slot: &Slot) -> Result<Option<FoundTensors<'a>>, WeightsError> {
        let count = slot.kind.count();
        let members = if slot.names.len() == count { 1 } else { count };
        let mut storages = Vec::with_capacity(slot.names.len());
        for name in &slot.names {
            // Continue after a missing tensor, to report all.
            if let Some((storage, orientation)) = self.storage(slot, name, members)? {
                storages.push((storage, orientation, members));
            }
        }
        let complete = storages.len() == slot.names.len();
        Ok(complete.then_some(FoundTensors::Matrices(storages)))
    }

    /// The tensor `name` as a matrix's storage, and the map of the role's rows.
    fn storage(
        &mut self,
        slot: &Slot,
        name: &str,
        members: usize,
    ) -> Result<Option<(Storage, Orientation)>, WeightsError> {
        let natural = FileShape {
            members,
            rows: slot.layout.total,
            cols: slot.kind.cols(),
        };
        // The hub's MXFP4 files are never transposed, unlike their bf16 versions.
        if !self.by_name.contains_key(name)
            && self.by_name.contains_key(format!("{name}_blocks").as_str())
        {
            let storage = self.mxfp4_blocks(name, natural);
            return Ok(storage.map(|storage| (storage, Orientation::Rows)));
        }
        let orientation = slot.layout.orientation;
        let shape = FileShape::for_slot(slot, members);
        let storage = match self.quantized(name) {
            Some((module, quantization)) => {
                let mode = quantization.mode_of(module);
                if !shape.cols.is_multiple_of(mode.group()) {
                    return Err(WeightsError::Quantization {
                        field: "quantization.group_size".into(),
                        found: mode.group().to_string(),
                        expected: format!(
                            "a divisor of {}, the row length of `{module}`",
                            shape.cols
                        ),
                    });
                }
                self.mlx_storage(module, mode, shape)
            }
            None => match self.fp8_scales(name) {
                Some(scales) => self.fp8_storage(name, &scales, shape),
                None => self
                    .take_matrix(name, shape, decodable)
                    .map(|tensor| Storage::Plain(tensor.clone())),
            },
        };
        Ok(storage.map(|storage| (storage, orientation)))
    }

    /// The module's name and how it was quantized, if its scales are in the file.
    fn quantized<'s>(&self, name: &'s str) -> Option<(&'s str, &'a MlxQuantization)> {
        let module = name.strip_suffix(".weight")?;
        let scales = format!("{module}.scales");
        let quantization = self.quantization?;
        self.by_name
            .contains_key(scales.as_str())
            .then_some((module, quantization))
    }

    fn mlx_storage(&mut self, module: &str, mode: MlxMode, shape: FileShape) -> Option<Storage> {
        let words = shape.with_cols(shape.cols * usize::from(mode.bits()) / 32);
        let groups = shape.with_cols(shape.cols / mode.group());
        let is_scale = |dtype| decode::decode_mlx_scales(mode, &[], dtype, 0).is_ok();
        let is_code = |dtype| dtype == Dtype::U32;
        let codes = self.take_matrix(&format!("{module}.weight"), words, is_code);
        let scales = self.take_matrix(&format!("{module}.scales"), groups, is_scale);
        let biases = match mode {
            MlxMode::Affine { .. } => Some(
                self.take_matrix(&format!("{module}.biases"), groups, is_scale)?
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

    /// The name of the scales of a tensor of 8-bit floats, if they are in the file.
    fn fp8_scales(&self, name: &str) -> Option<String> {
        let scales = format!("{name}_scale_inv");
        let is_fp8 = self.by_name.get(name)?.dtype == Dtype::F8E4M3;
        (is_fp8 && self.by_name.contains_key(scales.as_str())).then_some(scales)
    }

    /// DeepSeek's 8-bit floats, with a scale per block; the number of blocks gives their size, a
    /// power of two.
    fn fp8_storage(&mut self, name: &str, scales: &str, shape: FileShape) -> Option<Storage> {
        let side = |len: usize, blocks: usize| {
            let mut sides = (0..usize::BITS - 1).map(|power| 1 << power);
            sides.find(|side: &usize| len.div_ceil(*side) == blocks)
        };
        let codes = self.take_matrix(name, shape, |dtype| dtype == Dtype::F8E4M3);
        let expected = [shape.rows.div_ceil(128), shape.cols.div_ceil(128)];
        let fits = |dims: &[usize]| match dims {
            [rows, cols] => side(shape.rows, *rows).is_some() && side(shape.cols, *cols).is_some(),
            _ => false,
        };
        let scales = self.take(scales, &expected, fits, decodable)?;
        Some(Storage::Fp8 {
            codes: codes?.clone(),
            scales: scales.clone(),
            block_rows: side(shape.rows, scales.shape[0])?,
            block_cols: side(shape.cols, scales.shape[1])?,
        })
    }

    /// Blocks of 16 bytes with 32 codes, in the same order as MLX packs them, and their scales.
    fn mxfp4_blocks(&mut self, name: &str, shape: FileShape) -> Option<Storage> {
        const VALUES: usize = 32;
        const BYTES: usize = 16;
        let groups = shape.with_cols(shape.cols / VALUES);
        let is_byte = |dtype| dtype == Dtype::U8;
        let mut blocks_shape = groups.dims();
        blocks_shape.push(BYTES);
        let blocks = self.take(
            &format!("{name}_blocks"),
            &blocks_shape,
            |dims| {
                let divides = shape.cols.is_multiple_of(VALUES);
                divides
                    && dims
                        .split_last()
                        .is_some_and(|(last, outer)| *last == BYTES && groups.matches(outer))
            },
            is_byte,
        );
        let scales = self.take_matrix(&format!("{name}_scales"), groups, is_byte);
        let (blocks, scales) = (blocks?, scales?);
        Some(Storage::Mlx {
            mode: MlxMode::Mxfp4,
            codes: RawTensor {
                dtype: Dtype::U32,
                shape: vec![shape.members * shape.rows, shape.cols / 8],
                ..blocks.clone()
            },
            scales: RawTensor {
                shape: vec![shape.members * shape.rows, shape.cols / VALUES],
                ..scales.clone()
            },
            biases: None,
        })
    }

    fn vector(&mut self, slot: &Slot) -> Option<&'a RawTensor> {
        let (count, total, kernel) = (slot.kind.count(), slot.layout.total, slot.kind.cols());
        let expected = match (slot.kind, self.conv_shape) {
            (Kind::Conv { .. }, ConvShape::ChannelFirst) => vec![total, 1, kernel],
            (Kind::Conv { .. }, ConvShape::ChannelLast) => vec![total, kernel, 1],
            (Kind::Conv { .. }, ConvShape::Flat) => vec![total, kernel],
            _ if count > 1 => vec![count, total],
            _ => vec![total],
        };
        let len: usize = expected.iter().product();
        let conv_shape = matches!(slot.kind, Kind::Conv { .. }).then_some(self.conv_shape);
        let fits = |shape: &[usize]| match conv_shape {
            // The shape distinguishes the conventions.
            Some(ConvShape::ChannelFirst | ConvShape::ChannelLast) => shape == expected,
            Some(ConvShape::Flat) => {
                shape.last() == Some(&kernel) && shape.iter().product::<usize>() == len
            }
            None => shape.iter().product::<usize>() == len,
        };
        self.take(slot.names.first()?, &expected, fits, decodable)
    }
}

/// The values of a vector role from its tensor, whose shape has been checked.
pub(crate) fn values(slot: &Slot, tensor: &RawTensor) -> Result<Vec<f32>, WeightsError> {
    let (count, rows, kernel) = (slot.kind.count(), slot.kind.rows(), slot.kind.cols());
    let total = slot.layout.total;
    let mut stored = vec![0.0; count * total * kernel];
    decode::decode_row(tensor.dtype, &tensor.data, &mut stored)?;
    let mut values = Vec::with_capacity(count * rows * kernel);
    for member in 0..count {
        for row in 0..rows {
            let at = (member * total + slot.layout.rows.file_row(row)) * kernel;
            values.extend_from_slice(&stored[at..at + kernel]);
        }
    }
    match slot.transform {
        Transform::None => {}
        Transform::AddOne => values.iter_mut().for_each(|value| *value += 1.0),
        Transform::NegExp => values.iter_mut().for_each(|value| *value = -value.exp()),
    }
    Ok(values)
}

/// Matrix number `member` of the storage.
pub(crate) fn member_matrix(
    slot: &Slot,
    storage: &Storage,
    orientation: Orientation,
    member: usize,
) -> Result<Matrix, WeightsError> {
    let (rows, cols) = (slot.kind.rows(), slot.kind.cols());
    let (map, total) = (slot.layout.rows, slot.layout.total);
    let of_member = RowMap {
        first: map.first + member * total,
        ..map
    };
    let in_order = |first: usize, len: usize| RowMap {
        first,
        block: len.max(1),
        stride: len,
    };
    match orientation {
        Orientation::Rows => Ok(Matrix::new(rows, cols, storage.clone(), of_member)),
        Orientation::PartColumns => {
            Matrix::new(cols, rows, storage.clone(), of_member).columns(rows, in_order(0, rows))
        }
        Orientation::Columns => {
            let all_rows = in_order(member * cols, cols);
            Matrix::new(cols, total, storage.clone(), all_rows).columns(rows, map)
        }
    }
}

/// Whether `decode` supports the type.
fn decodable(dtype: Dtype) -> bool {
    decode::decode_row(dtype, &[], &mut []).is_ok()
}

/// How many names of each kind a message lists; the rest are counted.
const LISTED: usize = 8;

impl Mismatch {
    fn faults(&self) -> usize {
        self.missing.len() + self.surplus.len() + self.misshapen.len() + self.mistyped.len()
    }
}

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
            ("unexpected", &self.surplus),
            ("of the wrong shape", &misshapen),
            ("of an unsupported type", &mistyped),
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
