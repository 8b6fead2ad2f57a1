use crate::error::SpecError;
use crate::model::{Attention, FeedForward, Mixer, ModelSpec, Norm};
use crate::rope::RopeScaling;

/// More than any model has; a larger number is a broken or hostile config, and is refused
/// before anything is allocated by it.
pub(crate) const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;

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
        positive("embedding_scale", self.embedding_scale)?;
        check_norm(&self.final_norm)?;
        if let Some(cap) = self.head.softcap {
            positive("final_logit_softcapping", cap)?;
        }
        for layer in &self.layers {
            let norms = [
                layer.mixer.pre_norm,
                layer.mixer.post_norm,
                layer.feed_forward.pre_norm,
                layer.feed_forward.post_norm,
            ];
            norms.iter().flatten().try_for_each(check_norm)?;
            let Mixer::Attention(attention) = &layer.mixer.inner;
            check_attention(attention)?;
            let FeedForward::Gated { size, .. } = layer.feed_forward.inner;
            within("intermediate_size", size, MAX_DIM)?;
        }
        Ok(())
    }
}

fn check_attention(attention: &Attention) -> Result<(), SpecError> {
    within("num_attention_heads", attention.heads, MAX_DIM)?;
    within("num_key_value_heads", attention.kv_heads, MAX_DIM)?;
    within("head_dim", attention.head_dim, 4096)?;
    if !attention.heads.is_multiple_of(attention.kv_heads) {
        return Err(SpecError::invalid(
            "num_key_value_heads",
            attention.kv_heads,
            format!("a divisor of num_attention_heads ({})", attention.heads),
        ));
    }
    positive("attention scale", attention.scale)?;
    if let Some(norm) = &attention.qk_norm {
        check_norm(norm)?;
    }
    if attention.window == Some(0) {
        return Err(SpecError::invalid(
            "sliding_window",
            0,
            "at least 1, or absent",
        ));
    }
    let Some(rope) = &attention.rope else {
        return Ok(());
    };
    positive("rope_theta", rope.theta)?;
    if rope.dims == 0 || rope.dims > attention.head_dim || rope.dims % 2 != 0 {
        return Err(SpecError::invalid(
            "rotary dimensions",
            rope.dims,
            format!("even and between 2 and head_dim ({})", attention.head_dim),
        ));
    }
    match rope.scaling {
        RopeScaling::None | RopeScaling::Tensor => Ok(()),
        RopeScaling::Linear { factor } => positive("rope_scaling.factor", factor),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            positive("rope_scaling.factor", factor)?;
            positive("rope_scaling.low_freq_factor", low_freq_factor)?;
            within(
                "rope_scaling.original_max_position_embeddings",
                original_context,
                u32::MAX as usize,
            )?;
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
