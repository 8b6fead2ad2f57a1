//! The quantization error, and the report.

use std::collections::BTreeMap;

use crate::Class;

/// Squared sums over values; errors of several tensors add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantizationError {
    pub values: u64,
    squares: f64,
    errors: f64,
    pub largest: f32,
}

impl QuantizationError {
    pub fn add(&mut self, was: &[f32], is: &[f32]) {
        self.values += was.len() as u64;
        for (was, is) in was.iter().zip(is) {
            // Values that are not finite are written unchanged.
            if !was.is_finite() {
                continue;
            }
            let apart = was - is;
            self.squares += f64::from(*was) * f64::from(*was);
            self.errors += f64::from(apart) * f64::from(apart);
            self.largest = self.largest.max(apart.abs());
        }
    }

    pub fn join(&mut self, other: &QuantizationError) {
        self.values += other.values;
        self.squares += other.squares;
        self.errors += other.errors;
        self.largest = self.largest.max(other.largest);
    }

    /// Root mean square of the errors relative to that of the values: 0 is exact, 1 as bad as
    /// zeros.
    pub fn relative(&self) -> f64 {
        match self.squares {
            0.0 => self.errors.sqrt(),
            squares => (self.errors / squares).sqrt(),
        }
    }
}

/// One tensor of the result.
#[derive(Clone, Debug)]
pub struct TensorReport {
    pub name: String,
    pub class: Class,
    /// The storage type.
    pub stored: String,
    pub quantized: bool,
    pub bytes: u64,
    pub error: QuantizationError,
}

/// The result of a conversion.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub tensors: Vec<TensorReport>,
    /// Remarks for the user: fallback types, parts left out.
    pub notes: Vec<String>,
    pub source_bytes: u64,
    pub bytes: u64,
}

impl Report {
    /// Over all tensors.
    pub fn whole(&self) -> QuantizationError {
        joined(self.tensors.iter())
    }

    pub fn by_class(&self) -> BTreeMap<Class, QuantizationError> {
        let mut classes: BTreeMap<Class, Vec<&TensorReport>> = BTreeMap::new();
        for tensor in &self.tensors {
            classes.entry(tensor.class).or_default().push(tensor);
        }
        let classes = classes.into_iter();
        classes
            .map(|(class, tensors)| (class, joined(tensors.into_iter())))
            .collect()
    }

    /// Tensors and bytes by storage type.
    pub fn by_type(&self) -> BTreeMap<&str, (usize, u64)> {
        let mut types = BTreeMap::new();
        for tensor in &self.tensors {
            let entry: &mut (usize, u64) = types.entry(tensor.stored.as_str()).or_default();
            entry.0 += 1;
            entry.1 += tensor.bytes;
        }
        types
    }

    /// The tensor with the largest relative error.
    pub fn worst(&self) -> Option<&TensorReport> {
        let by_error = |a: &&TensorReport, b: &&TensorReport| {
            a.error.relative().total_cmp(&b.error.relative())
        };
        self.tensors.iter().max_by(by_error)
    }

    pub fn bits_per_weight(&self) -> f64 {
        let bytes: u64 = self.tensors.iter().map(|tensor| tensor.bytes).sum();
        let values: u64 = self.tensors.iter().map(|tensor| tensor.error.values).sum();
        bytes as f64 * 8.0 / values.max(1) as f64
    }
}

fn joined<'a>(tensors: impl Iterator<Item = &'a TensorReport>) -> QuantizationError {
    let mut all = QuantizationError::default();
    tensors.for_each(|tensor| all.join(&tensor.error));
    all
}
