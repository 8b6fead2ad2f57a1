//! Adapters: small changes to a model's weights, bound to the same roles as the weights.
//!
//! Files of peft, mlx-lm and llama.cpp become one form. A matrix gets low-rank factors, which stay
//! factors, or is replaced as a whole; a norm or a bias is replaced. Whether and how a change is
//! folded into the weights is decided by backends and `convert`.

mod bind;
mod columns;
mod file;
mod gguf;
mod mlx;
mod peft;
mod tensors;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use loquat_spec::{Kind, ModelSpec, Role};

pub use columns::ColumnLengths;
pub use file::{AdapterBase, AdapterFault, is_adapter};

use crate::{Matrix, Weights};

/// What an adapter changes, by role.
#[derive(Clone, Debug, Default)]
pub struct AdapterWeights {
    /// For each role, an entry for each of its matrices.
    low_rank: BTreeMap<Role, Vec<Option<LowRank>>>,
    replaced: Weights,
    info: AdapterInfo,
    rank: usize,
    fingerprint: u64,
}

/// What an adapter's files say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Of the file or folder, for display.
    pub name: String,
    /// The format, for display: `PEFT`, `MLX`, `GGUF`.
    pub format: &'static str,
    /// The base model's name. Quantized and renamed copies have other names, so that it proves
    /// nothing; see [`base_warning`](Self::base_warning).
    pub base: Option<String>,
}

impl AdapterInfo {
    /// A sentence for people if the base model seems to be another than the one with this name.
    pub fn base_warning(&self, model: &str) -> Option<String> {
        let base = self.base.as_deref()?;
        self.names_other_base(model).then(|| {
            let name = &self.name;
            format!("the adapter {name} names the base model {base}, and the model is {model}")
        })
    }

    /// Whether the base model seems to be another than the one with this name: neither name's words
    /// contain the other's. Copies of a model usually have its words and more, such as
    /// `Llama-3.2-1B` and `Llama-3.2-1B-Instruct-4bit`. Paths say nothing.
    fn names_other_base(&self, model: &str) -> bool {
        let Some(base) = self.base.as_deref().and_then(name_words) else {
            return false;
        };
        let Some(model) = name_words(model) else {
            return false;
        };
        !base.is_subset(&model) && !model.is_subset(&base)
    }
}

/// The words and numbers of a hub's or the catalog's name without its owner, in lower case.
fn name_words(name: &str) -> Option<BTreeSet<String>> {
    let is_path = name.starts_with(['/', '.', '~', '\\']) || name.matches('/').count() > 1;
    // A bare word may be a folder's name.
    if is_path || !name.contains(['/', ':']) {
        return None;
    }
    let name = name.split('@').next().unwrap_or(name);
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let parts = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    // `llama3` is two, as in `llama-3`.
    let words = parts.flat_map(|part| {
        let bytes = part.as_bytes();
        bytes.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit())
    });
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    Some(words.collect())
}

/// `W + scale · b · a` in place of a matrix `W`. With magnitudes (DoRA), each row or column of the
/// sum then has its magnitude as length.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[rank][column]`. Roles whose rows are parts of one tensor share it.
    pub a: Arc<Factor>,
    /// `[row][rank]`
    pub b: Arc<Factor>,
    /// Without the strength that a request chooses.
    pub scale: f32,
    /// For each row or column, as `lengths_of` says.
    pub magnitude: Option<Arc<[f32]>>,
    pub lengths_of: LengthsOf,
}

/// What the magnitudes of DoRA are the lengths of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthsOf {
    #[default]
    Rows,
    /// Only of an embedding, by peft: see [`ColumnLengths`].
    Columns,
}

/// A matrix of decoded values.
#[derive(Clone, PartialEq)]
pub struct Factor {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    is_bf16: bool,
}

impl fmt::Debug for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Factor({} × {})", self.rows, self.cols)
    }
}

