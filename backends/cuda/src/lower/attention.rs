//! Softmax attention.

use loquat_session::OpenError;
use loquat_session::Reach;
use loquat_spec::{Attention, KvSource, LayerRole as R, QkNorm, QkSpan, Role, Rope};

use super::buffers::Buffer;
use super::{Lowering, Vectors, norm_op};
use crate::ops::{
    self, Activate, ActivationFunction, Address, Attend, ReachKind, Temperature, WriteKv,
};

impl Lowering<'_, '_> {
    pub(super) fn attention(
        &mut self,
        layer: usize,
        spec: &Attention,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let kv_layer = match spec.kv {
            KvSource::Layer(source) => source,
            KvSource::Own | KvSource::KeyIsValue => layer,
        };
        let query = self.buffer(Buffer::Query, spec.query_len());
        self.layer_linear(layer, R::Query, input, query)?;
        if kv_layer == layer {
            self.keys_and_values(layer, spec, input)?;
        }
        let norm = spec.qk_norm.as_ref();
        self.prepare_heads(layer, (R::QueryNorm, norm), spec, (query, spec.heads))?;
        if let Some(temperature) = &spec.temperature {
            let op = Temperature {
                values: query.at,
                stride: query.stride,
                len: spec.query_len() as u32,
                beta: temperature.beta,
                span: temperature.span as u32,
                offset: temperature.offset as u32,
                reserved: 0,
            };
            self.push(op, None);
        }
        let sinks = if spec.sinks {
            self.weights.vector(Role::Layer(layer, R::Sinks))?
        } else {
            Address::NONE
        };
        let mixed = self.buffer(Buffer::Inner, spec.mixed_len());
        let (reach, reach_len) = reach(spec.reach);
        let attend = Attend {
            kv: self.kv.layer(kv_layer),
            query: query.at,
            out: mixed.at,
            query_stride: query.stride,
            out_stride: mixed.stride,
            heads: spec.heads as u32,
            reach,
            reach_len,
            looks_ahead: self.spec.media_attention().applies_to(spec.reach).into(),
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
            sinks,
        };
        self.push(attend, Some(Role::Layer(layer, R::Query)));
        if spec.output_gate {
            let gate = self.buffer(Buffer::Gate, spec.mixed_len());
            self.layer_linear(layer, R::OutputGate, input, gate)?;
            self.gate(gate, mixed, spec.mixed_len(), ActivationFunction::Sigmoid);
        }
        self.output(layer, R::Output, mixed)
    }

    fn keys_and_values(
        &mut self,
        layer: usize,
        spec: &Attention,
        input: Vectors,
    ) -> Result<(), OpenError> {
        let key = self.buffer(Buffer::Key, spec.key_len());
        let value = self.buffer(Buffer::Value, spec.value_len());
        self.layer_linear(layer, R::Key, input, key)?;
        if spec.kv == KvSource::KeyIsValue {
            self.add(key, None, value, spec.key_len());
        } else {
            self.layer_linear(layer, R::Value, input, value)?;
        }
        let norm = spec.qk_norm.as_ref();
        self.prepare_heads(layer, (R::KeyNorm, norm), spec, (key, spec.kv_heads))?;
        if spec.value_norm.is_some() || spec.value_scale != 1.0 {
            // It never has a weight.
            let op = ops::Norm {
                parts: spec.kv_heads as u32,
                len: spec.value_dim as u32,
                after: spec.value_scale,
                ..norm_op(spec.value_norm.as_ref(), value, value)
            };
            self.push(op, None);
        }
        let write = WriteKv {
            kv: self.kv.layer(layer),
            keys: key.at,
            values: value.at,
            key_stride: key.stride,
            value_stride: value.stride,
        };
        self.push(write, Some(Role::Layer(layer, R::Key)));
        Ok(())
    }

    /// Norm and rope, in the order that the norm requires.
    fn prepare_heads(
        &mut self,
        layer: usize,
        (role, norm): (R, Option<&QkNorm>),
        spec: &Attention,
        (values, heads): (Vectors, usize),
    ) -> Result<(), OpenError> {
        let rope: Option<&Rope> = spec.rope.as_ref();
        let after_rope = norm.is_some_and(|norm| norm.after_rope);
        if !after_rope {
            self.head_norm(layer, (role, norm), spec, (values, heads))?;
        }
        self.rotate(rope, values, heads, spec.head_dim)?;
        if after_rope {
            self.head_norm(layer, (role, norm), spec, (values, heads))?;
        }
        Ok(())
    }

    fn head_norm(
        &mut self,
        layer: usize,
        (role, norm): (R, Option<&QkNorm>),
        spec: &Attention,
        (values, heads): (Vectors, usize),
    ) -> Result<(), OpenError> {
        let Some(norm) = norm else {
            return Ok(());
        };
        let (parts, len, weight_stride) = match norm.span {
            QkSpan::AllHeads => (1, heads * spec.head_dim, 0),
            QkSpan::Head => (heads, spec.head_dim, 0),
            QkSpan::HeadWeights => (heads, spec.head_dim, spec.head_dim),
        };
        let op = ops::Norm {
            parts: parts as u32,
            len: len as u32,
            weight_stride: weight_stride as u32,
            ..norm_op(Some(&norm.norm), values, values)
        };
        self.weighted_norm(op, Some(&norm.norm), Role::Layer(layer, role))
    }

    /// `values *= function(gate)`
    pub(super) fn gate(
        &mut self,
        gate: Vectors,
        values: Vectors,
        len: usize,
        function: ActivationFunction,
    ) {
        let op = Activate {
            gate: gate.at,
            up: values.at,
            out: values.at,
            gate_stride: gate.stride,
            up_stride: values.stride,
            out_stride: values.stride,
            len: len as u32,
            function,
            scale: 1.0,
            alpha: 0.0,
            limit: 0.0,
            up_is_scalar: 0,
            reserved: 0,
        };
        self.push(op, None);
    }
}

fn reach(reach: Reach) -> (ReachKind, u32) {
    match reach {
        Reach::All => (ReachKind::All, 0),
        Reach::Window(len) => (ReachKind::Window, len as u32),
        Reach::Chunk(len) => (ReachKind::Chunk, len as u32),
    }
}
