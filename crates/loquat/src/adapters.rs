//! Adapters of a model: which files, at which strength.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use loquat_engine::UnloadMode;
use loquat_session::{AdapterId, AdapterLimits, AppliedAdapter, SessionOptions};
use loquat_store::{Progress, Store, path_reference};
use loquat_weights::{AdapterBase, AdapterWeights};

use crate::{Error, Model, ModelFiles};

/// An adapter to load.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterFile {
    /// A folder or a `.safetensors` file of peft or mlx-lm, or a GGUF file of llama.cpp. If there is
    /// no such path, `owner/name[@revision][:file]` on the hub.
    pub path: PathBuf,
    /// Multiplies its strength; 1 is as trained.
    pub scale: f32,
}

/// Adapters that were read and checked against a model, and not loaded yet.
#[derive(Debug, Clone, Default)]
pub struct OpenAdapters {
    adapters: Vec<(Arc<AdapterWeights>, f32)>,
}

impl ModelFiles {
    /// Reads adapters and checks that they fit the model. Downloads those of the hub that are not
    /// on this machine.
    pub fn open_adapters(
        &self,
        files: &[AdapterFile],
        store: &Store,
        progress: &mut dyn Progress,
    ) -> Result<OpenAdapters, Error> {
        let base = self.checkpoint.adapter_base();
        let open = |file: &AdapterFile| {
            let located = store.locate_adapter(&path_reference(&file.path), progress)?;
            let mut weights = AdapterWeights::open(&located.path, &base)?;
            // The hub's file names say nothing.
            if located.path != file.path {
                weights = weights.with_name(located.name);
            }
            note_base(&weights, &self.name);
            Ok((Arc::new(weights), file.scale))
        };
        let adapters = files.iter().map(open).collect::<Result<_, Error>>()?;
        Ok(OpenAdapters { adapters })
    }
}

/// Names prove nothing, so that an adapter with another base model's name is only noted.
fn note_base(adapter: &AdapterWeights, model: &str) {
    if let Some(warning) = adapter.info().base_warning(model) {
        tracing::warn!("{warning}");
    }
}

impl OpenAdapters {
    /// Each adapter and its scale.
    pub fn iter(&self) -> impl Iterator<Item = (&AdapterWeights, f32)> {
        let adapters = self.adapters.iter();
        adapters.map(|(weights, scale)| (&**weights, *scale))
    }

    /// Room for exactly these adapters.
    pub fn limits(&self) -> AdapterLimits {
        AdapterLimits::holding(self.adapters.iter().map(|(weights, _)| &**weights))
    }

    /// The options with room for the adapters, unless they have room already.
    pub fn make_room(&self, options: &SessionOptions) -> SessionOptions {
        let mut options = options.clone();
        if !options.adapters.any() {
            options.adapters = self.limits();
        }
        options
    }

    /// Loads them; the result applies all of them.
    pub fn load(&self, model: &Model) -> Result<Vec<AppliedAdapter>, Error> {
        let load = |(weights, scale): &(Arc<AdapterWeights>, f32)| {
            Ok(AppliedAdapter {
                id: model.engine().load_adapter(Arc::clone(weights))?,
                scale: *scale,
            })
        };
        self.adapters.iter().map(load).collect()
    }
}

impl Model {
    /// Loads an adapter while the model serves requests. The session needs room for it:
    /// [`SessionOptions::adapters`].
    pub fn load_adapter(&self, path: &Path) -> Result<AdapterId, Error> {
        Ok(self.engine().load_adapter(self.read_adapter(path)?)?)
    }

    /// Reads an adapter and checks that it fits the model, without loading it.
    pub fn read_adapter(&self, path: &Path) -> Result<Arc<AdapterWeights>, Error> {
        let base = self.adapter_base().ok_or(Error::NoAdapterBase)?;
        let weights = AdapterWeights::open(path, base)?;
        note_base(&weights, self.name());
        Ok(Arc::new(weights))
    }

    /// Frees an adapter once no request uses it; blocks until then.
    pub fn unload_adapter(&self, id: AdapterId, mode: UnloadMode) -> Result<(), Error> {
        Ok(self.engine().unload_adapter(id, mode)?)
    }

    pub(crate) fn for_adapters(mut self, base: AdapterBase) -> Self {
        self.set_adapter_base(base);
        self
    }
}
