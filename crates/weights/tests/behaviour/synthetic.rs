//! Checkpoints generated from a config: every tensor of its roles, with values that identify their
//! position.

use std::collections::HashSet;

use loquat_spec::families::{self, Described};
use loquat_spec::{Config, ConvShape, Kind, LayerRole, ModelSpec, Naming, Orientation, Role, Slot};
use loquat_weights::{Blob, Dtype, MlxQuantization, RawTensor, Weights, WeightsError, bind, fit};
use serde_json::{Value, json};

pub struct Synthetic {
    pub spec: ModelSpec,
    pub namings: Vec<Naming>,
    pub tensors: Vec<RawTensor>,
}

impl Synthetic {
    /// A checkpoint of `config` with its naming number `which`.
    pub fn new(config: &Value, which: usize) -> Self {
        let config = Config::parse(&config.to_string(), "config.json").unwrap();
        let Described { spec, namings, .. } =
            families::from_config(&config).unwrap_or_else(|error| panic!("{error}"));
        let tensors = tensors(&spec, &namings[which]);
        Self {
            spec,
            namings,
            tensors,
        }
    }

    pub fn bind(&self) -> Result<Weights, WeightsError> {
        self.bind_as(None)
    }

    pub fn bind_quantized(&self, table: Value) -> Result<Weights, WeightsError> {
        let config = Config::parse(&json!({"quantization": table}).to_string(), "config.json");
        let quantization = MlxQuantization::from_config(&config.unwrap()).unwrap();
        self.bind_as(quantization.as_ref())
    }

    /// Binds as an opened checkpoint does.
    fn bind_as(&self, quantization: Option<&MlxQuantization>) -> Result<Weights, WeightsError> {
        let (spec, naming) = fit(&self.spec, &self.namings, &self.tensors, quantization)?;
        bind(&spec, &naming, &self.tensors, quantization)
    }

    pub fn take(&mut self, name: &str) -> RawTensor {
        let at = self.tensors.iter().position(|tensor| tensor.name == name);
        let at = at.unwrap_or_else(|| panic!("no {name}"));
        self.tensors.remove(at)
    }

    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        let tensor = RawTensor::new(name, dtype, shape.to_vec(), Blob::from_vec(bytes));
        self.tensors.push(tensor.unwrap());
    }
}

/// Every name's tensor; each value is its index.
fn tensors(spec: &ModelSpec, naming: &Naming) -> Vec<RawTensor> {
    let mut added = HashSet::new();
    let mut tensors = Vec::new();
    for slot in naming.slots(spec) {
        for name in &slot.names {
            if added.insert(name.clone()) {
                let shape = file_shape(&slot, naming.conv_shape);
                let len: usize = shape.iter().product();
                let bytes = (0..len).flat_map(|index| (index as f32).to_le_bytes());
                let data = Blob::from_vec(bytes.collect());
                tensors.push(RawTensor::new(name, Dtype::F32, shape, data).unwrap());
            }
        }
    }
    tensors
}

fn file_shape(slot: &Slot, conv: ConvShape) -> Vec<usize> {
    let (rows, cols, total) = (slot.kind.rows(), slot.kind.cols(), slot.layout.total);
    let matrix = match slot.layout.orientation {
        Orientation::Rows => vec![total, cols],
        Orientation::Columns => vec![cols, total],
        Orientation::PartColumns => vec![total, rows],
    };
    match slot.kind {
        Kind::Matrix { .. } => matrix,
        Kind::Stack { count, .. } if slot.names.len() < count => [vec![count], matrix].concat(),
        Kind::Stack { .. } => matrix,
        Kind::Vector { .. } => vec![total],
        Kind::Vectors { count, .. } => vec![count, total],
        Kind::Conv { kernel, .. } => match conv {
            ConvShape::ChannelFirst => vec![total, 1, kernel],
            ConvShape::ChannelLast => vec![total, kernel, 1],
            ConvShape::Flat => vec![total, kernel],
        },
    }
}

/// All values of a layer's role, matrix after matrix, row after row.
pub fn values(weights: &Weights, layer: usize, role: LayerRole) -> Vec<f32> {
    let role = Role::Layer(layer, role);
    let stack = weights.stack(role).unwrap_or_else(|| panic!("no {role}"));
    let mut all = Vec::new();
    for matrix in stack {
        for row in 0..matrix.rows() {
            let mut out = vec![0.0; matrix.cols()];
            matrix.decode_row(row, &mut out).unwrap();
            all.extend(out);
        }
    }
    all
}

pub fn vector(weights: &Weights, layer: usize, role: LayerRole) -> &[f32] {
    let role = Role::Layer(layer, role);
    weights.vector(role).unwrap_or_else(|| panic!("no {role}"))
}
