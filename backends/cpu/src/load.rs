//! Bound weights into the form the forward pass reads.

use std::cell::RefCell;

use loquat_session::{OpenError, Precision};
use loquat_spec::{
    Attention, Decay, DeltaOutputGate, DeltaRule, Dense, Experts, FeedForward, Inner as InnerSpec,
    KvSource, LatentAttention, LayerRole as R, Mamba2, MambaNorm, Mixer, ModelSpec,
    Norm as NormSpec, Role, Rope, ShortConv, norm_roles,
};
use loquat_weights::{Matrix, Weights, WeightsError};

use crate::linear::Linear;
use crate::model::{
    AttentionWeights, Block, Branch, Conv, DeltaWeights, DenseWeights, ExpertsWeights, Inner,
    LatentWeights, Layer, LowRank, MambaWeights, Model, Norm, Output, PerLayerWeights, QueryDown,
    RopeTable, SharedWeights, ShortConvWeights,
};
use crate::pack::Packer;

impl Model {
    /// `context` is the session's, which some ropes go by.
    pub fn load(
        spec: &ModelSpec,
        weights: &Weights,
        precision: Precision,
        context: usize,
        packer: Packer,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, OpenError> {
        let mut loader = Loader {
            weights,
            precision,
            context,
            packer: RefCell::new(packer),
            ropes: Vec::new(),
        };
        let mut layers = Vec::new();
        // The head counts as one more layer.
        let parts = spec.layers.len() + 1;
        for (index, layer) in spec.layers.iter().enumerate() {
            progress(index as f32 / parts as f32);
            layers.push(loader.layer(index, layer)?);
        }
        progress(spec.layers.len() as f32 / parts as f32);
        let head_role = if spec.head.tied {
            Role::Embedding
        } else {
            Role::Head
        };
        let head = loader.linear(head_role)?;
        let model = Self {
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            embedding_scale: spec.embedding.scale,
            embedding: match (spec.head.tied, &head) {
                (true, Linear::Packed(_)) => None,
                _ => Some(loader.matrix(Role::Embedding)?.clone()),
            },
            positions: match spec.embedding.positions {
                Some(_) => Some(loader.matrix(Role::Positions)?.clone()),
                None => None,
            },
            per_layer_inputs: match spec.per_layer_inputs {
                Some(inputs) => Some(PerLayerWeights {
                    spec: inputs,
                    embedding: loader.matrix(Role::PerLayerEmbedding)?.clone(),
                    projection: loader.linear(Role::PerLayerProjection)?,
                    norm: loader.norm(&inputs.norm, Role::PerLayerNorm, None)?,
                }),
                None => None,
            },
            layers,
            final_norm: loader.norm(
                &spec.final_norm,
                Role::FinalNorm,
                Some(Role::FinalNormBias),
            )?,
            head,
            head_bias: loader.optional(Role::HeadBias),
            head_scale: spec.head.scale,
            softcap: spec.head.softcap,
            ropes: loader.ropes,
        };
        progress(1.0);
        Ok(model)
    }

    /// Bytes of all weights as the session will hold them, packed or mapped, without loading.
    pub fn predict_bytes(spec: &ModelSpec, weights: &Weights, precision: Precision) -> WeightBytes {
        let mut bytes = WeightBytes::default();
        for (role, matrix) in weights.matrices() {
            let multiplied = match role {
                Role::Embedding => spec.head.tied,
                Role::Positions | Role::PerLayerEmbedding => false,
                _ => true,
            };
            match Linear::predict_packed(matrix, precision).filter(|_| multiplied) {
                Some(packed) => bytes.packed += packed,
                None if matrix.is_copied() => bytes.packed += matrix.bytes(),
                None => bytes.mapped += matrix.bytes(),
            }
        }
        for (_, vector) in weights.vectors() {
            bytes.packed += vector.len() as u64 * 4;
        }
        bytes
    }
}

/// Where a model's weights will be: in memory of ours, packed or turned, or in the mapped file.
#[derive(Default)]
pub struct WeightBytes {
    pub packed: u64,
    pub mapped: u64,
}

struct Loader<'a> {
    weights: &'a Weights,
    precision: Precision,
    context: usize,
    packer: RefCell<Packer<'a>>,
    ropes: Vec<RopeTable>,
}

impl<'a> Loader<'a> {
    fn layer(&mut self, index: usize, layer: &loquat_spec::Layer) -> Result<Layer, OpenError> {
        let mut blocks = Vec::new();
        for block in &layer.blocks {
            let mut branches = Vec::new();
            for branch in &block.branches {
                branches.push(self.of_layer(index).branch(branch)?);
            }
            let of_layer = self.of_layer(index);
            blocks.push(Block {
                branches,
                post_norm: of_layer.norm(R::SumPostNorm, block.post_norm.as_ref())?,
                residual_scale: block.residual_scale,
            });
        }
        let of_layer = self.of_layer(index);
        let scale = if layer.scaled {
            of_layer.vector(R::LayerScale)?.first().copied()
        } else {
            None
        };
        Ok(Layer { blocks, scale })
    }

