//! From a spec to a [`Program`]: the launches of a step, the same for every family.
//!
//! Lowering runs twice over the same code. The first pass measures: it counts the bytes of weights
//! and buffers, which is what plans need. The second uploads weights and knows the addresses.

mod attention;
mod buffers;
mod experts;
mod fast;
mod feed_forward;
mod kv_layout;
mod latent;
mod program;
mod recurrent;
mod sketch;
mod weights;

use loquat_session::OpenError;
use loquat_spec::{
    Block, Branch, FeedForward, Inner, Layer, LayerRole, Mixer, ModelSpec, NormKind, Role, Rope,
    norm_roles,
};

use crate::ops::{
    self, AddEmbedding, AddFeatures, Address, Angles, Embed, FinishLogits, Format, Gather, Largest,
    MatrixRef, NormFunction,
};

pub use buffers::{Buffer, Buffers};
pub use fast::{check as check_fast, lower_fast};
pub use feed_forward::activation_function;
pub use kv_layout::KvLayout;
use program::draw_tokens;
pub use program::{Domain, Instruction, Program};
pub use weights::{WeightLoader, upload_rows};

/// Positions whose logits are computed together; bounds the buffer, not the result.
pub const HEAD_BLOCK: usize = 64;

/// What lowering needs besides the spec and its weights.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Tokens of a step at most.
    pub tokens: usize,
    /// The session's longest sequence, on which some ropes depend.
    pub context: usize,
}

/// Lowers the text model. Without addresses of `buffers`, the result only measures.
pub fn lower(
    spec: &ModelSpec,
    weights: &mut WeightLoader<'_>,
    buffers: &mut Buffers,
    kv: &KvLayout,
    sizes: Sizes,
) -> Result<Program, OpenError> {
    let mut lowering = Lowering {
        spec,
        weights,
        buffers,
        kv,
        sizes,
        ropes: Vec::new(),
        program: Program::default(),
    };
    lowering.embed()?;
    lowering.per_layer_inputs()?;
    let layers = spec.layers.len();
    for (index, layer) in spec.layers.iter().enumerate() {
        lowering.weights.progress(index, layers + 1);
        lowering.layer(index, layer)?;
    }
    lowering.weights.progress(layers, layers + 1);
    lowering.readout()?;
    lowering.weights.progress(layers + 1, layers + 1);
    Ok(lowering.program)
}

struct Lowering<'a, 'w> {
    spec: &'a ModelSpec,
    weights: &'a mut WeightLoader<'w>,
    buffers: &'a mut Buffers,
    kv: &'a KvLayout,
    sizes: Sizes,
    ropes: Vec<(Rope, RopeAngles)>,
    program: Program,
}

/// The angles of a step's tokens for one of the model's ropes.
#[derive(Clone, Copy)]
struct RopeAngles {
    cos: Address,
    sin: Address,
    pairs: u32,
    interleaved: u32,
}

/// A buffer of one vector per token.
#[derive(Clone, Copy)]
struct Vectors {
    at: Address,
    stride: u32,
}

impl Vectors {
    fn values(self, from: usize) -> Self {
        Self {
            at: self.at.values(from),
            ..self
        }
    }
}

/// The matrix of a linear layer by its roles.
struct LinearRoles {
    matrix: Role,
    bias: Option<Role>,
}

impl Lowering<'_, '_> {
    fn push(&mut self, op: impl Into<ops::Op>, label: Option<Role>) -> &mut Instruction {
        self.push_over(Domain::Tokens, op, label)
    }

    fn push_over(
        &mut self,
        domain: Domain,
        op: impl Into<ops::Op>,
        label: Option<Role>,
    ) -> &mut Instruction {
        let forward = &mut self.program.forward;
        forward.push(Instruction::new(op.into(), domain, label));
        let last = forward.len() - 1;
        &mut forward[last]
    }

    fn buffer(&mut self, buffer: Buffer, width: usize) -> Vectors {
        Vectors {
            at: self.buffers.address(buffer, width),
            stride: width as u32,
        }
    }

    fn stream(&mut self) -> Vectors {
        self.buffer(Buffer::Stream, self.spec.hidden_size)
    }

