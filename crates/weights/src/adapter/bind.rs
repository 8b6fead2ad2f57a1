//! Binds an adapter's changes to roles by the names that their weights have in files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use loquat_spec::{
    ConvShape, Kind, LayerRole, Mixer, ModelSpec, Naming, Orientation, Role, RopeOrder, RopePairs,
    Slot, Transform,
};

use super::file::AdapterFile;
use super::{
    AdapterBase, AdapterInfo, AdapterMismatch, AdapterParts, AdapterWeights, Factor, LengthsOf,
    LowRank,
};
use crate::bind::{self, FileShape};
use crate::checkpoint::text_model_name;
use crate::matrix::Storage;
use crate::{Format, Matrix, RawTensor, Weights};

/// A change of the weights with a tensor's name.
pub(super) enum Change {
    LowRank(LowRankChange),
    Experts(ExpertsChange),
    /// Takes the place of the tensor of its name.
    Whole(RawTensor),
}

/// `+ scale · b · a`, for one matrix or for each of a stack.
pub(super) struct LowRankChange {
    pub target: String,
    pub a: Vec<Arc<Factor>>,
    pub b: Vec<Arc<Factor>>,
    pub scale: f32,
    pub magnitude: Option<Vec<f32>>,
    /// Of an embedding; other matrices' are of rows.
    pub embedding_lengths_of: LengthsOf,
}

/// Of all experts of a layer: peft's factors of a parameter of three dimensions.
pub(super) struct ExpertsChange {
    pub module: String,
    /// `[expert · rank][column]`
    pub a: Factor,
    /// `[row][rank · expert]`
    pub b: Factor,
    /// For a rank.
    pub scale: Box<dyn Fn(usize) -> f32>,
}

/// The slots of the names that weights have.
pub(super) struct Targets {
    slots: Vec<Slot>,
    /// Name → slot and which of its names.
    index: HashMap<String, Vec<(usize, usize)>>,
}

impl Targets {
    pub fn new(spec: &ModelSpec, namings: &[Naming]) -> Self {
        let mut untied = spec.clone();
        // A head can be adapted apart from the embedding that it is tied to.
        untied.head.tied = false;
        let mut targets = Self {
            slots: Vec::new(),
            index: HashMap::new(),
        };
        for naming in namings {
            let known: Vec<String> = targets.index.keys().cloned().collect();
            for slot in naming.slots(&untied) {
                for (index, name) in slot.names.iter().enumerate() {
                    // A name means what the first naming says.
                    if !known.contains(name) && !name.is_empty() {
                        let entry = targets.index.entry(name.clone()).or_default();
                        entry.push((targets.slots.len(), index));
                    }
                }
                targets.slots.push(slot);
            }
        }
        targets
    }

    /// Each slot with a part of the tensor, and which of the slot's names it has.
    pub fn find(&self, name: &str) -> Option<Vec<(&Slot, usize)>> {
        let candidates = [
            Some(name.to_owned()),
            text_model_name(name),
            // Of a model without a head, whose parts have no common module.
            Some(format!("model.{name}")),
        ];
        let found = candidates.into_iter().flatten();
        let found = found.filter_map(|name| self.index.get(&name)).next()?;
        let slots = found
            .iter()
            .map(|(slot, index)| (&self.slots[*slot], *index));
        Some(slots.collect())
    }

    pub fn is_embedding(&self, name: &str) -> bool {
        self.find(name)
            .is_some_and(|slots| slots.iter().any(|(slot, _)| slot.role == Role::Embedding))
    }

    /// The slot of a role, under the first naming.
    fn role(&self, role: Role) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.role == role)
    }
}

pub(super) struct AdapterBinder<'a> {
    base: &'a AdapterBase,
    is_gguf: bool,
    conv_shape: ConvShape,
    targets: Targets,
    low_rank: BTreeMap<Role, Vec<Option<LowRank>>>,
    matrices: BTreeMap<Role, Vec<Option<Matrix>>>,
    replaced: Weights,
    faults: Vec<String>,
}

impl<'a> AdapterBinder<'a> {
    pub fn bind(
        file: AdapterFile,
        base: &'a AdapterBase,
    ) -> Result<AdapterWeights, AdapterMismatch> {
        let mut binder = Self {
            base,
            is_gguf: file.is_gguf,
            conv_shape: file
                .namings
                .first()
                .map_or(ConvShape::Flat, |naming| naming.conv_shape),
            targets: Targets::new(&base.spec, &file.namings),
            low_rank: BTreeMap::new(),
            matrices: BTreeMap::new(),
            replaced: Weights::default(),
            faults: file.faults,
        };
        binder.check_order();
        for change in file.changes {
            let bound = match change {
                Change::LowRank(change) => binder.bind_low_rank(&change),
                Change::Experts(change) => binder.bind_experts(&change),
                Change::Whole(tensor) => binder.bind_whole(&tensor),
            };
            if let Err(fault) = bound {
                binder.faults.push(fault);
            }
        }
        binder.finish(file.info)
    }