    fn of_layer(&mut self, index: usize) -> LayerLoader<'_, 'a> {
        LayerLoader {
            weights: self.weights,
            precision: self.precision,
            context: self.context,
            packer: &self.packer,
            ropes: &mut self.ropes,
            index,
        }
    }

    fn matrix(&self, role: Role) -> Result<&Matrix, OpenError> {
        self.weights.matrix(role).ok_or_else(|| unbound(role))
    }

    fn linear(&self, role: Role) -> Result<Linear, OpenError> {
        let packer = &mut self.packer.borrow_mut();
        Linear::new(self.matrix(role)?, self.precision, packer)
    }

    fn optional(&self, role: Role) -> Option<Vec<f32>> {
        self.weights.vector(role).map(<[f32]>::to_vec)
    }

    fn norm(&self, norm: &NormSpec, weight: Role, bias: Option<Role>) -> Result<Norm, OpenError> {
        make_norm(self.weights, norm, weight, bias)
    }
}

fn make_norm(
    weights: &Weights,
    norm: &NormSpec,
    weight: Role,
    bias: Option<Role>,
) -> Result<Norm, OpenError> {
    let vector = |wanted: bool, role: Option<Role>| match (wanted, role) {
        (true, Some(role)) => match weights.vector(role) {
            Some(values) => Ok(values.to_vec()),
            None => Err(unbound(role)),
        },
        _ => Ok(Vec::new()),
    };
    Ok(Norm {
        kind: norm.kind,
        eps: norm.eps,
        weight: vector(norm.weight, Some(weight))?,
        bias: vector(norm.bias, bias)?,
    })
}

/// The loader of one layer's roles.
struct LayerLoader<'a, 'p> {
    weights: &'a Weights,
    precision: Precision,
    context: usize,
    packer: &'a RefCell<Packer<'p>>,
    ropes: &'a mut Vec<RopeTable>,
    index: usize,
}

impl LayerLoader<'_, '_> {
    fn role(&self, role: R) -> Role {
        Role::Layer(self.index, role)
    }

    fn linear(&self, role: R) -> Result<Linear, OpenError> {
        let role = self.role(role);
        let matrix = self.weights.matrix(role).ok_or_else(|| unbound(role))?;
        Linear::new(matrix, self.precision, &mut self.packer.borrow_mut())
    }

    fn optional_linear(&self, present: bool, role: R) -> Result<Option<Linear>, OpenError> {
        if present {
            self.linear(role).map(Some)
        } else {
            Ok(None)
        }
    }

    fn stack(&self, role: R) -> Result<Vec<Linear>, OpenError> {
        let role = self.role(role);
        let stack = self.weights.stack(role).ok_or_else(|| unbound(role))?;
        let packer = &mut self.packer.borrow_mut();
        let linears = stack
            .iter()
            .map(|matrix| Linear::new(matrix, self.precision, packer));
        linears.collect()
    }

    fn vector(&self, role: R) -> Result<Vec<f32>, OpenError> {
        self.optional(role).ok_or_else(|| unbound(self.role(role)))
    }

    fn optional(&self, role: R) -> Option<Vec<f32>> {
        let vector = self.weights.vector(self.role(role));
        vector.map(<[f32]>::to_vec)
    }

    fn norm(&self, role: R, norm: Option<&NormSpec>) -> Result<Option<Norm>, OpenError> {
        match norm {
            Some(norm) => self.required_norm(role, norm).map(Some),
            None => Ok(None),
        }
    }

    fn required_norm(&self, role: R, norm: &NormSpec) -> Result<Norm, OpenError> {
        let bias = role.bias().map(|role| self.role(role));
        make_norm(self.weights, norm, self.role(role), bias)
    }

    fn conv(&self, role: R, kernel: usize) -> Result<Conv, OpenError> {
        let stored = self.vector(role)?;
        let channels = stored.len() / kernel;
        let weights = (0..kernel * channels).map(|at| {
            let (tap, channel) = (at / channels, at % channels);
            stored[channel * kernel + tap]
        });
        Ok(Conv {
            channels,
            kernel,
            weights: weights.collect(),
            bias: role.bias().and_then(|role| self.optional(role)),
        })
    }

    fn rope(&mut self, rope: Option<&Rope>) -> Option<usize> {
        let rope = rope?;
        let known = self.ropes.iter().position(|table| table.rope == *rope);
        Some(known.unwrap_or_else(|| {
            let tensor = |role| self.weights.vector(role);
            self.ropes.push(RopeTable {
                rope: rope.clone(),
                frequencies: rope.frequencies(self.context, tensor),
            });
            self.ropes.len() - 1
        }))
    }

