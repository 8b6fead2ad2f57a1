//! Loads bound weights for the forward pass.

use loquat_session::loading::{
    LayerParts, LayerWeights, head_role, load_final_norm, load_layers, load_norm, matrix,
};
use loquat_session::{OpenError, Precision};
use loquat_spec::{
    Attention, Decay, DeltaOutputGate, DeltaRule, Dense, Experts, FeedForward, Inner as InnerSpec,
    KvSource, LatentAttention, LayerRole as R, Mamba2, MambaNorm, MediaAttention, Mixer, ModelSpec,
    Norm as NormSpec, Role, Rope, ShortConv, VisionRole,
};
use loquat_weights::{FileWatch, Matrix, Weights};

use crate::linear::{Linear, LinearWeights};
use crate::model::{
    AttentionWeights, Conv, DeltaWeights, DenseWeights, ExpertsWeights, Inner, InnerWeights,
    LatentWeights, LowRank, MambaWeights, Model, Norm, Output, PerLayerWeights, QueryDown,
    RopeTable, SharedWeights, ShortConvWeights, Slots, Vector,
};
use crate::pack::Packer;
use crate::tower::Tower;

impl Model {
    /// `context` is the session's, on which some ropes depend. A tower is loaded if it is to run.
    pub fn load(
        spec: &ModelSpec,
        weights: &Weights,
        (precision, runs_tower): (Precision, bool),
        context: usize,
        packer: Packer,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, OpenError> {
        let mut loader = Loader {
            weights,
            attention: spec.media_attention(),
            precision,
            context,
            packer,
            ropes: Vec::new(),
            files: FileWatch::default(),
            slots: Slots::default(),
        };
        let layers = load_layers(&mut loader, spec, weights, progress)?;
        let head = loader.linear(Role::Head, matrix(weights, head_role(spec))?)?;
        let tower = if runs_tower {
            Tower::load(
                spec,
                weights,
                precision,
                &mut loader.packer,
                &mut loader.files,
            )?
        } else {
            None
        };
        let model = Self {
            tower,
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            embedding_scale: spec.embedding.scale,
            embedding: match (spec.head.tied, &**head.weights()) {
                (true, LinearWeights::Packed(_)) => None,
                _ => Some(loader.in_place(Role::Embedding)?),
            },
            positions: match spec.embedding.positions {
                Some(_) => Some(loader.in_place(Role::Positions)?),
                None => None,
            },
            per_layer_inputs: match spec.per_layer_inputs {
                Some(inputs) => Some(PerLayerWeights {
                    spec: inputs,
                    embedding: loader.in_place(Role::PerLayerEmbedding)?,
                    projection: loader.linear(
                        Role::PerLayerProjection,
                        matrix(weights, Role::PerLayerProjection)?,
                    )?,
                    norm: load_norm(&mut loader, weights, &inputs.norm, Role::PerLayerNorm, None)?,
                }),
                None => None,
            },
            layers,
            final_norm: load_final_norm(&mut loader, spec, weights)?,
            head,
            head_bias: loader.vector(Role::HeadBias),
            head_scale: spec.head.scale,
            softcap: spec.head.softcap,
            ropes: loader.ropes,
            files: loader.files,
            slots: loader.slots,
        };
        progress(1.0);
        Ok(model)
    }

    /// Bytes of all weights, packed or mapped, without loading them.
    pub fn predict_bytes(
        spec: &ModelSpec,
        weights: &Weights,
        (precision, runs_tower): (Precision, bool),
    ) -> WeightBytes {
        let mut bytes = WeightBytes::default();
        let runs = |role: &Role| runs_tower || !matches!(role, Role::Vision(_));
        for (role, matrix) in weights.matrices().filter(|(role, _)| runs(role)) {
            let multiplied = match role {
                Role::Vision(VisionRole::Positions) => {
                    bytes.packed += (matrix.rows() * matrix.cols() * 4) as u64;
                    continue;
                }
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
        for (_, vector) in weights.vectors().filter(|(role, _)| runs(role)) {
            bytes.packed += vector.len() as u64 * 4;
        }
        bytes
    }
}

/// Bytes in allocated memory, packed or converted, and in the mapped file.
#[derive(Default)]
pub struct WeightBytes {
    pub packed: u64,
    pub mapped: u64,
}

struct Loader<'a> {
    weights: &'a Weights,
    /// Between positions of media.
    attention: MediaAttention,
    precision: Precision,
    context: usize,
    packer: Packer<'a>,
    ropes: Vec<RopeTable>,
    files: FileWatch,
    slots: Slots,
}

impl Loader<'_> {
    /// The role's next matrix.
    fn linear(&mut self, role: Role, matrix: &Matrix) -> Result<Linear, OpenError> {
        let mut linear = Linear::new(matrix, self.precision, &mut self.packer)?;
        if matches!(**linear.weights(), LinearWeights::Plain(_)) {
            self.files.add(matrix);
        }
        self.slots.add_matrix(role, &mut linear);
        Ok(linear)
    }

    fn vector(&mut self, role: Role) -> Option<Vector> {
        let values = self.weights.vector(role)?.to_vec();
        let slot = self.slots.vector(role);
        Some(Vector { values, slot })
    }

    /// A matrix that is read from the file in every step.
    fn in_place(&mut self, role: Role) -> Result<Matrix, OpenError> {
        let matrix = matrix(self.weights, role)?;
        self.files.add(matrix);
        Ok(matrix.clone())
    }
}

impl LayerParts for Loader<'_> {
    type Norm = Norm;
    type Inner = InnerWeights;
    type Scale = f32;

