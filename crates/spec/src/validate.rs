use std::cmp::Ordering;

use crate::error::SpecError;
use crate::experts::{Experts, GroupScore};
use crate::mixers::{
    Attention, Decay, DeltaOutputGate, DeltaRule, KvSource, LatentAttention, Mamba2, MambaNorm,
    Mixer, Reach, ShortConv,
};
use crate::model::{Branch, Dense, FeedForward, Inner, ModelSpec, Norm};
use crate::rope::{Rope, RopeScaling};

/// More than any model has. A larger number means a broken or hostile config, which is refused
/// before anything is allocated.
pub(crate) const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;
pub(crate) const MAX_HEAD_DIM: usize = 4096;
const MAX_EXPERTS: usize = 4096;
/// Over all layers; each expert has up to three tensors.
const MAX_ALL_EXPERTS: usize = 1 << 18;
const MAX_KERNEL: usize = 64;

impl ModelSpec {
    /// Checks that the numbers fit together, before any weight is read.
    pub fn validate(&self) -> Result<(), SpecError> {
        within("vocab_size", self.vocab_size, MAX_DIM)?;
        within("hidden_size", self.hidden_size, MAX_DIM)?;
        within(
            "max_position_embeddings",
            self.max_context,
            u32::MAX as usize,
        )?;
        within("num_hidden_layers", self.layers.len(), MAX_LAYERS)?;
        finite("embedding scale", self.embedding.scale)?;
        if let Some(positions) = self.embedding.positions {
            within("positions", positions, MAX_DIM)?;
            within("context", self.max_context, positions)?;
        }
        if let Some(inputs) = &self.per_layer_inputs {
            within("hidden_size_per_layer_input", inputs.dim, MAX_DIM)?;
            within("vocab_size_per_layer_input", inputs.vocab_size, MAX_DIM)?;
            within("vocab_size", self.vocab_size, inputs.vocab_size)?;
            let token = inputs.media_token as usize;
            if token >= inputs.vocab_size {
                let expected = format!("below {}", inputs.vocab_size);
                return Err(SpecError::invalid("pad_token_id", token, expected));
            }
            check_norm(&inputs.norm)?;
        }
        check_norm(&self.final_norm)?;
        finite("logit scale", self.head.scale)?;
        if let Some(cap) = self.head.softcap {
            positive("final_logit_softcapping", cap)?;
        }
        let experts = self.branches().map(|(_, branch)| match &branch.inner {
            Inner::FeedForward(FeedForward::Experts(experts)) => experts.count,
            _ => 0,
        });
        let experts = experts.fold(0usize, usize::saturating_add);
        if experts > MAX_ALL_EXPERTS {
            return Err(SpecError::invalid(
                "num_experts",
                format!("{experts} over all layers"),
                format!("at most {MAX_ALL_EXPERTS} over all layers"),
            ));
        }
        if let Some(vision) = &self.vision {
            vision.validate(self.hidden_size, self.layers.len())?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            for block in &layer.blocks {
                finite("residual scale", block.residual_scale)?;
                block.post_norm.iter().try_for_each(check_norm)?;
                for branch in &block.branches {
                    self.check_branch(index, branch)?;
                }
            }
        }
        Ok(())
    }

    fn check_branch(&self, layer: usize, branch: &Branch) -> Result<(), SpecError> {
        branch.pre_norm.iter().try_for_each(check_norm)?;
        branch.post_norm.iter().try_for_each(check_norm)?;
        finite("branch input scale", branch.input_scale)?;
        finite("branch output scale", branch.output_scale)?;
        match &branch.inner {
            Inner::Mixer(Mixer::Attention(attention)) => {
                check_attention(attention)?;
                self.check_kv_source(layer, attention)
            }
            Inner::Mixer(Mixer::Latent(latent)) => check_latent(latent),
            Inner::Mixer(Mixer::ShortConv(conv)) => check_short_conv(conv),
            Inner::Mixer(Mixer::DeltaRule(delta)) => check_delta_rule(delta),
            Inner::Mixer(Mixer::Mamba2(mamba)) => check_mamba2(mamba),
            Inner::FeedForward(FeedForward::Dense(dense)) => check_dense(dense),
            Inner::FeedForward(FeedForward::Experts(experts)) => check_experts(experts),
            Inner::FeedForward(FeedForward::PerLayerInput { dim, .. }) => {
                match self.per_layer_inputs {
                    Some(inputs) if inputs.dim == *dim => Ok(()),
                    _ => Err(SpecError::invalid(
                        "hidden_size_per_layer_input",
                        dim,
                        "the same for the model and its layers",
                    )),
                }
            }
        }
    }

