//! The fast path: dense transformers with bf16 weights, five kernels a layer.
//!
//! A step's tokens are those of rows with one token first, which attend in a fused kernel, then
//! those of longer rows, which attend in others. All matrices are the same for both.

use loquat_session::{OpenError, Reach};
use loquat_spec::{
    Activation, Attention, Block, Branch, Dense, FeedForward, Inner, KvSource, LayerRole as R,
    MediaAttention, Mixer, ModelSpec, Norm, NormKind, QkSpan, Role, Rope, RopePairs,
};

use super::buffers::Buffer;
use super::{
    Buffers, Domain, Instruction, KvLayout, Program, Sizes, Vectors, WeightLoader, draw_tokens,
    norm_op,
};
use crate::fused::{
    self, AngleSet, Epilogue, FusedAttention, FusedEmbed, FusedLinear, FusedOp,
    FusedPromptAttention, FusedQkvFinish, PACKED, TRIGGER, parts,
};
use crate::fused_launch::has_attention;
use crate::ops::{self, Address, FinishLogits, Gather, Largest, Op};

/// Ropes whose angles are computed beside the embedding.
const MAX_ROPES: usize = 2;
/// Parts of a matrix whose product is not stored as it is.
const MAX_PARTS: u32 = 8;
/// Tokens of a launch of a fused linear operation.
const MAX_TOKENS: usize = 8;
/// Blocks that one launch may have: more than any GPU runs at a time.
const MAX_BLOCKS: usize = 4096;

/// A layer that the fast path runs.
struct FastLayer<'a> {
    attention: &'a Attention,
    attention_norm: &'a Norm,
    /// Multiply what the two blocks add to the stream.
    factors: [f32; 2],
    dense: &'a Dense,
    dense_norm: &'a Norm,
}

/// Whether the fast path runs a model; otherwise what it does not have.
pub fn check(spec: &ModelSpec) -> Result<(), &'static str> {
    if spec.embedding.positions.is_some() {
        return Err("learned positions");
    }
    if spec.per_layer_inputs.is_some() {
        return Err("per-layer inputs");
    }
    let vision = spec.vision.as_ref();
    if vision.is_some_and(|vision| !vision.deepstack.is_empty()) {
        return Err("features that enter several layers");
    }
    if !is_plain_norm(&spec.final_norm) {
        return Err("a final norm of another kind");
    }
    if !is_width(spec.hidden_size) {
        return Err("a hidden size below 128, or one that 32 does not divide");
    }
    for layer in layers(spec) {
        let layer = layer.ok_or("other blocks than attention and a gated feed-forward")?;
        check_attention(spec, layer.attention)?;
        check_dense(layer.dense)?;
        if parts(2 * layer.dense.size as u32, spec.hidden_size as u32) > MAX_PARTS {
            return Err("a feed-forward of another size");
        }
    }
    if parts(spec.vocab_size as u32, spec.hidden_size as u32) > MAX_PARTS {
        return Err("a head of another size");
    }
    if ropes(spec).len() > MAX_ROPES {
        return Err("more than two ropes");
    }
    Ok(())
}

fn check_attention(spec: &ModelSpec, attention: &Attention) -> Result<(), &'static str> {
    let queries = attention.heads / attention.kv_heads.max(1);
    if attention.head_dim != attention.value_dim || !has_attention(attention.head_dim, queries) {
        return Err("heads of another size");
    }
    if !is_width(attention.heads * attention.head_dim) {
        return Err("heads that 32 does not divide together");
    }
    let qk_norm = attention
        .qk_norm
        .is_none_or(|qk| qk.span == QkSpan::Head && !qk.after_rope && is_plain_norm(&qk.norm));
    if !qk_norm || attention.value_norm.is_some() {
        return Err("another norm of heads");
    }
    let rope = attention.rope.as_ref();
    if rope.is_some_and(|rope| rope.pairs != RopePairs::Halves) {
        return Err("an interleaved rope");
    }
    let media = spec.media_attention();
    let looks_ahead = media != MediaAttention::Causal && media.applies_to(attention.reach);
    let others = attention.value_scale != 1.0
        || attention.temperature.is_some()
        || attention.sinks
        || attention.output_gate
        || attention.kv != KvSource::Own
        || matches!(attention.reach, Reach::Chunk(_))
        || looks_ahead;
    if others {
        return Err("another form of attention");
    }
    Ok(())
}

