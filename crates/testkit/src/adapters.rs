//! Adapters with random weights, for tests.

use loquat_spec::ModelSpec;
use loquat_synthetic::AdapterRecipe;
use loquat_weights::AdapterWeights;

/// Two adapters that can be combined: one of everything with magnitudes, in f32, and one of the
/// layers' matrices, in bf16.
pub fn pair(spec: &ModelSpec) -> Vec<AdapterWeights> {
    let recipes = [
        AdapterRecipe {
            bf16: false,
            magnitudes: true,
            everything: true,
            ..AdapterRecipe::linear(5, 1)
        },
        AdapterRecipe::linear(8, 2),
    ];
    let made = recipes.iter().map(|recipe| recipe.make(spec));
    made.map(|adapter| adapter.unwrap_or_else(|error| panic!("{error}")))
        .collect()
}