    /// Shared keys and values come from an earlier layer of the same shape.
    fn check_kv_source(&self, layer: usize, attention: &Attention) -> Result<(), SpecError> {
        let KvSource::Layer(source) = attention.kv else {
            return Ok(());
        };
        let shape = |a: &Attention| (a.kv_heads, a.head_dim, a.value_dim);
        let owner = self.layers.get(source).filter(|_| source < layer);
        match owner.and_then(|owner| owner.mixer()?.as_attention()) {
            Some(owner)
                if shape(owner) == shape(attention) && !matches!(owner.kv, KvSource::Layer(_)) =>
            {
                Ok(())
            }
            _ => Err(SpecError::invalid(
                "num_kv_shared_layers",
                format!("such that layer {layer} reads layer {source}"),
                "such that it reads an earlier layer of the same kind",
            )),
        }
    }
}

fn check_attention(attention: &Attention) -> Result<(), SpecError> {
    within("num_attention_heads", attention.heads, MAX_DIM)?;
    within("num_key_value_heads", attention.kv_heads, MAX_DIM)?;
    within("head_dim", attention.head_dim, MAX_HEAD_DIM)?;
    within("v_head_dim", attention.value_dim, MAX_HEAD_DIM)?;
    if !attention.heads.is_multiple_of(attention.kv_heads) {
        return Err(SpecError::invalid(
            "num_key_value_heads",
            attention.kv_heads,
            format!("a divisor of num_attention_heads ({})", attention.heads),
        ));
    }
    if attention.kv == KvSource::KeyIsValue && attention.head_dim != attention.value_dim {
        return Err(SpecError::invalid(
            "v_head_dim",
            attention.value_dim,
            "equal to head_dim, because keys are values",
        ));
    }
    positive("attention scale", attention.scale)?;
    finite("attention value scale", attention.value_scale)?;
    if let Some(temperature) = &attention.temperature {
        finite("attn_scale", temperature.beta)?;
        within("floor_scale", temperature.span, u32::MAX as usize)?;
    }
    if let Some(cap) = attention.softcap {
        positive("attn_logit_softcapping", cap)?;
    }
    if let Some(qk) = &attention.qk_norm {
        check_norm(&qk.norm)?;
    }
    attention.value_norm.iter().try_for_each(check_norm)?;
    match attention.reach {
        Reach::Window(0) => Err(SpecError::invalid(
            "sliding_window",
            0,
            "at least 1, or absent",
        )),
        Reach::Chunk(0) => Err(SpecError::invalid(
            "attention_chunk_size",
            0,
            "at least 1, or absent",
        )),
        _ => check_rope(attention.rope.as_ref(), attention.head_dim),
    }
}

fn check_latent(latent: &LatentAttention) -> Result<(), SpecError> {
    within("num_attention_heads", latent.heads, MAX_DIM)?;
    if let Some(rank) = latent.query_rank {
        within("q_lora_rank", rank, MAX_DIM)?;
    }
    within("kv_lora_rank", latent.latent_dim, MAX_DIM)?;
    within("qk_nope_head_dim", latent.nope_dim, MAX_HEAD_DIM)?;
    within("qk_rope_head_dim", latent.rope_dim, MAX_HEAD_DIM)?;
    within("v_head_dim", latent.value_dim, MAX_HEAD_DIM)?;
    positive("attention scale", latent.scale)?;
    check_norm(&latent.norm)?;
    check_rope(latent.rope.as_ref(), latent.rope_dim)
}

fn check_short_conv(conv: &ShortConv) -> Result<(), SpecError> {
    within("conv_dim", conv.channels, MAX_DIM)?;
    within("conv_L_cache", conv.kernel, MAX_KERNEL)
}

fn check_delta_rule(delta: &DeltaRule) -> Result<(), SpecError> {
    within("linear_num_key_heads", delta.key_heads, MAX_DIM)?;
    within("linear_num_value_heads", delta.value_heads, MAX_DIM)?;
    within("linear_key_head_dim", delta.key_dim, MAX_HEAD_DIM)?;
    within("linear_value_head_dim", delta.value_dim, MAX_HEAD_DIM)?;
    within("linear_conv_kernel_dim", delta.kernel, MAX_KERNEL)?;
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        return Err(SpecError::invalid(
            "linear_num_value_heads",
            delta.value_heads,
            format!("a multiple of linear_num_key_heads ({})", delta.key_heads),
        ));
    }
    if let Decay::PerChannel { rank } = delta.decay {
        within("decay rank", rank, MAX_DIM)?;
    }
    if let DeltaOutputGate::LowRankSigmoid { rank } = delta.gate {
        within("gate rank", rank, MAX_DIM)?;
    }
    check_norm(&delta.norm)
}