fn check_dense(dense: &Dense) -> Result<(), &'static str> {
    let activation = matches!(dense.activation, Activation::Silu | Activation::GeluTanh);
    let plain = dense.gated && !dense.bias && dense.gate_scale == 1.0;
    if !activation || !plain || !is_width(dense.size) {
        return Err("another feed-forward");
    }
    Ok(())
}

/// Whether a matrix may have so many columns.
fn is_width(cols: usize) -> bool {
    cols.is_multiple_of(32) && cols >= fused::MIN_COLS as usize
}

/// 0: all positions.
fn reach_len(attention: &Attention) -> u32 {
    match attention.reach {
        Reach::Window(len) => len as u32,
        Reach::All | Reach::Chunk(_) => 0,
    }
}

fn is_plain_norm(norm: &Norm) -> bool {
    norm.kind == NormKind::Rms && norm.weight && !norm.bias
}

/// `None` for a layer of another structure.
fn layers(spec: &ModelSpec) -> impl Iterator<Item = Option<FastLayer<'_>>> {
    spec.layers.iter().map(|layer| {
        let [attention, dense] = &layer.blocks[..] else {
            return None;
        };
        if layer.scaled {
            return None;
        }
        let (attention, attention_norm, attention_factor) = only_branch(attention)?;
        let (dense, dense_norm, dense_factor) = only_branch(dense)?;
        let Inner::Mixer(Mixer::Attention(attention)) = attention else {
            return None;
        };
        let Inner::FeedForward(FeedForward::Dense(dense)) = dense else {
            return None;
        };
        Some(FastLayer {
            attention,
            attention_norm,
            factors: [attention_factor, dense_factor],
            dense,
            dense_norm,
        })
    })
}

/// A block's only branch with its norm and the factor of what it adds.
fn only_branch(block: &Block) -> Option<(&Inner, &Norm, f32)> {
    let [branch] = &block.branches[..] else {
        return None;
    };
    let Branch {
        pre_norm,
        input_scale,
        inner,
        output_scale,
        post_norm,
    } = branch;
    let norm = pre_norm.as_ref().filter(|norm| is_plain_norm(norm))?;
    let plain = block.post_norm.is_none() && post_norm.is_none() && *input_scale == 1.0;
    plain.then_some((inner, norm, output_scale * block.residual_scale))
}

/// The model's distinct ropes.
fn ropes(spec: &ModelSpec) -> Vec<&Rope> {
    let mut ropes: Vec<&Rope> = Vec::new();
    for rope in spec.mixers().filter_map(|(_, mixer)| mixer.rope()) {
        if !ropes.contains(&rope) {
            ropes.push(rope);
        }
    }
    ropes
}

/// Lowers a model that [`check`] accepts.
pub fn lower_fast(
    spec: &ModelSpec,
    weights: &mut WeightLoader<'_>,
    buffers: &mut Buffers,
    kv: &KvLayout,
    sizes: Sizes,
) -> Result<Program, OpenError> {
    let mut lowering = FastLowering {
        spec,
        weights,
        buffers,
        kv,
        angles: Vec::new(),
        program: Program {
            tile_groups: (sizes.tokens / 8) as u32,
            ..Program::default()
        },
    };
    lowering.embed(sizes.context)?;
    let count = spec.layers.len();
    for (index, layer) in layers(spec).flatten().enumerate() {
        lowering.weights.progress(index, count + 1);
        lowering.layer(index, &layer)?;
    }
    lowering.weights.progress(count, count + 1);
    lowering.readout()?;
    lowering.weights.progress(count + 1, count + 1);
    lowering.weights.finish_packing();
    Ok(lowering.program)
}

struct FastLowering<'a, 'w> {
    spec: &'a ModelSpec,
    weights: &'a mut WeightLoader<'w>,
    buffers: &'a mut Buffers,
    kv: &'a KvLayout,
    angles: Vec<(&'a Rope, AngleSet)>,
    program: Program,
}

impl<'a> FastLowering<'a, '_> {
    fn push(&mut self, domain: Domain, op: impl Into<Op>, role: Option<Role>) {
        let instruction = Instruction::new(op.into(), domain, role);
        self.program.forward.push(instruction);
    }

    fn buffer(&mut self, buffer: Buffer, width: usize) -> Address {
        self.buffers.address(buffer, width)
    }

    /// A buffer of bf16 values.
    fn rounded(&mut self, buffer: Buffer, width: usize) -> Address {
        self.buffers.address(buffer, width.div_ceil(2))
    }