    /// Formats order more than queries and keys differently if a model has recurrent layers.
    fn check_order(&mut self) {
        let spec = &self.base.spec;
        let plain = |mixer: &Mixer| matches!(mixer, Mixer::Attention(_));
        if self.is_foreign() && !spec.mixers().all(|(_, mixer)| plain(mixer)) {
            let other = if self.is_gguf { "safetensors" } else { "GGUF" };
            self.faults.push(format!(
                "the model's files are {other}, which order this family's weights in another way \
                 than the adapter's"
            ));
        }
    }

    /// Whether the adapter's files and the model's order rows by different rules.
    fn is_foreign(&self) -> bool {
        self.is_gguf != (self.base.format == Format::Gguf)
    }

    fn finish(mut self, info: AdapterInfo) -> Result<AdapterWeights, AdapterMismatch> {
        for (role, members) in std::mem::take(&mut self.matrices) {
            let found = members.iter().flatten().count();
            if found < members.len() {
                let all = members.len();
                self.faults
                    .push(format!("{role}: only {found} of {all} are replaced"));
                continue;
            }
            let members = members.into_iter().flatten().collect();
            self.replaced.insert_stack(role, members);
        }
        if !self.faults.is_empty() {
            return Err(AdapterMismatch {
                faults: self.faults,
            });
        }
        AdapterWeights::new(
            &self.base.spec,
            AdapterParts {
                low_rank: self.low_rank,
                replaced: self.replaced,
                info,
            },
        )
    }

    fn bind_low_rank(&mut self, change: &LowRankChange) -> Result<(), String> {
        let name = &change.target;
        let found = self.targets.find(name).ok_or_else(|| nowhere(name))?;
        let mut bound = Vec::new();
        for (slot, index) in found {
            self.low_ranks(slot, index, change, &mut bound)?;
        }
        for (role, count, member, low_rank) in bound {
            self.insert(role, count, member, low_rank)?;
        }
        Ok(())
    }

    /// The changes of one slot's matrices: role, matrices of the role, which one, change.
    fn low_ranks(
        &self,
        slot: &Slot,
        index: usize,
        change: &LowRankChange,
        out: &mut Vec<(Role, usize, usize, LowRank)>,
    ) -> Result<(), String> {
        let name = &change.target;
        if !matches!(slot.kind, Kind::Matrix { .. } | Kind::Stack { .. }) {
            return Err(format!("`{name}` is no matrix"));
        }
        let (count, total) = (slot.kind.count(), slot.layout.total);
        let turned = slot.layout.orientation == Orientation::PartColumns;
        let (rows, cols) = if turned {
            (slot.kind.cols(), slot.kind.rows())
        } else {
            (slot.kind.rows(), slot.kind.cols())
        };
        let in_tensor = if slot.names.len() == count { 1 } else { count };
        // A stack in one tensor of two dimensions has one pair of factors for all.
        let shared = change.a.len() == 1 && change.b.len() == 1;
        let file_rows = if shared { in_tensor * total } else { total };
        let members = if shared { 1 } else { in_tensor };
        if (change.a.len(), change.b.len()) != (members, members) {
            let (a, b) = (change.a.len(), change.b.len());
            return Err(format!(
                "`{name}` has {a} and {b} pairs of factors, must be {members}"
            ));
        }
        for (a, b) in change.a.iter().zip(&change.b) {
            let found = (b.rows(), a.cols());
            if a.rows() != b.cols() || found != (file_rows, cols) {
                return Err(format!(
                    "`{name}` has factors of {:?} and {:?}, which do not make {:?}",
                    [a.rows(), a.cols()],
                    [b.rows(), b.cols()],
                    [file_rows, cols]
                ));
            }
        }
        // An embedding's number is checked with the factors.
        let is_embedding = slot.role == Role::Embedding;
        let lengths_of = if is_embedding {
            change.embedding_lengths_of
        } else {
            LengthsOf::Rows
        };
        if let Some(magnitude) = change.magnitude.as_ref().filter(|_| !is_embedding)
            && (magnitude.len() != file_rows || turned || !shared)
        {
            return Err(if turned || !shared {
                format!("`{name}`: DoRA of a matrix like this is not supported")
            } else {
                format!(
                    "`{name}` has {} magnitudes, must be {file_rows}",
                    magnitude.len()
                )
            });
        }
        let order = self.rope_order(slot.role);
        for at in 0..in_tensor {
            let member = if slot.names.len() == count { index } else { at };
            let (pair, first) = if shared { (0, at * total) } else { (at, 0) };
            let file_row = |row: usize| {
                let row = order.map_or(row, |order| order.source(row));
                first + slot.layout.rows.file_row(row)
            };
            let (a, b) = (&change.a[pair], &change.b[pair]);
            if (0..rows).any(|row| file_row(row) >= file_rows) {
                return Err(nowhere(name));
            }
            let in_order = b.rows() == rows && (0..rows).all(|row| file_row(row) == row);
            let own = if in_order {
                Arc::clone(b)
            } else {
                Arc::new(b.select((0..rows).map(file_row)))
            };
            let magnitude = change.magnitude.as_ref().map(|magnitude| {
                if is_embedding {
                    return magnitude.as_slice().into();
                }
                let own = (0..rows).map(|row| magnitude[file_row(row)]);
                own.collect()
            });
            let (a, b) = if turned {
                (Arc::new(own.transposed()), Arc::new(a.transposed()))
            } else {
                (Arc::clone(a), own)
            };
            let low_rank = LowRank {
                a,
                b,
                scale: change.scale,
                magnitude,
                lengths_of,
            };
            out.push((slot.role, count, member, low_rank));
        }
        Ok(())
    }