fn check_mamba2(mamba: &Mamba2) -> Result<(), SpecError> {
    within("mamba heads", mamba.heads, MAX_DIM)?;
    within("mamba head size", mamba.head_dim, MAX_HEAD_DIM)?;
    within("mamba groups", mamba.groups, MAX_DIM)?;
    within("mamba state size", mamba.state, MAX_HEAD_DIM)?;
    within("mamba convolution", mamba.kernel, MAX_KERNEL)?;
    let divides = |field: &str, parts: usize, whole: usize| {
        if parts > 0 && whole.is_multiple_of(parts) {
            Ok(())
        } else {
            let expected = format!("a divisor of {whole}");
            Err(SpecError::invalid(field, parts, expected))
        }
    };
    divides("mamba groups", mamba.groups, mamba.heads)?;
    if let MambaNorm::AfterGate { norm, groups } | MambaNorm::BeforeGate { norm, groups } =
        &mamba.norm
    {
        check_norm(norm)?;
        divides("mamba norm groups", *groups, mamba.inner_len())?;
    }
    let (min, max) = mamba.step_limits;
    if min.partial_cmp(&max).is_none_or(Ordering::is_gt) {
        return Err(SpecError::invalid(
            "time_step_limit",
            format!("{:?}", mamba.step_limits),
            "a smaller and a larger number",
        ));
    }
    let mut scales = mamba.scales.iter();
    scales.try_for_each(|scale| finite("ssm_multipliers", *scale))
}

fn check_dense(dense: &Dense) -> Result<(), SpecError> {
    within("intermediate_size", dense.size, MAX_DIM)?;
    finite("mlp_multipliers", dense.gate_scale)
}

fn check_experts(experts: &Experts) -> Result<(), SpecError> {
    within("num_experts", experts.count, MAX_EXPERTS)?;
    within("num_experts_per_tok", experts.top_k, experts.count)?;
    check_dense(&experts.expert)?;
    if let Some(shared) = &experts.shared {
        check_dense(&shared.dense)?;
    }
    let router = &experts.router;
    finite("routed_scaling_factor", router.scale)?;
    if let Some(input) = &router.input {
        check_norm(&input.norm)?;
        finite("router input scale", input.scale)?;
    }
    let Some(groups) = router.groups else {
        return Ok(());
    };
    within("n_group", groups.count, experts.count)?;
    within("topk_group", groups.keep, groups.count)?;
    let size = experts.count / groups.count;
    let min_size = match groups.score {
        GroupScore::Best => 1,
        GroupScore::BestTwo => 2,
    };
    if !experts.count.is_multiple_of(groups.count) || size < min_size {
        return Err(SpecError::invalid(
            "n_group",
            groups.count,
            format!(
                "such that {} experts fall into equal groups of at least {min_size}",
                experts.count
            ),
        ));
    }
    within("num_experts_per_tok", experts.top_k, size * groups.keep)
}

fn check_rope(rope: Option<&Rope>, head_dim: usize) -> Result<(), SpecError> {
    let Some(rope) = rope else {
        return Ok(());
    };
    positive("rope_theta", rope.theta)?;
    if rope.dims == 0 || rope.dims > head_dim || rope.dims % 2 != 0 {
        return Err(SpecError::invalid(
            "rotary dimensions",
            rope.dims,
            format!("even and between 2 and head_dim ({head_dim})"),
        ));
    }
    let original = |context: usize| {
        within(
            "rope_scaling.original_max_position_embeddings",
            context,
            u32::MAX as usize,
        )
    };
    match rope.scaling {
        RopeScaling::None | RopeScaling::Tensor => Ok(()),
        RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => {
            positive("rope_scaling.factor", factor)
        }
        RopeScaling::LongRope {
            original_context,
            attention_factor,
            ..
        }
        | RopeScaling::LongTensor {
            original_context,
            attention_factor,
        } => {
            positive("rope_scaling.attention_factor", attention_factor)?;
            original(original_context)
        }
        RopeScaling::Yarn(yarn) => {
            positive("rope_scaling.factor", yarn.factor)?;
            positive("rope_scaling.beta_fast", yarn.beta_fast)?;
            positive("rope_scaling.beta_slow", yarn.beta_slow)?;
            positive("rope_scaling.attention_factor", yarn.attention_factor)?;
            original(yarn.original_context)
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            positive("rope_scaling.factor", factor)?;
            positive("rope_scaling.low_freq_factor", low_freq_factor)?;
            original(original_context)?;
            if high_freq_factor > low_freq_factor {
                Ok(())
            } else {
                Err(SpecError::invalid(
                    "rope_scaling.high_freq_factor",
                    high_freq_factor,
                    format!("above low_freq_factor ({low_freq_factor})"),
                ))
            }
        }
    }
}

fn check_norm(norm: &Norm) -> Result<(), SpecError> {
    if norm.eps.is_finite() && norm.eps >= 0.0 {
        Ok(())
    } else {
        Err(SpecError::invalid(
            "rms_norm_eps",
            norm.eps,
            "finite and not negative",
        ))
    }
}

fn finite(field: &str, value: f32) -> Result<(), SpecError> {
    if value.is_finite() {
        Ok(())
    } else {
        Err(SpecError::invalid(field, value, "a finite number"))
    }
}

fn positive(field: &str, value: f32) -> Result<(), SpecError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(SpecError::invalid(field, value, "finite and above 0"))
    }
}

fn within(field: &str, value: usize, max: usize) -> Result<(), SpecError> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err(SpecError::invalid(
            field,
            value,
            format!("between 1 and {max}"),
        ))
    }
}