    fn hidden(&self) -> u32 {
        self.spec.hidden_size as u32
    }

    /// Parts of the sum of squares of the stream.
    fn sum_count(&self) -> u32 {
        self.hidden().div_ceil(16)
    }

    fn sums(&mut self) -> Address {
        let count = self.sum_count() as usize;
        self.buffer(Buffer::Sums, count)
    }

    fn stream(&mut self) -> Address {
        self.buffer(Buffer::Stream, self.spec.hidden_size)
    }

    /// The stream's product with the next norm's gain.
    fn x(&mut self) -> Address {
        self.rounded(Buffer::Input, self.spec.hidden_size)
    }

    fn embed(&mut self, context: usize) -> Result<(), OpenError> {
        let mut angles = [AngleSet::default(); MAX_ROPES];
        for (index, rope) in ropes(self.spec).into_iter().enumerate() {
            let frequencies = self.weights.frequencies(rope, context);
            let pairs = frequencies.len();
            let axes = match rope.sections {
                Some(sections) => {
                    let axes = (0..pairs).map(|pair| sections.axis(pair) as u32);
                    self.weights.words(&axes.collect::<Vec<_>>())?
                }
                None => Address::NONE,
            };
            angles[index] = AngleSet {
                cos: self.buffer(Buffer::Cos(index), pairs),
                sin: self.buffer(Buffer::Sin(index), pairs),
                frequencies: self.weights.constants(&frequencies)?,
                axes,
                pairs: pairs as u32,
                factor: rope.attention_factor(),
            };
            self.angles.push((rope, angles[index]));
        }
        let (table, packed) = if self.spec.head.tied {
            (self.weights.packed(&[Role::Embedding])?, PACKED)
        } else {
            (self.weights.matrix(Role::Embedding)?.values, 0)
        };
        let embed = FusedEmbed {
            table,
            gain: self.weights.vector(Role::Layer(0, R::MixerPreNorm))?,
            stream: self.stream(),
            x: self.x(),
            sums: self.sums(),
            angles,
            hidden: self.hidden(),
            sum_count: self.sum_count(),
            scale: self.spec.embedding.scale,
            flags: TRIGGER | packed,
            groups: 0,
            reserved: 0,
        };
        self.push(Domain::Tokens, FusedOp::Embed(embed), Some(Role::Embedding));
        Ok(())
    }

    fn layer(&mut self, index: usize, layer: &FastLayer<'a>) -> Result<(), OpenError> {
        let attention = layer.attention;
        let role = |role| Role::Layer(index, role);
        let (head_dim, heads) = (attention.head_dim, attention.heads);
        let width = (heads + 2 * attention.kv_heads) * head_dim;
        let qkv = self.buffer(Buffer::Query, width);
        let roles = [R::Query, R::Key, R::Value].map(role);
        let lens = [
            attention.query_len(),
            attention.key_len(),
            attention.value_len(),
        ];
        let biases = [R::QueryBias, R::KeyBias, R::ValueBias].map(role);
        let store = FusedLinear {
            weights: self.weights.packed(&roles)?,
            x: self.x(),
            sums: self.sums(),
            sum_count: self.sum_count(),
            bias: self.weights.joined(&biases, &lens)?,
            out: qkv,
            eps: layer.attention_norm.eps,
            ..self.linear(width, self.spec.hidden_size)
        };
        self.push_linear(Epilogue::Store, store, role(R::Query));
        let mixed = self.rounded(Buffer::Mixed, heads * head_dim);
        self.attend_one(index, attention, qkv, mixed)?;
        self.attend_many(index, attention, qkv, mixed)?;
        let residual = FusedLinear {
            weights: self.weights.packed(&[role(R::Output)])?,
            x: mixed,
            bias: self.weights.optional(role(R::OutputBias))?,
            gain: self.weights.vector(role(R::FeedForwardPreNorm))?,
            factor: layer.factors[0],
            ..self.residual(heads * head_dim)
        };
        self.push_linear(Epilogue::Residual, residual, role(R::Output));
        let size = layer.dense.size;
        let inner = self.rounded(Buffer::Inner, size);
        let gated = FusedLinear {
            weights: self.weights.packed_gates(role(R::Gate), role(R::Up))?,
            x: self.x(),
            sums: self.sums(),
            sum_count: self.sum_count(),
            next: inner,
            eps: layer.dense_norm.eps,
            activation: match layer.dense.activation {
                Activation::GeluTanh => fused::GELU_TANH,
                _ => fused::SILU,
            },
            ..self.linear(2 * size, self.spec.hidden_size)
        };
        self.push_linear(Epilogue::Gated, gated, role(R::Gate));
        let next_gain = if index + 1 == self.spec.layers.len() {
            Role::FinalNorm
        } else {
            Role::Layer(index + 1, R::MixerPreNorm)
        };
        let residual = FusedLinear {
            weights: self.weights.packed(&[role(R::Down)])?,
            x: inner,
            gain: self.weights.vector(next_gain)?,
            factor: layer.factors[1],
            ..self.residual(size)
        };
        self.push_linear(Epilogue::Residual, residual, role(R::Down));
        Ok(())
    }

