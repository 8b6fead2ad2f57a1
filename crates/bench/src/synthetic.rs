//! Models of random weights with the shape of a known model.

use std::path::Path;

use loquat::ModelFiles;
use loquat::human::bytes;
use loquat_synthetic::{Container, Recipe};

use super::error::BenchError;

/// The same weights in every run, so that numbers are comparable.
const SEED: u64 = 0;

pub fn model(recipe: &Recipe) -> Result<ModelFiles, BenchError> {
    let made = recipe.make(recipe.container(), SEED)?;
    let checkpoint = made.checkpoint()?;
    Ok(ModelFiles::from_checkpoint(recipe.name(), checkpoint)?)
}

/// Saves the model by way of the folder `work` and returns a line that describes what was written.
pub fn save(recipe: &Recipe, path: &Path, work: &Path) -> Result<String, BenchError> {
    let container = Container::for_path(path);
    let made = recipe.make(container, SEED)?;
    made.save(path, work)?;
    Ok(format!(
        "{}, {} of random weights of the shape of {}, as {} at {}\n",
        recipe.name(),
        bytes(made.bytes()),
        recipe.shape.model,
        container.name(),
        path.display()
    ))
}
