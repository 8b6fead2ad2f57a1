//! Facts for the support matrix that a run does not produce: published models that were tested,
//! defaults of the GGUF reader, and what unsupported families need.

use loquat_weights::Format;

/// A published model that a test compares with transformers, token by token.
pub struct RealWeights {
    pub backend: &'static str,
    pub family: &'static str,
    pub format: Format,
    pub model: &'static str,
}

/// JudgedBackend by `crates/cli/tests/real_models/transformers.rs`.
pub const REAL_WEIGHTS: &[RealWeights] = &[
    RealWeights {
        backend: "cpu",
        family: "gemma3_text",
        format: Format::Gguf,
        model: "Gemma-3-270M Q4_K_M",
    },
    RealWeights {
        backend: "cpu",
        family: "llama",
        format: Format::Gguf,
        model: "SmolLM2-135M-Instruct Q4_1",
    },
];

/// Values that the reader, like llama.cpp, assumes because GGUF has no key for them.
pub const GGUF_DEFAULTS: &[(&str, &str)] = &[
    (
        "mistral, mixtral, qwen2, starcoder2",
        "no sliding window, unless the file has `attention.sliding_window` (ignored for qwen2)",
    ),
    (
        "gemma2, gpt_oss, cohere2, gemma3_text",
        "every 2nd, 2nd, 4th and 6th layer has full attention, unless the file says otherwise; \
         cohere2's have no rope",
    ),
    ("smollm3, llama4_text", "every 4th layer has no rope"),
    (
        "qwen2_moe, qwen3_moe, mixtral",
        "the chosen experts' weights are normalised, but not qwen2_moe's",
    ),
    (
        "gpt_oss",
        "the activation's slope and limit are those of the published models",
    ),
    (
        "mamba2, falcon_h1, granitemoehybrid",
        "the norm after the gate is over each group, and steps have no limits",
    ),
    (
        "granitemoehybrid",
        "no rope if `rope.scaling.finetuned` is false, which it always is with Mamba layers",
    ),
    (
        "falcon_h1",
        "an untied head, because the embedding's multiplier is folded into it: tied models are lost",
    ),
];

/// What each `model_type` needs that the block kinds do not have.
pub const UNSUPPORTED: &[(&str, &str)] = &[
    ("apertus", "the xIELU activation, with parameters per layer"),
    (
        "deepseek_v32",
        "the sparse indexer that picks which tokens latent attention sees",
    ),
    (
        "deepseek_v4",
        "compressed attention, hyper-connections, hash routing of experts",
    ),
    (
        "gemma3n_text",
        "alternating updates (AltUp), learned augmented residuals (LAuReL), activation sparsity",
    ),
    (
        "glm_moe_dsa",
        "the sparse indexer that picks which tokens latent attention sees",
    ),
    (
        "longcat_flash",
        "two attentions and two feed-forwards per layer besides the experts, zero experts",
    ),
    ("phimoe", "sparsemixer routing"),
];

pub fn needs(model_type: &str) -> Option<&'static str> {
    let mut entries = UNSUPPORTED.iter();
    Some(entries.find(|(name, _)| *name == model_type)?.1)
}

#[cfg(test)]
mod tests {
    use loquat_spec::families;

    use super::*;

    #[test]
    fn unsupported_list_has_no_supported_family() {
        let supported = families::model_types();
        for (name, _) in UNSUPPORTED {
            assert!(!supported.contains(name), "{name} is supported; remove it");
        }
    }

    #[test]
    fn notes_name_supported_families() {
        let supported = families::model_types();
        let assumed = GGUF_DEFAULTS
            .iter()
            .flat_map(|(names, _)| names.split(", "));
        for name in REAL_WEIGHTS.iter().map(|real| real.family).chain(assumed) {
            assert!(supported.contains(&name), "{name}");
        }
    }
}