    fn branch(mut self, branch: &loquat_spec::Branch) -> Result<Branch, OpenError> {
        let (pre, post) = norm_roles(&branch.inner);
        let pre_norm = self.norm(pre, branch.pre_norm.as_ref())?;
        let post_norm = self.norm(post, branch.post_norm.as_ref())?;
        let (inner, output) = match &branch.inner {
            InnerSpec::Mixer(Mixer::Attention(attention)) => (
                Inner::Attention(self.attention(attention)?),
                Some(R::Output),
            ),
            InnerSpec::Mixer(Mixer::Latent(latent)) => {
                (Inner::Latent(self.latent(latent)?), Some(R::Output))
            }
            InnerSpec::Mixer(Mixer::ShortConv(conv)) => {
                (Inner::ShortConv(self.short_conv(conv)?), Some(R::ConvOut))
            }
            InnerSpec::Mixer(Mixer::DeltaRule(delta)) => {
                let weights = Box::new(self.delta_rule(delta)?);
                (Inner::DeltaRule(weights), Some(R::DeltaOutput))
            }
            InnerSpec::Mixer(Mixer::Mamba2(mamba)) => {
                (Inner::Mamba2(self.mamba2(mamba)?), Some(R::MambaOut))
            }
            InnerSpec::FeedForward(FeedForward::Dense(dense)) => (
                Inner::Dense(self.dense(dense, [R::Gate, R::Up])?),
                Some(R::Down),
            ),
            InnerSpec::FeedForward(FeedForward::Experts(experts)) => {
                (Inner::Experts(Box::new(self.experts(experts)?)), None)
            }
            InnerSpec::FeedForward(FeedForward::PerLayerInput { dim, activation }) => {
                let inner = Inner::PerLayerInput {
                    dim: *dim,
                    activation: *activation,
                    gate: self.linear(R::PerLayerGate)?,
                };
                (inner, Some(R::PerLayerOutput))
            }
        };
        Ok(Branch {
            pre_norm,
            input_scale: branch.input_scale,
            inner,
            output: match output {
                Some(role) => Some(Output {
                    linear: self.linear(role)?,
                    bias: role.bias().and_then(|role| self.optional(role)),
                }),
                None => None,
            },
            output_scale: branch.output_scale,
            post_norm,
        })
    }

    fn attention(&mut self, attention: &Attention) -> Result<AttentionWeights, OpenError> {
        let qk = attention.qk_norm.map(|qk| qk.norm);
        let own = !matches!(attention.kv, KvSource::Layer(_));
        let own_value = attention.kv == KvSource::Own;
        Ok(AttentionWeights {
            spec: attention.clone(),
            rope: self.rope(attention.rope.as_ref()),
            query: self.linear(R::Query)?,
            key: self.optional_linear(own, R::Key)?,
            value: self.optional_linear(own_value, R::Value)?,
            gate: self.optional_linear(attention.output_gate, R::OutputGate)?,
            gate_bias: self.optional(R::OutputGateBias),
            query_bias: self.optional(R::QueryBias),
            key_bias: self.optional(R::KeyBias),
            value_bias: self.optional(R::ValueBias),
            query_norm: self.norm(R::QueryNorm, qk.as_ref())?,
            key_norm: self.norm(R::KeyNorm, qk.as_ref().filter(|_| own))?,
            // It never has a weight, so the role does not matter.
            value_norm: self.norm(R::KeyNorm, attention.value_norm.as_ref().filter(|_| own))?,
            sinks: self.optional(R::Sinks),
        })
    }

    fn latent(&mut self, latent: &LatentAttention) -> Result<LatentWeights, OpenError> {
        let query_down = match latent.query_rank {
            Some(_) => Some(QueryDown {
                linear: self.linear(R::QueryDown)?,
                bias: self.optional(R::QueryDownBias),
                norm: self.required_norm(R::QueryDownNorm, &latent.norm)?,
            }),
            None => None,
        };
        let query = match query_down {
            Some(_) => R::QueryUp,
            None => R::Query,
        };
        Ok(LatentWeights {
            spec: latent.clone(),
            rope: self.rope(latent.rope.as_ref()),
            query: self.linear(query)?,
            query_down,
            latent: self.linear(R::Latent)?,
            latent_bias: self.optional(R::LatentBias),
            latent_norm: self.required_norm(R::LatentNorm, &latent.norm)?,
            rope_key: self.linear(R::RopeKey)?,
            rope_key_bias: self.optional(R::RopeKeyBias),
            key_absorb: self.stack(R::KeyAbsorb)?,
            value_up: self.stack(R::ValueUp)?,
        })
    }