    fn embed(&mut self) -> Result<(), OpenError> {
        let out = self.stream().at;
        let table = self.weights.matrix(Role::Embedding)?;
        let positions = match self.spec.embedding.positions {
            Some(_) => self.weights.matrix(Role::Positions)?,
            None => MatrixRef {
                values: Address::NONE,
                rows: 0,
                cols: 0,
                format: Format::F32,
                reserved: 0,
            },
        };
        let scale = self.spec.embedding.scale;
        let embed = Embed {
            out,
            table,
            positions,
            scale,
            reserved: 0,
        };
        self.push(embed, Some(Role::Embedding));
        Ok(())
    }

    fn per_layer_inputs(&mut self) -> Result<(), OpenError> {
        let Some(inputs) = &self.spec.per_layer_inputs else {
            return Ok(());
        };
        let layers = self.spec.layers.len();
        let input = self.stream();
        let out = self.buffer(Buffer::PerLayer, inputs.dim * layers);
        let roles = LinearRoles {
            matrix: Role::PerLayerProjection,
            bias: None,
        };
        self.linear(roles, input, out)?;
        let weight = self.norm_weight(inputs.norm.weight, Role::PerLayerNorm)?;
        self.push(
            ops::Norm {
                parts: layers as u32,
                len: inputs.dim as u32,
                weight,
                before: inputs.projection_scale,
                ..norm_op(Some(&inputs.norm), out, out)
            },
            Some(Role::PerLayerNorm),
        );
        let table = self.weights.matrix(Role::PerLayerEmbedding)?;
        let add = AddEmbedding {
            out: out.at,
            table,
            media_id: inputs.media_token,
            scale: inputs.embedding_scale,
            factor: inputs.combined_scale,
            reserved: 0,
        };
        self.push(add, Some(Role::PerLayerEmbedding));
        Ok(())
    }

    fn layer(&mut self, index: usize, layer: &Layer) -> Result<(), OpenError> {
        for block in &layer.blocks {
            self.block(index, block)?;
        }
        if layer.scaled {
            let role = Role::Layer(index, LayerRole::LayerScale);
            let factor = self.weights.number(role)?;
            let stream = self.stream();
            self.scale(stream, self.spec.hidden_size, factor);
        }
        let vision = self.spec.vision.as_ref();
        if vision.is_some_and(|vision| index < vision.deepstack.len()) {
            let add = AddFeatures {
                out: self.stream().at,
                width: self.spec.hidden_size as u32,
                level: 1 + index as u32,
            };
            self.push(add, None).only_with_media = true;
        }
        Ok(())
    }

    fn block(&mut self, layer: usize, block: &Block) -> Result<(), OpenError> {
        let hidden = self.spec.hidden_size;
        let stream = self.stream();
        let alone = block.branches.len() == 1 && block.post_norm.is_none();
        if alone {
            let output = self.branch(layer, &block.branches[0])?;
            self.add(stream, Some((output, block.residual_scale)), stream, hidden);
            return Ok(());
        }
        let sum = self.buffer(Buffer::Sum, hidden);
        for (index, branch) in block.branches.iter().enumerate() {
            let output = self.branch(layer, branch)?;
            if index == 0 {
                self.add(output, None, sum, hidden);
            } else {
                self.add(sum, Some((output, 1.0)), sum, hidden);
            }
        }
        if let Some(norm) = &block.post_norm {
            self.norm(norm, Role::Layer(layer, LayerRole::SumPostNorm), sum, sum)?;
        }
        self.add(stream, Some((sum, block.residual_scale)), stream, hidden);
        Ok(())
    }

