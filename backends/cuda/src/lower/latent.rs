//! Attention over one latent vector per token, in absorbed form.

use loquat_session::OpenError;
use loquat_spec::{LatentAttention, LayerRole as R, Role};

use super::buffers::Buffer;
use super::{Lowering, Vectors, norm_op};
use crate::ops::{self, Address, Attend, CopyParts, ReachKind, WriteKv};

impl Lowering<'_, '_> {
    pub(super) fn latent(
        &mut self,
        layer: usize,
        spec: &LatentAttention,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let query = self.latent_query(layer, spec, input)?;
        self.write_latent(layer, spec, input)?;
        let (nope, query_dim) = (spec.nope_dim, spec.nope_dim + spec.rope_dim);
        let (latent_dim, cached) = (spec.latent_dim, spec.cached_len());
        // Each head's query in the latent space, then its rotated part.
        let absorbed = self.buffer(Buffer::Gate, spec.heads * cached);
        let heads = [(query, query_dim), (absorbed, cached)];
        self.head_linear(layer, R::KeyAbsorb, spec.heads, heads)?;
        let rope_part = query.values(nope);
        self.rotate(spec.rope.as_ref(), rope_part, spec.heads, query_dim)?;
        let copy = CopyParts {
            input: rope_part.at,
            out: absorbed.values(latent_dim).at,
            input_stride: query.stride,
            out_stride: absorbed.stride,
            parts: spec.heads as u32,
            input_step: query_dim as u32,
            out_step: cached as u32,
            len: spec.rope_dim as u32,
        };
        self.push(copy, None);
        let mixed = self.buffer(Buffer::Mixed, spec.heads * latent_dim);
        let attend = Attend {
            kv: self.kv.layer(layer),
            query: absorbed.at,
            out: mixed.at,
            query_stride: absorbed.stride,
            out_stride: mixed.stride,
            heads: spec.heads as u32,
            reach: ReachKind::All,
            reach_len: 0,
            looks_ahead: 0,
            scale: spec.scale,
            softcap: 0.0,
            sinks: Address::NONE,
        };
        self.push(attend, Some(Role::Layer(layer, R::Latent)));
        let inner = self.buffer(Buffer::Inner, spec.mixed_len());
        let heads = [(mixed, latent_dim), (inner, spec.value_dim)];
        self.head_linear(layer, R::ValueUp, spec.heads, heads)?;
        self.output(layer, R::Output, inner)
    }

    fn latent_query(
        &mut self,
        layer: usize,
        spec: &LatentAttention,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let query = self.buffer(Buffer::Query, spec.query_len());
        let Some(rank) = spec.query_rank else {
            self.layer_linear(layer, R::Query, input, query)?;
            return Ok(query);
        };
        let narrow = self.buffer(Buffer::Narrow, rank);
        self.layer_linear(layer, R::QueryDown, input, narrow)?;
        let op = ops::Norm {
            len: rank as u32,
            ..norm_op(Some(&spec.norm), narrow, narrow)
        };
        let role = Role::Layer(layer, R::QueryDownNorm);
        self.weighted_norm(op, Some(&spec.norm), role)?;
        self.layer_linear(layer, R::QueryUp, narrow, query)?;
        Ok(query)
    }

    /// The normalized latent and the rotated rope key, as one long key.
    fn write_latent(
        &mut self,
        layer: usize,
        spec: &LatentAttention,
        input: Vectors,
    ) -> Result<(), OpenError> {
        let cached = self.buffer(Buffer::Key, spec.cached_len());
        self.layer_linear(layer, R::Latent, input, cached)?;
        let rope_key = cached.values(spec.latent_dim);
        self.layer_linear(layer, R::RopeKey, input, rope_key)?;
        let op = ops::Norm {
            len: spec.latent_dim as u32,
            ..norm_op(Some(&spec.norm), cached, cached)
        };
        let role = Role::Layer(layer, R::LatentNorm);
        self.weighted_norm(op, Some(&spec.norm), role)?;
        self.rotate(spec.rope.as_ref(), rope_key, 1, spec.rope_dim)?;
        let write = WriteKv {
            kv: self.kv.layer(layer),
            keys: cached.at,
            values: Address::NONE,
            key_stride: cached.stride,
            value_stride: 0,
        };
        self.push(write, Some(role));
        Ok(())
    }
}
