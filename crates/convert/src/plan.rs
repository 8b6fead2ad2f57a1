//! Every tensor of the result: its name, shape and the source of its values.

use std::collections::HashMap;

use loquat_spec::{
    ConvShape, Kind, LayerRole, Mixer, ModelSpec, Naming, Orientation, Role, RopeOrder, RopePairs,
    Slot, Transform,
};

use crate::rows::{Part, Rows};
use crate::source::Source;
use crate::{Class, ConvertError};

/// One tensor to write, before its type is chosen.
pub(crate) struct Planned<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    /// The first of the roles it fills.
    pub role: Role,
    pub class: Class,
    pub content: Content<'a>,
}

pub(crate) enum Content<'a> {
    Matrix(Rows<'a>),
    Values(Vec<f32>),
}

impl Planned<'_> {
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// The result's spec and naming.
pub(crate) struct Target<'a> {
    pub spec: &'a ModelSpec,
    pub naming: &'a Naming,
    /// Values of roles that are config fields in the source and tensors in the result.
    pub generated: &'a HashMap<Role, Vec<f32>>,
}

/// The tensors that `target` needs, in the order of its roles.
pub(crate) fn plan<'a>(
    source: &'a Source,
    target: &Target<'_>,
) -> Result<Vec<Planned<'a>>, ConvertError> {
    let mut planned: Vec<Planned> = Vec::new();
    let mut indices: HashMap<String, usize> = HashMap::new();
    for slot in target.naming.slots(target.spec) {
        for (index, name) in slot.names.iter().enumerate() {
            let position = *indices.entry(name.clone()).or_insert_with(|| {
                let mut tensor = empty(&slot, name, target.naming.conv_shape);
                if let Some(shape) = source.odd_shape(&slot) {
                    tensor.shape = shape;
                }
                planned.push(tensor);
                planned.len() - 1
            });
            let order = rope_order(source.spec(), target.spec, slot.role)?;
            match &mut planned[position].content {
                Content::Matrix(rows) => rows.parts.push(part(source, &slot, index, order)?),
                Content::Values(values) => {
                    let own = values_of(source, target, &slot, order)?;
                    copy_values(&slot, &own, values);
                }
            }
        }
    }
    Ok(planned)
}

/// The slot's tensor, still without parts.
fn empty<'a>(slot: &Slot, name: &str, conv: ConvShape) -> Planned<'a> {
    let (count, total, width) = (slot.kind.count(), slot.layout.total, slot.kind.cols());
    let members = if slot.names.len() == count { 1 } else { count };
    let transposed = slot.layout.orientation == Orientation::Columns;
    if !Source::is_matrix(slot.kind) {
        return Planned {
            name: name.to_owned(),
            shape: match (slot.kind, conv) {
                (Kind::Conv { .. }, ConvShape::ChannelFirst) => vec![total, 1, width],
                (Kind::Conv { .. }, ConvShape::ChannelLast) => vec![total, width, 1],
                (Kind::Conv { .. }, ConvShape::Flat) => vec![total, width],
                (Kind::Vectors { count, .. }, _) => vec![count, total],
                _ => vec![total],
            },
            role: slot.role,
            class: Class::Small,
            content: Content::Values(vec![0.0; count * total * width]),
        };
    }
    let cols = match slot.layout.orientation {
        Orientation::PartColumns => slot.kind.rows(),
        Orientation::Rows | Orientation::Columns => slot.kind.cols(),
    };
    let matrix = if transposed {
        [cols, total]
    } else {
        [total, cols]
    };
    // A stack keeps its dimension even with one member.
    let stacked = matches!(slot.kind, Kind::Stack { .. }) && slot.names.len() == 1;
    let shape = if !stacked {
        matrix.to_vec()
    } else if is_one_matrix(slot) {
        vec![members * total, cols]
    } else {
        [&[members], matrix.as_slice()].concat()
    };
    Planned {
        name: name.to_owned(),
        shape,
        role: slot.role,
        class: Class::for_role(slot.role),
        content: Content::Matrix(Rows {
            parts: Vec::new(),
            total,
            members,
            transposed,
        }),
    }
}

