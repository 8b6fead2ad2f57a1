//! What the run itself cannot find out: which published models were tried, and what the golden
//! families that do not run would need.

use loquat_weights::Format;

/// A published model that a test compares with transformers, token by token.
pub struct RealWeights {
    pub backend: &'static str,
    pub family: &'static str,
    pub format: Format,
    pub model: &'static str,
}

/// Judged by `crates/cli/tests/real_models.rs`.
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

/// By `model_type`: what the block kinds lack.
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
        "two attentions and two feed-forwards per layer beside the experts, zero experts",
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
    fn nothing_that_loads_is_listed_as_unsupported() {
        let loads = families::model_types();
        for (name, _) in UNSUPPORTED {
            assert!(!loads.contains(name), "{name} loads: strike it off");
        }
    }

    #[test]
    fn real_weights_belong_to_families_that_load() {
        let loads = families::model_types();
        for entry in REAL_WEIGHTS {
            assert!(loads.contains(&entry.family), "{}", entry.family);
        }
    }
}
