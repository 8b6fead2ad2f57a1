//! What a token costs on any engine: bytes read from memory and multiply-adds.

use std::collections::HashMap;

use loquat_spec::{FeedForward, Inner, LayerRole, Mixer, ModelSpec, Reach, Role};
use loquat_weights::Weights;

use super::workload::Workload;

/// Keys and values are stored in half precision.
const KV_BYTES: usize = 2;

/// The cost of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    pub read_bytes: f64,
    pub multiply_adds: f64,
}

/// The matrices that a step reads, in the format of the file. Vectors and attention's own
/// arithmetic are negligible at these depths and are not counted.
pub struct ModelDemand {
    layers: Matrices,
    head: Matrices,
    experts: Vec<ExpertLayer>,
    keys_and_values: Vec<KvLayer>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Matrices {
    bytes: f64,
    products: f64,
}

struct ExpertLayer {
    count: f64,
    top_k: f64,
    all: Matrices,
}

struct KvLayer {
    bytes_per_position: usize,
    reach: Reach,
}

impl ModelDemand {
    pub fn new(spec: &ModelSpec, weights: &Weights) -> Self {
        let mut experts = expert_layers(spec);
        let (mut layers, mut head) = (Matrices::default(), Matrices::default());
        for (role, matrix) in weights.matrices() {
            let matrix = Matrices {
                bytes: matrix.bytes() as f64,
                products: (matrix.rows() * matrix.cols()) as f64,
            };
            match role {
                Role::Embedding if spec.head.tied => head.add(matrix),
                // A token reads one row of these.
                Role::Embedding | Role::Positions | Role::PerLayerEmbedding => {}
                // Read once for each picture.
                Role::Vision(_) => {}
                Role::Head => head.add(matrix),
                Role::Layer(layer, role) if is_expert_role(role) => {
                    if let Some(experts) = experts.get_mut(&layer) {
                        experts.all.add(matrix);
                    }
                }
                _ => layers.add(matrix),
            }
        }
        Self {
            layers,
            head,
            experts: experts.into_values().collect(),
            keys_and_values: spec.mixers().filter_map(|(_, mixer)| kv(mixer)).collect(),
        }
    }

    pub fn per_token(&self, work: Workload) -> Demand {
        let (rows, heads, depth) = match work {
            // Only the last token of a prompt goes through the head.
            Workload::Prompt { tokens } => (tokens as f64, 1.0, 0),
            Workload::Decode {
                tokens,
                depth,
                batch,
            } => (batch as f64, batch as f64, depth + tokens / 2),
        };
        let chosen = self.experts.iter().map(|layer| layer.read_by(rows));
        let weights = self.layers.bytes + self.head.bytes + chosen.sum::<f64>();
        let chosen = self.experts.iter().map(ExpertLayer::products);
        let products = self.layers.products + chosen.sum::<f64>();
        Demand {
            read_bytes: weights / rows + self.kv_bytes(depth),
            multiply_adds: products + self.head.products * heads / rows,
        }
    }

    /// Bytes of KV that a token at this depth reads.
    fn kv_bytes(&self, depth: usize) -> f64 {
        let layers = self.keys_and_values.iter();
        let bytes = layers.map(|layer| {
            let seen = depth - layer.reach.first_seen(depth).min(depth);
            layer.bytes_per_position * seen
        });
        bytes.sum::<usize>() as f64
    }
}

impl Matrices {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.products += other.products;
    }
}

impl ExpertLayer {
    /// Bytes of the experts that at least one of `tokens` selects, assuming uniform routing.
    fn read_by(&self, tokens: f64) -> f64 {
        let unused = (1.0 - self.top_k / self.count).powf(tokens);
        self.all.bytes * (1.0 - unused)
    }

    fn products(&self) -> f64 {
        self.all.products * self.top_k / self.count
    }
}

fn expert_layers(spec: &ModelSpec) -> HashMap<usize, ExpertLayer> {
    let layers = spec.branches().filter_map(|(layer, branch)| {
        let Inner::FeedForward(FeedForward::Experts(experts)) = &branch.inner else {
            return None;
        };
        let experts = ExpertLayer {
            count: experts.count as f64,
            top_k: experts.top_k as f64,
            all: Matrices::default(),
        };
        Some((layer, experts))
    });
    layers.collect()
}

fn is_expert_role(role: LayerRole) -> bool {
    use LayerRole::{ExpertDown, ExpertGate, ExpertUp};
    matches!(role, ExpertGate | ExpertUp | ExpertDown)
}

/// `None` for mixers with a state of fixed size.
fn kv(mixer: &Mixer) -> Option<KvLayer> {
    let (values, reach) = match mixer {
        Mixer::Attention(attention) => (
            attention.kv_heads * (attention.head_dim + attention.value_dim),
            attention.reach,
        ),
        Mixer::Latent(latent) => (latent.latent_dim + latent.rope_dim, Reach::All),
        _ => return None,
    };
    Some(KvLayer {
        bytes_per_position: values * KV_BYTES,
        reach,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand() -> ModelDemand {
        let matrices = |bytes, products| Matrices { bytes, products };
        ModelDemand {
            layers: matrices(100.0, 200.0),
            head: matrices(10.0, 20.0),
            experts: vec![ExpertLayer {
                count: 4.0,
                top_k: 1.0,
                all: matrices(64.0, 128.0),
            }],
            keys_and_values: vec![
                KvLayer {
                    bytes_per_position: 2,
                    reach: Reach::All,
                },
                KvLayer {
                    bytes_per_position: 2,
                    reach: Reach::Window(5),
                },
            ],
        }
    }

    #[test]
    fn batch_shares_weights_and_prompt_shares_head() {
        let decode = |batch| Workload::Decode {
            tokens: 20,
            depth: 90,
            batch,
        };
        // At half of its tokens a decode is 100 deep; a window of five ends with the token itself.
        let kv = 2.0 * 100.0 + 2.0 * 4.0;
        for (work, read_bytes, multiply_adds) in [
            (decode(1), 110.0 + 16.0 + kv, 200.0 + 32.0 + 20.0),
            // Two tokens choose 7/16 of the experts on average.
            (decode(2), (110.0 + 28.0) / 2.0 + kv, 252.0),
            (
                Workload::Prompt { tokens: 2 },
                (110.0 + 28.0) / 2.0,
                232.0 + 10.0,
            ),
        ] {
            let expected = Demand {
                read_bytes,
                multiply_adds,
            };
            assert_eq!(demand().per_token(work), expected, "{work}");
        }
    }
}