    fn insert(
        &mut self,
        role: Role,
        count: usize,
        member: usize,
        low_rank: LowRank,
    ) -> Result<(), String> {
        let members = self
            .low_rank
            .entry(role)
            .or_insert_with(|| vec![None; count]);
        match members[member].replace(low_rank) {
            None => Ok(()),
            Some(_) => Err(format!("{role} is changed twice")),
        }
    }

    fn bind_experts(&mut self, change: &ExpertsChange) -> Result<(), String> {
        let ExpertsChange {
            module,
            a,
            b,
            scale,
        } = change;
        let layer = module.split('.').find_map(|part| part.parse().ok());
        let layer = layer.ok_or_else(|| nowhere(module))?;
        let slot = |role| self.targets.role(Role::Layer(layer, role));
        let up = slot(LayerRole::ExpertUp).ok_or_else(|| nowhere(module))?;
        let down = slot(LayerRole::ExpertDown).ok_or_else(|| nowhere(module))?;
        let experts = up.kind.count();
        let rank = a.rows() / experts.max(1);
        if rank == 0 || a.rows() != rank * experts || b.cols() != a.rows() {
            return Err(format!(
                "`{module}` has factors of {:?} and {:?}, which do not fit {experts} experts",
                [a.rows(), a.cols()],
                [b.rows(), b.cols()]
            ));
        }
        let (size, hidden) = (up.kind.rows(), up.kind.cols());
        let gated = slot(LayerRole::ExpertGate).is_some();
        let up_rows = if gated { 2 * size } else { size };
        let parts: Vec<(LayerRole, Vec<usize>)> = if (b.rows(), a.cols()) == (up_rows, hidden) {
            let of = |role: LayerRole, first: usize| {
                let fused = slot(role).filter(|slot| slot.layout.total == 2 * size);
                let row = move |row: usize| match fused {
                    Some(slot) => slot.layout.rows.file_row(row),
                    // Of transformers 5, if the checkpoint has a tensor for each expert.
                    None => first + row,
                };
                (role, (0..size).map(row).collect())
            };
            if gated {
                vec![of(LayerRole::ExpertGate, 0), of(LayerRole::ExpertUp, size)]
            } else {
                vec![of(LayerRole::ExpertUp, 0)]
            }
        } else if (b.rows(), a.cols()) == (down.kind.rows(), down.kind.cols()) {
            vec![(LayerRole::ExpertDown, (0..b.rows()).collect())]
        } else {
            return Err(format!(
                "`{module}` has factors of {:?} and {:?}, which fit neither of the experts' \
                 matrices",
                [a.rows(), a.cols()],
                [b.rows(), b.cols()]
            ));
        };
        let scale = scale(rank);
        for expert in 0..experts {
            let own_a = Arc::new(a.select(expert * rank..(expert + 1) * rank));
            // The expert is innermost: every so many columns.
            let columns = b.transposed();
            let own_b = columns.select((0..rank).map(|r| r * experts + expert));
            let own_b = own_b.transposed();
            for (role, rows) in &parts {
                let low_rank = LowRank {
                    a: Arc::clone(&own_a),
                    b: Arc::new(own_b.select(rows.iter().copied())),
                    scale,
                    magnitude: None,
                    lengths_of: LengthsOf::Rows,
                };
                self.insert(Role::Layer(layer, *role), experts, expert, low_rank)?;
            }
        }
        Ok(())
    }