    fn push_linear(&mut self, epilogue: Epilogue, linear: FusedLinear, role: Role) {
        self.push(
            Domain::Tokens,
            FusedOp::Linear(epilogue, linear),
            Some(role),
        );
    }

    /// A linear operation of which only the sizes are set.
    fn linear(&self, rows: usize, cols: usize) -> FusedLinear {
        FusedLinear {
            weights: Address::NONE,
            x: Address::NONE,
            sums: Address::NONE,
            bias: Address::NONE,
            out: Address::NONE,
            next: Address::NONE,
            gain: Address::NONE,
            next_sums: Address::NONE,
            candidates: Address::NONE,
            arrivals: Address::NONE,
            tokens: Address::NONE,
            index: Address::NONE,
            rows: rows as u32,
            cols: cols as u32,
            parts: parts(rows as u32, cols as u32),
            sum_count: 0,
            eps: 0.0,
            factor: 1.0,
            activation: fused::SILU,
            flags: TRIGGER,
            groups: 0,
            reserved: 0,
        }
    }

    /// A product that is added to the stream.
    fn residual(&mut self, cols: usize) -> FusedLinear {
        FusedLinear {
            out: self.stream(),
            next: self.x(),
            next_sums: self.sums(),
            ..self.linear(self.spec.hidden_size, cols)
        }
    }

    fn angles_of(&self, attention: &Attention) -> AngleSet {
        let rope = attention.rope.as_ref();
        let known = self.angles.iter().find(|(known, _)| Some(*known) == rope);
        known.map_or(AngleSet::default(), |(_, angles)| *angles)
    }

    /// Rows of one token.
    fn attend_one(
        &mut self,
        index: usize,
        attention: &Attention,
        qkv: Address,
        out: Address,
    ) -> Result<(), OpenError> {
        let role = |role| Role::Layer(index, role);
        let angles = self.angles_of(attention);
        let norm = attention.qk_norm;
        let mut gain = |of| match norm {
            Some(_) => self.weights.vector(role(of)),
            None => Ok(Address::NONE),
        };
        let op = FusedAttention {
            query_gain: gain(R::QueryNorm)?,
            key_gain: gain(R::KeyNorm)?,
            kv: self.kv.layer(index),
            qkv,
            cos: angles.cos,
            sin: angles.sin,
            out,
            heads: attention.heads as u32,
            pairs: angles.pairs,
            reach_len: reach_len(attention),
            first_row: 0,
            scale: attention.scale,
            softcap: attention.softcap.unwrap_or(0.0),
            eps: norm.map_or(0.0, |norm| norm.norm.eps),
            flags: TRIGGER,
            groups: 0,
            reserved: 0,
        };
        self.push(
            Domain::SingleRows,
            FusedOp::Attention(op),
            Some(role(R::Query)),
        );
        Ok(())
    }