    /// The branch's output, with its scale and its norm.
    fn branch(&mut self, layer: usize, branch: &Branch) -> Result<Vectors, OpenError> {
        let (pre, post) = norm_roles(&branch.inner);
        let stream = self.stream();
        let mut input = stream;
        if branch.pre_norm.is_some() || branch.input_scale != 1.0 {
            input = self.buffer(Buffer::Input, self.spec.hidden_size);
            let role = Role::Layer(layer, pre);
            self.scaled_norm(
                branch.pre_norm.as_ref(),
                role,
                (stream, input),
                [1.0, branch.input_scale],
            )?;
        }
        let output = match &branch.inner {
            Inner::Mixer(mixer) => self.mixer(layer, mixer, input)?,
            Inner::FeedForward(FeedForward::Dense(dense)) => self.dense(layer, dense, input)?,
            Inner::FeedForward(FeedForward::Experts(experts)) => {
                self.experts(layer, experts, input)?
            }
            Inner::FeedForward(FeedForward::PerLayerInput { dim, activation }) => {
                self.per_layer_input(layer, *dim, *activation, input)?
            }
        };
        if branch.post_norm.is_some() || branch.output_scale != 1.0 {
            let role = Role::Layer(layer, post);
            self.scaled_norm(
                branch.post_norm.as_ref(),
                role,
                (output, output),
                [branch.output_scale, 1.0],
            )?;
        }
        Ok(output)
    }

    fn mixer(&mut self, layer: usize, mixer: &Mixer, input: Vectors) -> Result<Vectors, OpenError> {
        match mixer {
            Mixer::Attention(attention) => self.attention(layer, attention, input),
            Mixer::Latent(latent) => self.latent(layer, latent, input),
            Mixer::ShortConv(conv) => self.short_conv(layer, conv, input),
            Mixer::DeltaRule(delta) => self.delta_rule(layer, delta, input),
            Mixer::Mamba2(mamba) => self.mamba2(layer, mamba, input),
        }
    }

    /// A branch's last matrix: from `inner` to the stream's size.
    fn output(
        &mut self,
        layer: usize,
        role: LayerRole,
        inner: Vectors,
    ) -> Result<Vectors, OpenError> {
        let out = self.buffer(Buffer::Branch, self.spec.hidden_size);
        self.layer_linear(layer, role, inner, out)?;
        Ok(out)
    }

    /// A layer's matrix with its bias, if it has one.
    fn layer_linear(
        &mut self,
        layer: usize,
        role: LayerRole,
        input: Vectors,
        out: Vectors,
    ) -> Result<(), OpenError> {
        let roles = LinearRoles {
            matrix: Role::Layer(layer, role),
            bias: role.bias().map(|bias| Role::Layer(layer, bias)),
        };
        self.linear(roles, input, out)
    }

    fn linear(
        &mut self,
        roles: LinearRoles,
        input: Vectors,
        out: Vectors,
    ) -> Result<(), OpenError> {
        let matrix = self.weights.matrix(roles.matrix)?;
        let bias = match roles.bias {
            Some(role) => self.weights.optional(role)?,
            None => Address::NONE,
        };
        let linear = ops::Linear {
            matrix,
            input: input.at,
            out: out.at,
            bias,
            input_stride: input.stride,
            out_stride: out.stride,
            batch: 1,
            input_step: 0,
            out_step: 0,
            reserved: 0,
        };
        let instruction = self.push(linear, Some(roles.matrix));
        instruction.bias = roles.bias.filter(|_| !bias.is_none());
        Ok(())
    }

    /// A matrix for each head, which reads and writes its own part of a token's vector.
    fn head_linear(
        &mut self,
        layer: usize,
        role: LayerRole,
        heads: usize,
        [(input, input_step), (out, out_step)]: [(Vectors, usize); 2],
    ) -> Result<(), OpenError> {
        let role = Role::Layer(layer, role);
        let matrix = self.weights.stack(role)?;
        let linear = ops::Linear {
            matrix,
            input: input.at,
            out: out.at,
            bias: Address::NONE,
            input_stride: input.stride,
            out_stride: out.stride,
            batch: heads as u32,
            input_step: input_step as u32,
            out_step: out_step as u32,
            reserved: 0,
        };
        self.push(linear, Some(role));
        Ok(())
    }

    fn norm_weight(&mut self, present: bool, role: Role) -> Result<Address, OpenError> {
        if present {
            self.weights.vector(role)
        } else {
            Ok(Address::NONE)
        }
    }