    fn bind_whole(&mut self, tensor: &RawTensor) -> Result<(), String> {
        let name = &tensor.name;
        let found = self.targets.find(name).ok_or_else(|| nowhere(name))?;
        let found: Vec<(Slot, usize)> = found
            .into_iter()
            .map(|(slot, index)| (slot.clone(), index))
            .collect();
        for (slot, index) in found {
            match slot.kind {
                Kind::Matrix { .. } | Kind::Stack { .. } => {
                    self.replace_matrices(tensor, &slot, index)?;
                }
                Kind::Vector { .. } | Kind::Vectors { .. } | Kind::Conv { .. } => {
                    self.replace_vector(tensor, &slot)?;
                }
            }
        }
        Ok(())
    }

    fn replace_matrices(
        &mut self,
        tensor: &RawTensor,
        slot: &Slot,
        index: usize,
    ) -> Result<(), String> {
        let name = &tensor.name;
        if self.rope_order(slot.role).is_some() {
            return Err(format!(
                "`{name}` replaces rows that the model's format orders in another way"
            ));
        }
        let count = slot.kind.count();
        let in_tensor = if slot.names.len() == count { 1 } else { count };
        let shape = FileShape::for_slot(slot, in_tensor);
        if !shape.matches(&tensor.shape) {
            let (found, expected) = (&tensor.shape, shape.dims());
            return Err(format!("`{name}` is {found:?}, must be {expected:?}"));
        }
        let storage = Storage::Plain(tensor.clone());
        let orientation = slot.layout.orientation;
        for at in 0..in_tensor {
            let member = if slot.names.len() == count { index } else { at };
            let matrix = bind::member_matrix(slot, &storage, orientation, at);
            let matrix = matrix.map_err(|error| format!("`{name}`: {error}"))?;
            let members = self.matrices.entry(slot.role);
            members.or_insert_with(|| vec![None; count])[member] = Some(matrix);
        }
        Ok(())
    }

    fn replace_vector(&mut self, tensor: &RawTensor, slot: &Slot) -> Result<(), String> {
        let name = &tensor.name;
        let expected = slot.kind.count() * slot.layout.total * slot.kind.cols();
        let found = tensor.shape.iter().product::<usize>();
        let is_conv = matches!(slot.kind, Kind::Conv { .. });
        if found != expected || (is_conv && self.conv_shape != ConvShape::ChannelFirst) {
            let shape = &tensor.shape;
            return Err(format!(
                "`{name}` is {shape:?}, must have {expected} values"
            ));
        }
        if slot.transform == Transform::NegExp {
            return Err(format!("`{name}` cannot be replaced"));
        }
        super::tensors::values(tensor)?;
        let values = bind::values(slot, tensor).map_err(|error| format!("`{name}`: {error}"))?;
        let values = match self.rope_order(slot.role) {
            Some(order) => order.reordered(&values),
            None => values,
        };
        self.replaced.insert_vector(slot.role, values);
        Ok(())
    }

    /// How rows of queries and keys move between the adapter's order and the model's.
    fn rope_order(&self, role: Role) -> Option<RopeOrder> {
        use LayerRole::*;
        let Role::Layer(layer, of_layer) = role else {
            return None;
        };
        let spec = &self.base.spec;
        let rotates = matches!(
            of_layer,
            Query | QueryBias | Key | KeyBias | QueryNorm | QueryNormBias | KeyNorm | KeyNormBias
        );
        if !rotates || !self.is_foreign() || !spec.facts().gguf_pairs_neighbours {
            return None;
        }
        let mixer = spec.layers.get(layer)?.mixer()?;
        let attention = mixer.as_attention()?;
        // A layer without rope has the order of the others.
        let mut others = spec.mixers().filter_map(|(_, mixer)| mixer.rope());
        let rope = mixer.rope().or_else(|| others.next())?;
        Some(RopeOrder {
            head_dim: attention.head_dim,
            dims: rope.dims,
            to: match self.base.format {
                Format::Gguf => RopePairs::Interleaved,
                Format::Safetensors | Format::Mlx => RopePairs::Halves,
            },
        })
    }
}

fn nowhere(name: &str) -> String {
    format!("`{name}` fits no weight of the model")
}
