//! From a tower and a batch to operations.

use loquat_session::tower::TowerBatch;
use loquat_spec::{Activation, NormKind, PatchSpan, VisionSpec};

use super::buffers::{TowerBuffer as B, TowerBuffers};
use super::tables::{BatchTables, SumTable};
use super::weights::{BranchEnd, LayerWeights, TowerLinear, TowerNorm, TowerWeights};
use crate::lower::activation_function;
use crate::ops::{
    Activate, Add, Address, Affine, AttendDense, Clamp, Linear, MatrixRef, Norm, NormFunction, Op,
    Rope, SumRows,
};

/// An operation over so many vectors.
pub struct TowerLaunch {
    pub op: Op,
    pub count: usize,
}

/// Where a batch's features go, `f32[level][position][hidden]`.
#[derive(Clone, Copy)]
pub struct FeatureTarget {
    pub values: Address,
    /// Positions of a level.
    pub positions: usize,
    /// Values of a position.
    pub hidden: usize,
    pub placement: Placement,
}

/// Which positions a batch's features become.
#[derive(Clone, Copy)]
pub enum Placement {
    /// Those from here on.
    From(usize),
    /// All positions are sums of features; batches after the first are added.
    Sums {
        features: SumTable,
        /// Sums of the only vector that ends rows.
        row_end: Option<SumTable>,
        adds: bool,
    },
}

/// Vectors one after another.
#[derive(Clone, Copy)]
pub(super) struct Vectors {
    pub at: Address,
    pub len: usize,
}

impl Vectors {
    pub fn stride(self) -> u32 {
        self.len as u32
    }
}

/// Lowers one batch.
pub struct TowerLowering<'a> {
    pub spec: &'a VisionSpec,
    pub weights: &'a TowerWeights,
    pub buffers: &'a TowerBuffers,
    pub tables: &'a BatchTables,
    pub target: FeatureTarget,
    pub launches: Vec<TowerLaunch>,
}

/// Patches and class tokens of the largest batch.
pub fn max_tokens(spec: &VisionSpec, max_patches: usize) -> usize {
    let patches = max_patches.max(loquat_session::tower::BATCH_PATCHES);
    let views = match (spec.class_token, spec.fixed_patches()) {
        (None, _) => 0,
        (Some(_), Some(fixed)) => patches / fixed.max(1),
        (Some(_), None) => patches,
    };
    patches + views
}

/// Positions of a batch after merging.
pub fn merged_positions(spec: &VisionSpec, batch: &TowerBatch) -> usize {
    let grids = batch.views.iter().map(|view| spec.merged(view.grid));
    grids.flatten().filter_map(|grid| grid.len()).sum()
}