    fn norm(
        &mut self,
        norm: &loquat_spec::Norm,
        role: Role,
        input: Vectors,
        out: Vectors,
    ) -> Result<(), OpenError> {
        self.scaled_norm(Some(norm), role, (input, out), [1.0; 2])
    }

    /// A norm over vectors of the stream's size, between two factors.
    fn scaled_norm(
        &mut self,
        norm: Option<&loquat_spec::Norm>,
        role: Role,
        (input, out): (Vectors, Vectors),
        [before, after]: [f32; 2],
    ) -> Result<(), OpenError> {
        let len = self.spec.hidden_size;
        let op = ops::Norm {
            len: len as u32,
            before,
            after,
            ..norm_op(norm, input, out)
        };
        self.weighted_norm(op, norm, role)
    }

    /// Adds the role's weight and bias to a norm.
    fn weighted_norm(
        &mut self,
        op: ops::Norm,
        norm: Option<&loquat_spec::Norm>,
        role: Role,
    ) -> Result<(), OpenError> {
        let (has_weight, has_bias) = norm.map_or((false, false), |norm| (norm.weight, norm.bias));
        let weight = self.norm_weight(has_weight, role)?;
        let bias_role = bias_of(role);
        let bias = match bias_role {
            Some(role) => self.norm_weight(has_bias, role)?,
            None => Address::NONE,
        };
        let op = ops::Norm { weight, bias, ..op };
        let instruction = self.push(op, has_weight.then_some(role));
        instruction.bias = bias_role.filter(|_| has_bias);
        Ok(())
    }

    /// `out = a + factor * b`
    fn add(&mut self, a: Vectors, b: Option<(Vectors, f32)>, out: Vectors, len: usize) {
        let (b, right) = match b {
            Some((b, factor)) => (b, factor),
            None => (
                Vectors {
                    at: Address::NONE,
                    stride: 0,
                },
                0.0,
            ),
        };
        let add = ops::Add {
            a: a.at,
            b: b.at,
            out: out.at,
            a_stride: a.stride,
            b_stride: b.stride,
            out_stride: out.stride,
            len: len as u32,
            left: 1.0,
            right,
        };
        self.push(add, None);
    }

    fn scale(&mut self, values: Vectors, len: usize, factor: f32) {
        let scale = ops::Add {
            a: values.at,
            b: Address::NONE,
            out: values.at,
            a_stride: values.stride,
            b_stride: 0,
            out_stride: values.stride,
            len: len as u32,
            left: factor,
            right: 0.0,
        };
        self.push(scale, None);
    }

    /// The rope's angles for the step's tokens, which layers share.
    fn rope_angles(&mut self, rope: &Rope) -> Result<RopeAngles, OpenError> {
        if let Some((_, angles)) = self.ropes.iter().find(|(known, _)| known == rope) {
            return Ok(*angles);
        }
        let frequencies = self.weights.frequencies(rope, self.sizes.context);
        let pairs = frequencies.len();
        let index = self.ropes.len();
        let (cos, sin) = (
            self.buffer(Buffer::Cos(index), pairs).at,
            self.buffer(Buffer::Sin(index), pairs).at,
        );
        let axes = match rope.sections {
            Some(sections) => {
                let axes: Vec<u32> = (0..pairs).map(|pair| sections.axis(pair) as u32).collect();
                self.weights.words(&axes)?
            }
            None => Address::NONE,
        };
        let op = Angles {
            cos,
            sin,
            frequencies: self.weights.constants(&frequencies)?,
            axes,
            pairs: pairs as u32,
            factor: rope.attention_factor(),
        };
        self.push(op, None);
        let angles = RopeAngles {
            cos,
            sin,
            pairs: pairs as u32,
            interleaved: u32::from(rope.pairs == loquat_spec::RopePairs::Interleaved),
        };
        self.ropes.push((rope.clone(), angles));
        Ok(angles)
    }