impl Factor {
    /// `values` are `rows × cols`, row after row; `None` if their number is another.
    pub fn new(rows: usize, cols: usize, values: Vec<f32>) -> Option<Self> {
        let fits = rows.checked_mul(cols) == Some(values.len());
        fits.then(|| Self {
            is_bf16: values.iter().all(|value| value.to_bits() & 0xffff == 0),
            rows,
            cols,
            values,
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn values(&self) -> &[f32] {
        &self.values
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    /// Whether bf16 holds every value exactly.
    pub fn is_bf16(&self) -> bool {
        self.is_bf16
    }

    /// The columns as rows.
    pub(crate) fn transposed(&self) -> Self {
        let values = (0..self.cols)
            .flat_map(|col| (0..self.rows).map(move |row| self.values[row * self.cols + col]));
        Self {
            rows: self.cols,
            cols: self.rows,
            values: values.collect(),
            is_bf16: self.is_bf16,
        }
    }

    /// The rows with these indices, which must exist.
    pub(crate) fn select(&self, rows: impl ExactSizeIterator<Item = usize>) -> Self {
        let count = rows.len();
        let values = rows.flat_map(|row| self.row(row).iter().copied());
        Self {
            rows: count,
            cols: self.cols,
            values: values.collect(),
            is_bf16: self.is_bf16,
        }
    }
}

impl LowRank {
    pub fn rank(&self) -> usize {
        self.a.rows
    }
}

/// What an adapter does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterMismatch {
    /// One for each tensor or role, a sentence without its end.
    pub faults: Vec<String>,
}

/// How many faults a message lists; the rest are counted.
const LISTED: usize = 8;

impl fmt::Display for AdapterMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = self.faults.len().min(LISTED);
        f.write_str(&self.faults[..listed].join("; "))?;
        match self.faults.len() - listed {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// The changes that make an adapter.
#[derive(Clone, Debug, Default)]
pub struct AdapterParts {
    /// For each role, an entry for each of its matrices.
    pub low_rank: BTreeMap<Role, Vec<Option<LowRank>>>,
    /// Whole matrices and vectors.
    pub replaced: Weights,
    pub info: AdapterInfo,
}

impl AdapterWeights {
    /// Checks the parts against the model. The head may be changed even if it is tied to the
    /// embedding, which then stays as it is.
    pub fn new(spec: &ModelSpec, parts: AdapterParts) -> Result<Self, AdapterMismatch> {
        let AdapterParts {
            low_rank,
            replaced,
            info,
        } = parts;
        let kinds: BTreeMap<Role, Kind> = adaptable_roles(spec).into_iter().collect();
        let mut mismatch = AdapterMismatch::default();
        for (role, members) in &low_rank {
            if let Some(fault) = low_rank_fault(*role, kinds.get(role).copied(), members) {
                mismatch.faults.push(format!("{role}: {fault}"));
            }
        }
        for (role, fault) in replacement_faults(&kinds, &replaced) {
            mismatch.faults.push(format!("{role}: {fault}"));
        }
        if low_rank.is_empty() && replaced.is_empty() {
            mismatch.faults.push("it changes nothing".to_owned());
        }
        if mismatch != AdapterMismatch::default() {
            return Err(mismatch);
        }
        let changes = || low_rank.values().flatten().flatten();
        let rank = changes().map(LowRank::rank).max().unwrap_or(0);
        let mut adapter = Self {
            rank,
            fingerprint: 0,
            low_rank,
            replaced,
            info,
        };
        adapter.fingerprint = adapter.compute_fingerprint();
        Ok(adapter)
    }

    /// The same under another name than the file's.
    pub fn with_name(mut self, name: String) -> Self {
        self.info.name = name;
        self
    }

    pub fn info(&self) -> &AdapterInfo {
        &self.info
    }

    /// The largest rank of its factors; 0 if it has none.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Tells adapters apart by their content.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The changes of each of the role's matrices.
    pub fn low_rank(&self, role: Role) -> Option<&[Option<LowRank>]> {
        self.low_rank.get(&role).map(Vec::as_slice)
    }

    /// All low-rank changes: role, which of its matrices, change.
    pub fn low_ranks(&self) -> impl Iterator<Item = (Role, usize, &LowRank)> {
        self.low_rank.iter().flat_map(|(role, members)| {
            let members = members.iter().enumerate();
            members.filter_map(|(member, change)| Some((*role, member, change.as_ref()?)))
        })
    }

    /// Matrices and vectors that take the place of the model's.
    pub fn replaced(&self) -> &Weights {
        &self.replaced
    }

    /// Every role that it changes.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        let matrices = self.replaced.roles();
        self.low_rank.keys().copied().chain(matrices)
    }

    /// Bytes of all values as `f32`, rows of factors in groups of 16, and each factor in whole cache
    /// lines: the most that a backend needs for them.
    pub fn bytes(&self) -> u64 {
        let factors = self.low_ranks().map(|(_, _, change)| {
            let magnitude = change.magnitude.as_ref().map_or(0, |values| values.len());
            // Shared factors count for each role, since a backend may store them so. A matrix with
            // magnitudes has three numbers for each row besides.
            let rows = change.b.rows.next_multiple_of(16);
            let first = change.a.values.len().next_multiple_of(16);
            first + rows * change.rank() + 4 * magnitude
        });
        let matrices = self.replaced.matrices();
        let matrices = matrices.map(|(_, matrix)| matrix.rows() * matrix.cols());
        let vectors = self.replaced.vectors().map(|(_, values)| values.len());
        factors.chain(matrices).chain(vectors).sum::<usize>() as u64 * 4
    }

    fn compute_fingerprint(&self) -> u64 {
        let mut hash = Fingerprint::default();
        for (role, member, change) in self.low_ranks() {
            hash.text(&format!("{role} {member} {}", change.rank()));
            hash.values(&change.a.values);
            hash.values(&change.b.values);
            hash.values(&[change.scale]);
            hash.values(change.magnitude.as_deref().unwrap_or_default());
        }
        for (role, matrix) in self.replaced.matrices() {
            hash.text(&format!("{role} {}", matrix.rows()));
            hash.matrix(matrix);
        }
        for (role, values) in self.replaced.vectors() {
            hash.text(&role.to_string());
            hash.values(values);
        }
        hash.0
    }
}

/// The roles that an adapter may change.
fn adaptable_roles(spec: &ModelSpec) -> Vec<(Role, Kind)> {
    let mut roles = spec.roles();
    if spec.head.tied {
        roles.push((
            Role::Head,
            Kind::Matrix {
                rows: spec.vocab_size,
                cols: spec.hidden_size,
            },
        ));
    }
    roles
}

fn low_rank_fault(role: Role, kind: Option<Kind>, members: &[Option<LowRank>]) -> Option<String> {
    let Some(kind) = kind else {
        return Some("the model has no such matrix".to_owned());
    };
    if !matches!(kind, Kind::Matrix { .. } | Kind::Stack { .. }) {
        return Some("only matrices have low-rank changes".to_owned());
    }
    if members.len() != kind.count() {
        let (found, expected) = (members.len(), kind.count());
        return Some(format!("{found} matrices, must be {expected}"));
    }
    let (rows, cols) = (kind.rows(), kind.cols());
    members.iter().flatten().find_map(|change| {
        let found = [change.a.rows, change.a.cols, change.b.rows, change.b.cols];
        let rank = change.a.rows;
        if rank == 0 || found != [rank, cols, rows, rank] {
            return Some(format!(
                "factors of {:?} and {:?} do not make a matrix of {:?}",
                &found[..2],
                &found[2..],
                [rows, cols]
            ));
        }
        if change.lengths_of == LengthsOf::Columns && role != Role::Embedding {
            return Some("only an embedding has lengths of columns".to_owned());
        }
        let (expected, what) = match change.lengths_of {
            LengthsOf::Columns => (cols, "columns"),
            LengthsOf::Rows => (rows, "rows"),
        };
        let magnitude = change.magnitude.as_ref();
        let lengths = magnitude.map_or(expected, |values| values.len());
        if lengths != expected {
            return Some(format!("{lengths} magnitudes for {expected} {what}"));
        }
        let values = change.a.values.iter().chain(&change.b.values);
        let magnitudes = change.magnitude.iter().flat_map(|values| values.iter());
        let finite = values.chain(magnitudes).all(|value| value.is_finite());
        (!finite || !change.scale.is_finite()).then(|| "a value is not a finite number".to_owned())
    })
}

fn replacement_faults(kinds: &BTreeMap<Role, Kind>, replaced: &Weights) -> Vec<(Role, String)> {
    let mut faults = Vec::new();
    for role in replaced.roles() {
        let Some(kind) = kinds.get(&role) else {
            faults.push((role, "the model has no such weight".to_owned()));
            continue;
        };
        if let Some(stack) = replaced.stack(role) {
            let expected = (kind.rows(), kind.cols());
            let fits = |matrix: &Matrix| (matrix.rows(), matrix.cols()) == expected;
            if stack.len() != kind.count() || !stack.iter().all(fits) {
                faults.push((role, format!("must be {} of {expected:?}", kind.count())));
            } else if !stack.iter().all(is_finite) {
                faults.push((role, "a value is not a finite number".to_owned()));
            }
        }
        if let Some(values) = replaced.vector(role) {
            let expected = kind.count() * kind.rows() * kind.cols();
            if values.len() != expected {
                faults.push((role, format!("{} values, must be {expected}", values.len())));
            } else if !values.iter().all(|value| value.is_finite()) {
                faults.push((role, "a value is not a finite number".to_owned()));
            }
        }
    }
    faults
}

fn is_finite(matrix: &Matrix) -> bool {
    let mut values = vec![0.0; matrix.cols()];
    (0..matrix.rows()).all(|row| {
        let decoded = matrix.decode_row(row, &mut values).is_ok();
        decoded && values.iter().all(|value| value.is_finite())
    })
}

/// FNV-1a over words of four bytes.
struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    fn word(&mut self, word: u32) {
        self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x100_0000_01b3);
        // The product's high half reaches the low bits of the next.
        self.0 ^= self.0 >> 32;
    }

    fn text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.word(u32::from(byte)));
    }

    fn values(&mut self, values: &[f32]) {
        self.word(values.len() as u32);
        values.iter().for_each(|value| self.word(value.to_bits()));
    }

    fn matrix(&mut self, matrix: &Matrix) {
        let mut values = vec![0.0; matrix.cols()];
        for row in 0..matrix.rows() {
            if matrix.decode_row(row, &mut values).is_ok() {
                self.values(&values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unlike_names_are_other_bases() {
        for (base, model, expected) in [
            ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B", false),
            (
                "meta-llama/Llama-3.2-1B",
                "mlx-community/Llama-3.2-1B-Instruct-4bit",
                false,
            ),
            ("unsloth/Llama-3.2-1B-Instruct", "llama3.2:1b", false),
            ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2:135m", false),
            ("a/SmolLM2-135M", "b/smollm2-135m-gguf@main:Q8_0", false),
            ("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B", true),
            // Copies of one model, which is why a difference is not an error.
            (
                "unsloth/llama-3-8b-bnb-4bit",
                "meta-llama/Meta-Llama-3-8B",
                true,
            ),
            (
                "mistralai/Mistral-7B-v0.1",
                "TheBloke/Mistral-7B-GGUF",
                true,
            ),
            ("Qwen/Qwen2.5-0.5B", "qwen2.5:0.5b", false),
            // Folders are named freely.
            ("/home/me/models/base", "meta-llama/Llama-3.2-1B", false),
            ("./base/model", "meta-llama/Llama-3.2-1B", false),
            ("base", "meta-llama/Llama-3.2-1B", false),
            ("Qwen/Qwen2.5-0.5B", "my-model", false),
            ("Qwen/Qwen2.5-0.5B", "/models/llama", false),
        ] {
            let info = AdapterInfo {
                base: Some(base.to_owned()),
                ..AdapterInfo::default()
            };
            assert_eq!(info.names_other_base(model), expected, "{base}, {model}");
        }
        assert!(!AdapterInfo::default().names_other_base("a/b"));
        let info = AdapterInfo {
            name: "poet".to_owned(),
            base: Some("Qwen/Qwen2.5-0.5B".to_owned()),
            ..AdapterInfo::default()
        };
        let warning = info.base_warning("meta-llama/Llama-3.2-1B").unwrap();
        for named in ["poet", "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B"] {
            assert!(warning.contains(named), "{warning}");
        }
        assert_eq!(info.base_warning("qwen2.5:0.5b"), None);
    }
}