/// Whether heads are stacked in one matrix, as when keys and values share it.
fn is_one_matrix(slot: &Slot) -> bool {
    use LayerRole::{KeyAbsorb, ValueUp};
    let of_head = matches!(slot.role, Role::Layer(_, KeyAbsorb | ValueUp));
    let own = match slot.layout.orientation {
        Orientation::PartColumns => slot.kind.cols(),
        Orientation::Rows | Orientation::Columns => slot.kind.rows(),
    };
    of_head && slot.layout.total > own
}

/// The role's matrices, of which tensor number `index` holds one or all.
fn part<'a>(
    source: &'a Source,
    slot: &Slot,
    index: usize,
    order: Option<RopeOrder>,
) -> Result<Part<'a>, ConvertError> {
    let stack = source.merged(slot.role).ok_or_else(|| missing(slot.role))?;
    let own = match slot.names.len() {
        1 => stack,
        _ => vec![*stack.get(index).ok_or_else(|| missing(slot.role))?],
    };
    Ok(Part {
        stack: own,
        map: slot.layout.rows,
        turned: slot.layout.orientation == Orientation::PartColumns,
        order,
    })
}

/// The role's values as the target stores them.
fn values_of(
    source: &Source,
    target: &Target<'_>,
    slot: &Slot,
    order: Option<RopeOrder>,
) -> Result<Vec<f32>, ConvertError> {
    if let Some(values) = target.generated.get(&slot.role) {
        return Ok(values.clone());
    }
    let (mut values, from) = source.stored(slot.role).ok_or_else(|| missing(slot.role))?;
    if from != slot.transform {
        values.iter_mut().for_each(|value| {
            *value = match from {
                Transform::None => *value,
                Transform::AddOne => *value + 1.0,
                Transform::NegExp => -value.exp(),
            };
            *value = match slot.transform {
                Transform::None => *value,
                Transform::AddOne => *value - 1.0,
                Transform::NegExp => (-*value).ln(),
            };
        });
    }
    Ok(match order {
        Some(order) => order.reordered(&values),
        None => values,
    })
}

fn copy_values(slot: &Slot, own: &[f32], out: &mut [f32]) {
    let (count, rows, width) = (slot.kind.count(), slot.kind.rows(), slot.kind.cols());
    for member in 0..count {
        for row in 0..rows {
            let from = (member * rows + row) * width;
            let to = (member * slot.layout.total + slot.layout.rows.file_row(row)) * width;
            out[to..to + width].copy_from_slice(&own[from..from + width]);
        }
    }
}

/// How a role's rows move if source and target have different rope pairs.
fn rope_order(
    from: &ModelSpec,
    to: &ModelSpec,
    role: Role,
) -> Result<Option<RopeOrder>, ConvertError> {
    use LayerRole::*;
    let Role::Layer(layer, layer_role) = role else {
        return Ok(None);
    };
    let mixer = |spec: &ModelSpec| -> Option<(RopePairs, usize, usize, bool)> {
        let mixer = spec.layers.get(layer)?.mixer()?;
        // A layer without rope gets the order of the others.
        let mut others = spec.mixers().filter_map(|(_, mixer)| mixer.rope());
        let rope = mixer.rope().or_else(|| others.next())?;
        Some(match mixer {
            Mixer::Attention(attention) => (rope.pairs, rope.dims, attention.head_dim, true),
            _ => (rope.pairs, rope.dims, 0, false),
        })
    };
    let (Some(from_mixer), Some(to_mixer)) = (mixer(from), mixer(to)) else {
        return Ok(None);
    };
    if from_mixer.0 == to_mixer.0 {
        return Ok(None);
    }
    let (pairs, dims, head_dim, is_attention) = to_mixer;
    if !is_attention {
        return Err(ConvertError::Differs {
            target: "the other format",
            why: "its rope pairs other values, which can be reordered only in attention".to_owned(),
        });
    }
    let rotates = matches!(
        layer_role,
        Query | QueryBias | Key | KeyBias | QueryNorm | QueryNormBias | KeyNorm | KeyNormBias
    );
    Ok(rotates.then_some(RopeOrder {
        head_dim,
        dims,
        to: pairs,
    }))
}

fn missing(role: Role) -> ConvertError {
    ConvertError::Differs {
        target: "the other format",
        why: format!("it needs {role:?}, which the source does not have"),
    }
}