    /// Rotates heads that lie `head_step` apart.
    fn rotate(
        &mut self,
        rope: Option<&Rope>,
        values: Vectors,
        heads: usize,
        head_step: usize,
    ) -> Result<(), OpenError> {
        let Some(rope) = rope else {
            return Ok(());
        };
        let angles = self.rope_angles(rope)?;
        let op = ops::Rope {
            values: values.at,
            cos: angles.cos,
            sin: angles.sin,
            stride: values.stride,
            heads: heads as u32,
            head_step: head_step as u32,
            pairs: angles.pairs,
            interleaved: angles.interleaved,
            reserved: 0,
        };
        self.push(op, None);
        Ok(())
    }

    fn readout(&mut self) -> Result<(), OpenError> {
        let spec = self.spec;
        let hidden = spec.hidden_size;
        let stream = self.stream();
        let out = self.buffer(Buffer::Hidden, hidden);
        let vocab = self.buffer(Buffer::Logits, spec.vocab_size);
        let chosen = self.buffer(Buffer::Chosen, 1).at;
        let forward = std::mem::take(&mut self.program.forward);
        // The step's table names the emitted tokens.
        let gather = Gather {
            input: stream.at,
            out: out.at,
            index: Address::NONE,
            input_stride: stream.stride,
            out_stride: out.stride,
            len: hidden as u32,
            reserved: 0,
        };
        self.push_over(Domain::Emitted, gather, None);
        self.norm(&spec.final_norm, Role::FinalNorm, out, out)?;
        let hidden_part = std::mem::take(&mut self.program.forward);
        let roles = LinearRoles {
            matrix: loquat_session::loading::head_role(spec),
            bias: spec.head.bias.then_some(Role::HeadBias),
        };
        self.linear(roles, out, vocab)?;
        if let Some(linear) = self.program.forward.last_mut() {
            // Adapters may change the head alone even if it is the embedding.
            linear.role = Some(Role::Head);
        }
        if spec.head.scale != 1.0 || spec.head.softcap.is_some() {
            let finish = FinishLogits {
                logits: vocab.at,
                vocab: spec.vocab_size as u32,
                scale: spec.head.scale,
                softcap: spec.head.softcap.unwrap_or(0.0),
                reserved: 0,
            };
            self.push(finish, Some(Role::Head));
        }
        let head = std::mem::replace(&mut self.program.forward, forward);
        let largest = Largest {
            logits: vocab.at,
            out: chosen,
            vocab: spec.vocab_size as u32,
            reserved: 0,
        };
        self.program.readout = hidden_part;
        self.program.greedy = head.clone();
        self.program.drawn = head.clone();
        let draw = draw_tokens(vocab.at, chosen, spec.vocab_size);
        self.program.drawn.push(draw);
        let largest = Instruction::new(largest.into(), Domain::Emitted, None);
        self.program.greedy.push(largest);
        self.program.head = head;
        let Program {
            readout,
            head,
            greedy,
            drawn,
            ..
        } = &mut self.program;
        let emitted = readout.iter_mut().chain(head).chain(greedy).chain(drawn);
        for instruction in emitted {
            instruction.domain = Domain::Emitted;
        }
        self.program.hidden = out.at;
        self.program.logits = vocab.at;
        self.program.chosen = chosen;
        Ok(())
    }
}

/// A norm of one vector per token, or only its factors. Its length and weights are missing.
fn norm_op(norm: Option<&loquat_spec::Norm>, input: Vectors, out: Vectors) -> ops::Norm {
    ops::Norm {
        input: input.at,
        out: out.at,
        input_stride: input.stride,
        out_stride: out.stride,
        parts: 1,
        len: 0,
        weight: Address::NONE,
        bias: Address::NONE,
        weight_stride: 0,
        function: match norm.map(|norm| norm.kind) {
            None => NormFunction::None,
            Some(NormKind::Rms) => NormFunction::Rms,
            Some(NormKind::Layer) => NormFunction::Layer,
        },
        eps: norm.map_or(0.0, |norm| norm.eps),
        before: 1.0,
        after: 1.0,
        reserved: 0,
    }
}

/// The role of a norm's bias.
fn bias_of(role: Role) -> Option<Role> {
    match role {
        Role::FinalNorm => Some(Role::FinalNormBias),
        Role::Layer(layer, role) => Some(Role::Layer(layer, role.bias()?)),
        _ => None,
    }
}