    fn short_conv(&self, conv: &ShortConv) -> Result<ShortConvWeights, OpenError> {
        Ok(ShortConvWeights {
            spec: *conv,
            input: self.linear(R::ConvIn)?,
            input_bias: self.optional(R::ConvInBias),
            conv: self.conv(R::Conv, conv.kernel)?,
        })
    }

    fn delta_rule(&self, delta: &DeltaRule) -> Result<DeltaWeights, OpenError> {
        let conv = |role| self.conv(role, delta.kernel);
        Ok(DeltaWeights {
            spec: *delta,
            inputs: [
                self.linear(R::DeltaQuery)?,
                self.linear(R::DeltaKey)?,
                self.linear(R::DeltaValue)?,
            ],
            convs: [
                conv(R::DeltaQueryConv)?,
                conv(R::DeltaKeyConv)?,
                conv(R::DeltaValueConv)?,
            ],
            beta: self.linear(R::DeltaBeta)?,
            decay: match delta.decay {
                Decay::PerHead => self.low_rank(None, R::DeltaDecay)?,
                Decay::PerChannel { .. } => {
                    self.low_rank(Some(R::DeltaDecayDown), R::DeltaDecayUp)?
                }
            },
            decay_bias: self.vector(R::DeltaDecayBias)?,
            rate: self.vector(R::DeltaRate)?,
            gate: match delta.gate {
                DeltaOutputGate::Silu => self.low_rank(None, R::DeltaGate)?,
                DeltaOutputGate::LowRankSigmoid { .. } => {
                    self.low_rank(Some(R::DeltaGateDown), R::DeltaGateUp)?
                }
            },
            norm: self.required_norm(R::DeltaNorm, &delta.norm)?,
        })
    }

    fn low_rank(&self, down: Option<R>, up: R) -> Result<LowRank, OpenError> {
        Ok(LowRank {
            down: match down {
                Some(role) => Some(self.linear(role)?),
                None => None,
            },
            up: self.linear(up)?,
        })
    }

    fn mamba2(&self, mamba: &Mamba2) -> Result<MambaWeights, OpenError> {
        let norm = match &mamba.norm {
            MambaNorm::None => None,
            MambaNorm::AfterGate { norm, .. } | MambaNorm::BeforeGate { norm, .. } => Some(norm),
        };
        Ok(MambaWeights {
            spec: *mamba,
            input: self.linear(R::MambaIn)?,
            input_bias: self.optional(R::MambaInBias),
            conv: self.conv(R::MambaConv, mamba.kernel)?,
            step_bias: self.vector(R::MambaStepBias)?,
            rate: self.vector(R::MambaRate)?,
            skip: self.vector(R::MambaSkip)?,
            norm: self.norm(R::MambaOutNorm, norm)?,
        })
    }

    fn dense(&self, dense: &Dense, [gate, up]: [R; 2]) -> Result<DenseWeights, OpenError> {
        let bias = |role: R| role.bias().and_then(|role| self.optional(role));
        Ok(DenseWeights {
            size: dense.size,
            activation: dense.activation,
            gate_scale: dense.gate_scale,
            gate: self.optional_linear(dense.gated, gate)?,
            up: self.linear(up)?,
            gate_bias: bias(gate),
            up_bias: bias(up),
        })
    }

    fn experts(&self, experts: &Experts) -> Result<ExpertsWeights, OpenError> {
        let router_norm = experts.router.input.map(|input| input.norm);
        Ok(ExpertsWeights {
            spec: experts.clone(),
            router: self.linear(R::Router)?,
            router_bias: self.optional(R::RouterBias),
            router_norm: self.norm(R::RouterInput, router_norm.as_ref())?,
            correction: self.optional(R::RouterCorrection),
            expert_scale: self.optional(R::ExpertScale),
            gates: if experts.expert.gated {
                self.stack(R::ExpertGate)?
            } else {
                Vec::new()
            },
            ups: self.stack(R::ExpertUp)?,
            downs: self.stack(R::ExpertDown)?,
            gate_bias: self.optional(R::ExpertGateBias),
            up_bias: self.optional(R::ExpertUpBias),
            down_bias: self.optional(R::ExpertDownBias),
            shared: match &experts.shared {
                Some(shared) => Some(SharedWeights {
                    dense: self.dense(&shared.dense, [R::SharedGate, R::SharedUp])?,
                    down: self.linear(R::SharedDown)?,
                    router: self.optional_linear(shared.gated, R::SharedRouter)?,
                }),
                None => None,
            },
        })
    }
}

/// Weights that were bound to another spec.
fn unbound(role: Role) -> OpenError {
    OpenError::Weights(WeightsError::Binding(loquat_weights::Mismatch {
        missing: vec![role.to_string()],
        ..Default::default()
    }))
}