    fn norm(
        &mut self,
        spec: &NormSpec,
        weight: Option<(Role, &[f32])>,
        bias: Option<(Role, &[f32])>,
    ) -> Result<Norm, OpenError> {
        let slots = [weight, bias].map(|vector| Some(self.slots.vector(vector?.0)));
        let values = |vector: Option<(Role, &[f32])>| {
            vector.map_or_else(Vec::new, |(_, values)| values.to_vec())
        };
        Ok(Norm {
            kind: spec.kind,
            eps: spec.eps,
            weight: values(weight),
            bias: values(bias),
            slots,
        })
    }

    fn inner(
        &mut self,
        weights: LayerWeights,
        spec: &InnerSpec,
    ) -> Result<InnerWeights, OpenError> {
        let loader = self;
        LayerLoader { loader, weights }.inner(spec)
    }

    fn scale(&mut self, values: &[f32]) -> Result<f32, OpenError> {
        Ok(values.first().copied().unwrap_or(1.0))
    }
}

/// The loader of one layer's roles.
struct LayerLoader<'l, 'a> {
    loader: &'l mut Loader<'a>,
    weights: LayerWeights<'l>,
}

impl LayerLoader<'_, '_> {
    fn linear(&mut self, role: R) -> Result<Linear, OpenError> {
        let matrix = self.weights.matrix(role)?;
        self.loader.linear(self.weights.role(role), matrix)
    }

    fn optional_linear(&mut self, present: bool, role: R) -> Result<Option<Linear>, OpenError> {
        present.then(|| self.linear(role)).transpose()
    }

    fn stack(&mut self, role: R) -> Result<Vec<Linear>, OpenError> {
        let of_layer = self.weights.role(role);
        let stack = self.weights.stack(role)?.iter();
        stack
            .map(|matrix| self.loader.linear(of_layer, matrix))
            .collect()
    }

    fn vector(&self, role: R) -> Result<Vec<f32>, OpenError> {
        self.weights.vector(role).map(<[f32]>::to_vec)
    }

    fn optional(&self, role: R) -> Option<Vec<f32>> {
        self.weights.optional(role).map(<[f32]>::to_vec)
    }

    fn bias(&self, role: R) -> Option<Vec<f32>> {
        self.weights.bias(role).map(<[f32]>::to_vec)
    }

    /// A bias that adapters may replace.
    fn adaptable_bias(&mut self, role: R) -> Option<Vector> {
        self.loader.vector(self.weights.role(role.bias()?))
    }

    fn norm(&mut self, role: R, norm: Option<&NormSpec>) -> Result<Option<Norm>, OpenError> {
        self.weights.norm(self.loader, role, norm)
    }