    /// Rows of several tokens.
    fn attend_many(
        &mut self,
        index: usize,
        attention: &Attention,
        qkv: Address,
        out: Address,
    ) -> Result<(), OpenError> {
        let role = |role| Role::Layer(index, role);
        let angles = self.angles_of(attention);
        let norm = attention.qk_norm;
        let mut gain = |of| match norm {
            Some(_) => self.weights.vector(role(of)),
            None => Ok(Address::NONE),
        };
        let (query_gain, key_gain) = (gain(R::QueryNorm)?, gain(R::KeyNorm)?);
        let kv = self.kv.layer(index);
        let query = self.rounded(Buffer::Key, attention.query_len());
        let finish = FusedQkvFinish {
            kv,
            qkv,
            cos: angles.cos,
            sin: angles.sin,
            query_gain,
            key_gain,
            query,
            heads: attention.heads as u32,
            pairs: angles.pairs,
            eps: norm.map_or(0.0, |norm| norm.norm.eps),
            flags: TRIGGER,
        };
        let of_key = Some(role(R::Key));
        self.push(Domain::LongRows, FusedOp::QkvFinish(finish), of_key);
        let attend = FusedPromptAttention {
            kv,
            query,
            out,
            heads: attention.heads as u32,
            reach_len: reach_len(attention),
            first_row: 0,
            row_count: 0,
            scale: attention.scale,
            softcap: attention.softcap.unwrap_or(0.0),
            flags: TRIGGER,
            groups: 0,
        };
        self.push(Domain::LongRows, FusedOp::PromptAttention(attend), of_key);
        Ok(())
    }

    fn readout(&mut self) -> Result<(), OpenError> {
        let spec = self.spec;
        let hidden = spec.hidden_size;
        let head = loquat_session::loading::head_role(spec);
        let forward = std::mem::take(&mut self.program.forward);
        self.program.readout = self.hidden_states()?;
        let logits = self.buffer(Buffer::Logits, spec.vocab_size);
        let chosen = self.buffer(Buffer::Chosen, 1);
        let bias = if spec.head.bias {
            self.weights.vector(Role::HeadBias)?
        } else {
            Address::NONE
        };
        let linear = FusedLinear {
            weights: self.weights.packed(&[head])?,
            x: self.x(),
            sums: self.sums(),
            sum_count: self.sum_count(),
            bias,
            eps: spec.final_norm.eps,
            ..self.linear(spec.vocab_size, hidden)
        };
        let store = FusedLinear {
            out: logits,
            ..linear
        };
        self.push_head(FusedOp::Linear(Epilogue::Store, store).into(), head);
        let finishes = spec.head.scale != 1.0 || spec.head.softcap.is_some();
        if finishes {
            let finish = FinishLogits {
                logits,
                vocab: spec.vocab_size as u32,
                scale: spec.head.scale,
                softcap: spec.head.softcap.unwrap_or(0.0),
                reserved: 0,
            };
            self.push_head(finish.into(), head);
        }
        self.program.head = std::mem::take(&mut self.program.forward);
        self.program.drawn = self.program.head.clone();
        let draw = draw_tokens(logits, chosen, spec.vocab_size);
        self.program.drawn.push(draw);
        if finishes {
            // The largest logit may be another after rounding, so it is taken last.
            let largest = Largest {
                logits,
                out: chosen,
                vocab: spec.vocab_size as u32,
                reserved: 0,
            };
            self.program.forward = self.program.head.clone();
            self.push_head(largest.into(), head);
        } else {
            let candidates = vec![0; 2 * MAX_TOKENS * MAX_BLOCKS];
            let largest = FusedLinear {
                candidates: self.weights.words(&candidates)?,
                arrivals: self.weights.words(&[0])?,
                tokens: chosen,
                ..linear
            };
            self.push_head(FusedOp::Linear(Epilogue::Largest, largest).into(), head);
        }
        self.program.greedy = std::mem::replace(&mut self.program.forward, forward);
        self.program.logits = logits;
        self.program.chosen = chosen;
        self.program.reads_emitted = true;
        Ok(())
    }

    fn push_head(&mut self, op: Op, role: Role) {
        self.push(Domain::Emitted, op, Some(role));
    }

    /// From the stream to hidden states.
    fn hidden_states(&mut self) -> Result<Vec<Instruction>, OpenError> {
        let hidden = self.spec.hidden_size;
        let out = self.buffer(Buffer::Hidden, hidden);
        let gather = Gather {
            input: self.stream(),
            out,
            index: Address::NONE,
            input_stride: hidden as u32,
            out_stride: hidden as u32,
            len: hidden as u32,
            reserved: 0,
        };
        let vectors = Vectors {
            at: out,
            stride: hidden as u32,
        };
        let norm = ops::Norm {
            len: hidden as u32,
            weight: self.weights.vector(Role::FinalNorm)?,
            ..norm_op(Some(&self.spec.final_norm), vectors, vectors)
        };
        self.program.hidden = out;
        let ops: [Op; 2] = [gather.into(), norm.into()];
        let readout = ops.map(|op| Instruction::new(op, Domain::Emitted, Some(Role::FinalNorm)));
        Ok(readout.to_vec())
    }
}
