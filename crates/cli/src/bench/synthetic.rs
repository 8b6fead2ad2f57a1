//! A model that is made up instead of found.

use std::path::Path;

use loquat_synthetic::{Container, Recipe};

use crate::error::CliError;
use crate::load::Model;
use crate::terminal::{bytes, print};

/// One set of weights for everybody, so that numbers are of the same model.
const SEED: u64 = 0;

pub fn model(recipe: &Recipe) -> Result<Model, CliError> {
    let made = recipe.make(recipe.container(), SEED)?;
    Ok(Model::of(recipe.name(), made.checkpoint()?)?)
}

/// Saves the model, and says what was written.
pub fn save(recipe: &Recipe, path: &Path) -> Result<(), CliError> {
    let container = Container::for_path(path);
    let made = recipe.make(container, SEED)?;
    made.save(path)?;
    print(&format!(
        "{}, {} of random weights of the shape of {}, as {} at {}\n",
        recipe.name(),
        bytes(made.bytes()),
        recipe.shape.model,
        container.name(),
        path.display()
    ))
}
