//! Adapters with random weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_spec::{Kind, LayerRole, ModelSpec, Role};
use loquat_weights::{
    AdapterInfo, AdapterMismatch, AdapterParts, AdapterWeights, Factor, LengthsOf, LowRank, Weights,
};

use crate::SplitMix64;

/// An adapter to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterRecipe {
    pub rank: usize,
    pub seed: u64,
    /// Values that bf16 holds exactly, as trainers store them.
    pub bf16: bool,
    /// With magnitudes, as DoRA has.
    pub magnitudes: bool,
    /// Also changes the embedding, the head, norms and biases.
    pub everything: bool,
}

impl AdapterRecipe {
    /// Of all matrices in the layers, in bf16.
    pub fn linear(rank: usize, seed: u64) -> Self {
        Self {
            rank,
            seed,
            bf16: true,
            magnitudes: false,
            everything: false,
        }
    }

    /// The adapter for a model. Its changes are about a tenth as large as the weights of a usual
    /// model.
    pub fn make(&self, spec: &ModelSpec) -> Result<AdapterWeights, AdapterMismatch> {
        let mut random = SplitMix64::new(self.seed);
        let mut low_rank = BTreeMap::new();
        let mut replaced = Weights::default();
        for (role, kind) in spec.roles() {
            match kind {
                Kind::Matrix { .. } | Kind::Stack { .. } if self.adapts(role) => {
                    let members =
                        (0..kind.count()).map(|_| Some(self.low_rank(&mut random, role, kind)));
                    low_rank.insert(role, members.collect());
                }
                Kind::Vector { len } if self.everything && role.is_token_vector() => {
                    let near = if is_bias(role) { 0.0 } else { 1.0 };
                    let values = (0..len).map(|_| near + random.within(0.1));
                    replaced.insert_vector(role, values.collect());
                }
                _ => {}
            }
        }
        let info = AdapterInfo {
            name: format!("random rank {}", self.rank),
            format: "random",
            base: None,
        };
        AdapterWeights::new(
            spec,
            AdapterParts {
                low_rank,
                replaced,
                info,
            },
        )
    }

    fn adapts(&self, role: Role) -> bool {
        match role {
            // A router could choose other experts at a tie.
            Role::Layer(_, LayerRole::Router | LayerRole::SharedRouter) => false,
            Role::Layer(..) => true,
            Role::Embedding | Role::Head => self.everything,
            _ => false,
        }
    }

    fn low_rank(&self, random: &mut SplitMix64, role: Role, kind: Kind) -> LowRank {
        let (rows, cols) = (kind.rows(), kind.cols());
        let a = self.factor(random, self.rank, cols, (3.0 / cols as f32).sqrt());
        let b = self.factor(random, rows, self.rank, 0.1);
        LowRank {
            a: Arc::new(a),
            b: Arc::new(b),
            scale: 2.0,
            magnitude: self.magnitudes.then(|| {
                let count = if role == Role::Embedding { cols } else { rows };
                let lengths = (0..count).map(|_| 1.0 + random.within(0.1));
                lengths.collect()
            }),
            lengths_of: if role == Role::Embedding {
                LengthsOf::Columns
            } else {
                LengthsOf::Rows
            },
        }
    }

    fn factor(&self, random: &mut SplitMix64, rows: usize, cols: usize, size: f32) -> Factor {
        let values = (0..rows * cols).map(|_| {
            let value = random.within(size);
            if self.bf16 {
                half::bf16::from_f32(value).to_f32()
            } else {
                value
            }
        });
        let values: Vec<f32> = values.collect();
        // The length is the product, so the factor exists.
        Factor::new(rows, cols, values).unwrap_or_else(|| unreachable!("rows times columns"))
    }
}

fn is_bias(role: Role) -> bool {
    match role {
        Role::FinalNormBias | Role::HeadBias => true,
        Role::Layer(_, role) => role.biased().is_some(),
        _ => false,
    }
}
