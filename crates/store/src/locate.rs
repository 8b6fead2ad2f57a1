//! From a reference to files on this machine.

use crate::fetch::{Fetched, FormQuery};
use crate::hub_model::{HubModelFiles, HubQuery, UpdateCheck};
use crate::reference::path_reference;
use crate::{
    CatalogEntry, LocalModel, ModelQuery, NoProgress, Progress, ResolvedModel, ResolvedReference,
    Store, StoreError,
};

impl Store {
    /// Returns the files of a model to run. Downloads and verifies what is missing, and records
    /// that the model was used.
    pub fn locate(
        &self,
        query: &ModelQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedModel, StoreError> {
        let (model, key) = self.locate_with(query, UpdateCheck::IfMissing, progress)?;
        if let Some(key) = key {
            self.stamp_used(&key);
        }
        Ok(model)
    }

    /// Downloads a model, or updates it to what the hub has now. Does not count as a use.
    pub fn pull(
        &self,
        query: &ModelQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedModel, StoreError> {
        Ok(self.locate_with(query, UpdateCheck::Always, progress)?.0)
    }

    /// Returns what [`Store::locate`] would return without the network; `None` if it would
    /// download.
    pub fn locate_cached(
        &self,
        query: &ModelQuery<'_>,
    ) -> Result<Option<ResolvedModel>, StoreError> {
        match self.resolve(query)? {
            ResolvedReference::Local(model) => Ok(Some(model.into())),
            ResolvedReference::Catalog { entry, form } => {
                let check = UpdateCheck::IfMissing;
                let cached = self.cached_form(FormQuery { entry, form, check });
                Ok(cached.map(|files| files.into_model(entry)))
            }
            ResolvedReference::Hub(reference) => {
                // An incomplete model counts as a missing one.
                let cached = self.cached_hub_model(&query.on_hub(reference), &mut NoProgress);
                Ok(cached.ok().flatten().map(ResolvedModel::from))
            }
        }
    }

    /// Also returns the model's record key, which the user's own files do not have.
    fn locate_with(
        &self,
        query: &ModelQuery<'_>,
        check: UpdateCheck,
        progress: &mut dyn Progress,
    ) -> Result<(ResolvedModel, Option<String>), StoreError> {
        match self.resolve(query)? {
            ResolvedReference::Local(model) => Ok((model.into(), None)),
            ResolvedReference::Catalog { entry, form } => {
                let files = self.fetch_form(FormQuery { entry, form, check }, progress)?;
                let key = files.key.clone();
                Ok((files.into_model(entry), Some(key)))
            }
            ResolvedReference::Hub(reference) => {
                let files = self.fetch_hub_model(&query.on_hub(reference), check, progress)?;
                let key = files.key.clone();
                Ok((files.into(), Some(key)))
            }
        }
    }
}

impl Fetched {
    fn into_model(self, entry: &CatalogEntry) -> ResolvedModel {
        ResolvedModel {
            path: self.path,
            name: entry.to_string(),
        }
    }
}

impl From<LocalModel> for ResolvedModel {
    fn from(model: LocalModel) -> Self {
        Self {
            name: path_reference(&model.path),
            path: model.path,
        }
    }
}

impl From<HubModelFiles> for ResolvedModel {
    fn from(files: HubModelFiles) -> Self {
        Self {
            name: files.reference.to_string(),
            path: files.path,
        }
    }
}

impl<'a> ModelQuery<'a> {
    fn on_hub(&self, reference: crate::HubReference) -> HubQuery<'a> {
        HubQuery {
            name: self.reference,
            reference,
            kind: self.kind,
            sha256: None,
        }
    }
}