impl TowerLowering<'_> {
    pub fn lower(mut self) -> Vec<TowerLaunch> {
        self.embed();
        for (index, (layer, span)) in self
            .weights
            .layers
            .iter()
            .zip(&self.spec.layers)
            .enumerate()
        {
            self.attention(layer, *span);
            self.feed_forward(layer);
            for (level, stacked) in self.spec.deepstack.iter().enumerate() {
                if stacked.after == index {
                    self.project(1 + level);
                }
            }
        }
        let stream = self.stream();
        self.optional_norm(self.weights.final_norm, stream, stream, self.tables.tokens);
        self.project(0);
        self.launches
    }

    pub(super) fn push(&mut self, op: impl Into<Op>, count: usize) {
        self.launches.push(TowerLaunch {
            op: op.into(),
            count,
        });
    }

    pub(super) fn buffer(&self, buffer: B, len: usize) -> Vectors {
        let at = self.buffers.get(buffer);
        Vectors { at, len }
    }

    fn stream(&self) -> Vectors {
        self.buffer(B::Stream, self.spec.hidden_size)
    }

    /// Embedded patches and class tokens with their positions.
    fn embed(&mut self) {
        let (spec, weights, tables) = (self.spec, self.weights, self.tables);
        let pixels = Vectors {
            at: tables.address(tables.pixels),
            len: spec.patch.values(),
        };
        let stream = self.stream();
        let patches = match tables.class {
            None => stream,
            Some(_) => self.buffer(B::Input, spec.hidden_size),
        };
        self.linear(&weights.patch, pixels, patches, tables.patches);
        self.optional_norm(weights.patch_norm, patches, patches, tables.patches);
        if let Some(class) = tables.class {
            let embedded = matrix(patches, tables.patches);
            self.sum_rows(embedded, class.patches, stream, (tables.tokens, false));
            if let Some(token) = weights.class_token {
                self.sum_rows(token, class.class, stream, (tables.tokens, true));
            }
        }
        if let (Some(table), Some(positions)) = (weights.positions, tables.positions) {
            self.sum_rows(table, positions, stream, (tables.tokens, true));
        }
        self.optional_norm(weights.embedding_norm, stream, stream, tables.tokens);
    }

    fn attention(&mut self, layer: &LayerWeights, span: PatchSpan) {
        let (block, tokens) = (&self.spec.block, self.tables.tokens);
        let width = block.heads * block.head_dim;
        let input = self.buffer(B::Input, self.spec.hidden_size);
        let [query, key, value, mixed] =
            [B::Query, B::Key, B::Value, B::Mixed].map(|buffer| self.buffer(buffer, width));
        self.norm(&layer.attention_norm, self.stream(), input, tokens);
        for (linear, norm, out, is_rotated) in [
            (&layer.query, layer.query_norm, query, true),
            (&layer.key, layer.key_norm, key, true),
            (&layer.value, layer.value_norm, value, false),
        ] {
            self.linear(linear, input, out, tokens);
            if let Some(norm) = norm {
                let op = Norm {
                    parts: block.heads as u32,
                    len: block.head_dim as u32,
                    ..norm_op(&norm, out, out)
                };
                self.push(op, tokens);
            }
            if is_rotated {
                self.rotate(out);
            }
        }
        let attend = AttendDense {
            query: query.at,
            key: key.at,
            value: value.at,
            out: mixed.at,
            ranges: self.tables.ranges(span),
            stride: width as u32,
            heads: block.heads as u32,
            head_dim: block.head_dim as u32,
            scale: block.scale,
        };
        self.push(attend, tokens);
        self.linear(&layer.output, mixed, input, tokens);
        self.add_branch(layer.attention_end, input);
    }

    fn rotate(&mut self, values: Vectors) {
        let (tables, block) = (self.tables, &self.spec.block);
        let is_interleaved = block
            .rope
            .is_some_and(|rope| rope.layout == loquat_spec::PatchRopeLayout::Interleaved);
        for rope in &tables.ropes {
            let op = Rope {
                values: values.at.values(rope.first),
                cos: tables.address(rope.cos),
                sin: tables.address(rope.sin),
                stride: values.stride(),
                heads: block.heads as u32,
                head_step: block.head_dim as u32,
                pairs: rope.pairs as u32,
                interleaved: is_interleaved.into(),
                reserved: 0,
            };
            self.push(op, tables.tokens);
        }
    }

    fn feed_forward(&mut self, layer: &LayerWeights) {
        let (mlp, tokens) = (self.spec.block.mlp, self.tables.tokens);
        let input = self.buffer(B::Input, self.spec.hidden_size);
        let inner = self.buffer(B::Query, mlp.size);
        let up = self.buffer(B::Key, mlp.size);
        self.norm(&layer.mlp_norm, self.stream(), input, tokens);
        match &layer.gate {
            Some(gate) => {
                self.linear(gate, input, inner, tokens);
                self.linear(&layer.up, input, up, tokens);
                self.activate(mlp.activation, inner, Some(up), tokens);
            }
            None => {
                self.linear(&layer.up, input, inner, tokens);
                self.activate(mlp.activation, inner, None, tokens);
            }
        }
        self.linear(&layer.down, inner, input, tokens);
        self.add_branch(layer.mlp_end, input);
    }

    /// `stream += gain * norm(output)`
    fn add_branch(&mut self, end: BranchEnd, output: Vectors) {
        let tokens = self.tables.tokens;
        self.optional_norm(end.norm, output, output, tokens);
        if !end.gain.is_none() {
            self.affine(output, (end.gain, Address::NONE), tokens);
        }
        let stream = self.stream();
        let add = Add {
            a: stream.at,
            b: output.at,
            out: stream.at,
            a_stride: stream.stride(),
            b_stride: output.stride(),
            out_stride: stream.stride(),
            len: stream.stride(),
            left: 1.0,
            right: 1.0,
        };
        self.push(add, tokens);
    }

    pub(super) fn linear(
        &mut self,
        linear: &TowerLinear,
        input: Vectors,
        out: Vectors,
        count: usize,
    ) {
        let mut input = input;
        if let Some(bounds) = linear.clamp {
            let clamped = self.buffer(B::Clamped, input.len);
            self.push(clamp_op(input, clamped, bounds.input), count);
            input = clamped;
        }
        let op = Linear {
            matrix: linear.matrix,
            input: input.at,
            out: out.at,
            bias: linear.bias,
            input_stride: input.stride(),
            out_stride: out.stride(),
            batch: 1,
            input_step: 0,
            out_step: 0,
            reserved: 0,
        };
        self.push(op, count);
        if let Some(bounds) = linear.clamp {
            self.push(clamp_op(out, out, bounds.output), count);
        }
    }

    pub(super) fn norm(&mut self, norm: &TowerNorm, input: Vectors, out: Vectors, count: usize) {
        self.push(norm_op(norm, input, out), count);
    }

    fn optional_norm(
        &mut self,
        norm: Option<TowerNorm>,
        input: Vectors,
        out: Vectors,
        count: usize,
    ) {
        if let Some(norm) = norm {
            self.norm(&norm, input, out, count);
        }
    }

    /// `values = activation(values) * up`
    pub(super) fn activate(
        &mut self,
        activation: Activation,
        values: Vectors,
        up: Option<Vectors>,
        count: usize,
    ) {
        let (function, alpha, limit) = activation_function(activation);
        let op = Activate {
            gate: values.at,
            up: up.map_or(Address::NONE, |up| up.at),
            out: values.at,
            gate_stride: values.stride(),
            up_stride: up.map_or(0, Vectors::stride),
            out_stride: values.stride(),
            len: values.stride(),
            function,
            scale: 1.0,
            alpha,
            limit,
            up_is_scalar: 0,
            reserved: 0,
        };
        self.push(op, count);
    }

    /// `values = values * scale + bias`
    pub(super) fn affine(
        &mut self,
        values: Vectors,
        (scale, bias): (Address, Address),
        count: usize,
    ) {
        let op = Affine {
            values: values.at,
            scale,
            bias,
            stride: values.stride(),
            len: values.stride(),
        };
        self.push(op, count);
    }

    /// Sums of a matrix's rows, which are added if `adds`.
    pub(super) fn sum_rows(
        &mut self,
        matrix: MatrixRef,
        table: SumTable,
        out: Vectors,
        (count, adds): (usize, bool),
    ) {
        let tables = self.tables;
        let op = SumRows {
            matrix,
            out: out.at,
            terms: tables.address(table.terms),
            rows: tables.address(table.rows),
            weights: tables.address(table.weights),
            out_stride: out.stride(),
            adds: adds.into(),
        };
        self.push(op, count);
    }
}

/// Vectors as a matrix.
pub(super) fn matrix(vectors: Vectors, rows: usize) -> MatrixRef {
    MatrixRef {
        values: vectors.at,
        rows: rows as u32,
        cols: vectors.stride(),
        format: crate::ops::Format::F32,
        reserved: 0,
    }
}

fn norm_op(norm: &TowerNorm, input: Vectors, out: Vectors) -> Norm {
    Norm {
        input: input.at,
        out: out.at,
        input_stride: input.stride(),
        out_stride: out.stride(),
        parts: 1,
        len: input.stride(),
        weight: norm.weight,
        bias: norm.bias,
        weight_stride: 0,
        function: match norm.spec.kind {
            NormKind::Rms => NormFunction::Rms,
            NormKind::Layer => NormFunction::Layer,
        },
        eps: norm.spec.eps,
        before: 1.0,
        after: 1.0,
        reserved: 0,
    }
}

fn clamp_op(input: Vectors, out: Vectors, [min, max]: [f32; 2]) -> Clamp {
    Clamp {
        input: input.at,
        out: out.at,
        input_stride: input.stride(),
        out_stride: out.stride(),
        len: input.stride(),
        min,
        max,
        reserved: 0,
    }
}