    fn required_norm(&mut self, role: R, norm: &NormSpec) -> Result<Norm, OpenError> {
        self.weights.required_norm(self.loader, role, norm)
    }

    fn conv(&self, role: R, kernel: usize) -> Result<Conv, OpenError> {
        let stored = self.weights.vector(role)?;
        Ok(Conv::new(stored, kernel, self.bias(role)))
    }

    /// The index of the rope's table, which layers share.
    fn rope(&mut self, rope: Option<&Rope>) -> Option<usize> {
        let rope = rope?;
        let Loader {
            weights,
            context,
            ropes,
            ..
        } = self.loader;
        let known = ropes.iter().position(|table| table.rope == *rope);
        Some(known.unwrap_or_else(|| {
            ropes.push(RopeTable {
                rope: rope.clone(),
                frequencies: rope.frequencies(*context, |role| weights.vector(role)),
            });
            ropes.len() - 1
        }))
    }

    fn inner(mut self, spec: &InnerSpec) -> Result<InnerWeights, OpenError> {
        let (kind, output) = match spec {
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
        let output = match output {
            Some(role) => Some(Output {
                linear: self.linear(role)?,
                bias: self.adaptable_bias(role),
            }),
            None => None,
        };
        Ok(InnerWeights { kind, output })
    }

    fn attention(&mut self, attention: &Attention) -> Result<AttentionWeights, OpenError> {
        let qk = attention.qk_norm.map(|qk| qk.norm);
        let own = !matches!(attention.kv, KvSource::Layer(_));
        let own_value = attention.kv == KvSource::Own;
        Ok(AttentionWeights {
            spec: attention.clone(),
            looks_ahead: self.loader.attention.applies_to(attention.reach),
            rope: self.rope(attention.rope.as_ref()),
            query: self.linear(R::Query)?,
            key: self.optional_linear(own, R::Key)?,
            value: self.optional_linear(own_value, R::Value)?,
            gate: self.optional_linear(attention.output_gate, R::OutputGate)?,
            gate_bias: self.adaptable_bias(R::OutputGate),
            query_bias: self.adaptable_bias(R::Query),
            key_bias: self.adaptable_bias(R::Key),
            value_bias: self.adaptable_bias(R::Value),
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

    fn short_conv(&mut self, conv: &ShortConv) -> Result<ShortConvWeights, OpenError> {
        Ok(ShortConvWeights {
            spec: *conv,
            input: self.linear(R::ConvIn)?,
            input_bias: self.optional(R::ConvInBias),
            conv: self.conv(R::Conv, conv.kernel)?,
        })
    }

    fn delta_rule(&mut self, delta: &DeltaRule) -> Result<DeltaWeights, OpenError> {
        Ok(DeltaWeights {
            spec: *delta,
            inputs: [
                self.linear(R::DeltaQuery)?,
                self.linear(R::DeltaKey)?,
                self.linear(R::DeltaValue)?,
            ],
            convs: [
                self.conv(R::DeltaQueryConv, delta.kernel)?,
                self.conv(R::DeltaKeyConv, delta.kernel)?,
                self.conv(R::DeltaValueConv, delta.kernel)?,
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

    fn low_rank(&mut self, down: Option<R>, up: R) -> Result<LowRank, OpenError> {
        Ok(LowRank {
            down: match down {
                Some(role) => Some(self.linear(role)?),
                None => None,
            },
            up: self.linear(up)?,
        })
    }

    fn mamba2(&mut self, mamba: &Mamba2) -> Result<MambaWeights, OpenError> {
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

    fn dense(&mut self, dense: &Dense, [gate, up]: [R; 2]) -> Result<DenseWeights, OpenError> {
        Ok(DenseWeights {
            size: dense.size,
            activation: dense.activation,
            gate_scale: dense.gate_scale,
            gate: self.optional_linear(dense.gated, gate)?,
            up: self.linear(up)?,
            gate_bias: self.adaptable_bias(gate),
            up_bias: self.adaptable_bias(up),
        })
    }

    fn experts(&mut self, experts: &Experts) -> Result<ExpertsWeights, OpenError> {
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
