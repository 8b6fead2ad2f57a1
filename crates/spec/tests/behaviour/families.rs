//! The rows of families: one per name, complete, and as mlx-lm 0.32.2 treats the family.

use std::collections::HashSet;

use loquat_spec::RouterPrecision::{self, EightBits, Uniform, Unquantized};
use loquat_spec::{Config, ModelSpec, families};

use crate::goldens;

/// The golden's spec, if its family is supported.
fn golden_specs() -> Vec<ModelSpec> {
    let folders = goldens::folders();
    let specs = folders.iter().filter_map(|folder| {
        let text = goldens::config(folder, "config.json");
        let config = Config::parse(&text, "config.json").unwrap();
        families::from_config(&config).ok()
    });
    specs.map(|described| described.spec).collect()
}

#[test]
fn names_belong_to_one_row() {
    let mut names = HashSet::new();
    for name in families::model_types() {
        assert!(names.insert(name), "{name}");
    }
    let mut architectures = HashSet::new();
    for name in families::architectures() {
        assert!(architectures.insert(name), "{name}");
    }
    for spec in golden_specs() {
        assert!(names.contains(spec.family), "{}", spec.family);
    }
}

#[test]
fn rows_name_existing_families() {
    let (types, architectures) = (families::model_types(), families::architectures());
    for family in families::all() {
        for variant in family.facts.gguf_variants {
            assert!(types.contains(&variant.model_type), "{variant:?}");
        }
        if let Some(export) = family.facts.gguf_export {
            assert!(architectures.contains(&export.architecture), "{export:?}");
        }
    }
}

#[test]
fn expert_families_state_router_precision() {
    for spec in golden_specs().iter().filter(|spec| spec.has_experts()) {
        assert!(spec.facts().mlx.router.is_some(), "{}", spec.family);
    }
}

/// Families without a golden that mlx-lm quantized.
#[test]
fn routers_are_quantized_as_mlx_lm_does() {
    let precision = |name: &str| -> Option<RouterPrecision> {
        let mut families = families::all();
        let family = families.find(|family| family.model_types.contains(&name));
        family.unwrap().facts.mlx.router
    };
    let table = [
        ("afmoe", Some(EightBits)),
        ("deepseek_v2", Some(Unquantized)),
        ("ernie4_5_moe", Some(Uniform)),
        ("llama", None),
        ("mimo_v2_flash", Some(Unquantized)),
        ("nemotron_h", Some(Unquantized)),
        ("olmoe", Some(Uniform)),
        ("qwen3_5_moe", Some(EightBits)),
    ];
    for (name, expected) in table {
        assert_eq!(precision(name), expected, "{name}");
    }
}
