//! From a reference to files on this machine.

use crate::fetch::{Fetched, FormQuery};
use crate::hub_model::{GgufPart, HubModelFiles, HubQuery, UpdateCheck};
use crate::reference::{path_reference, reference_path};
use crate::{
    CatalogEntry, FileKind, LocalModel, LocatedMmproj, MmprojQuery, ModelQuery, ModelReference,
    NoProgress, Progress, ResolvedModel, ResolvedReference, Store, StoreError,
};

impl Store {
    /// Returns the files of a model to run. Downloads and verifies what is missing, and records
    /// that the model was used.
    pub fn locate(
        &self,
        query: &ModelQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedModel, StoreError> {
        let (mut model, key) = self.locate_with(query, UpdateCheck::IfMissing, progress)?;
        if let Some(key) = key {
            self.stamp_used(&key);
        }
        model.mmproj = self.locate_mmproj(query.mmproj, UpdateCheck::IfMissing, progress)?;
        Ok(model)
    }

    /// Downloads a model or an adapter, or updates it to what the hub has now. Does not count as a use.
    pub fn pull(
        &self,
        query: &ModelQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<ResolvedModel, StoreError> {
        let pulled = self.locate_with(query, UpdateCheck::Always, progress);
        let (mut model, _) = match (pulled, ModelReference::parse(query.reference)) {
            (Err(error @ StoreError::NotAModelRepo { .. }), Ok(ModelReference::Hub(hub))) => {
                let check = UpdateCheck::Always;
                let adapter = self.fetch_adapter(query.reference, hub, check, progress);
                return match adapter {
                    Err(StoreError::NotAnAdapterRepo { .. }) => Err(error),
                    adapter => adapter,
                };
            }
            (pulled, _) => pulled?,
        };
        model.mmproj = self.locate_mmproj(query.mmproj, UpdateCheck::Always, progress)?;
        Ok(model)
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
                let cached = self.cached_form(FormQuery {
                    entry,
                    form,
                    check,
                    part: query.gguf_part(),
                });
                Ok(cached.map(|files| files.into_model(entry)))
            }
            ResolvedReference::Hub(reference) => {
                // An incomplete model counts as a missing one.
                let cached = self.cached_hub_model(&query.on_hub(reference), &mut NoProgress);
                Ok(cached.ok().flatten().map(ResolvedModel::from))
            }
        }
    }

    /// The file of a vision tower that the user named, downloaded if necessary.
    fn locate_mmproj(
        &self,
        query: MmprojQuery<'_>,
        check: UpdateCheck,
        progress: &mut dyn Progress,
    ) -> Result<LocatedMmproj, StoreError> {
        let reference = match query {
            MmprojQuery::Auto => return Ok(LocatedMmproj::Beside),
            MmprojQuery::Off => return Ok(LocatedMmproj::Off),
            MmprojQuery::Reference(reference) => reference,
        };
        let path = reference_path(reference);
        if path.is_file() {
            return Ok(LocatedMmproj::At(path.into_owned()));
        }
        match ModelReference::parse(reference)? {
            ModelReference::Hub(hub) if !path.exists() => {
                let query = HubQuery {
                    name: reference,
                    reference: hub,
                    kind: Some(FileKind::Gguf),
                    sha256: None,
                    part: GgufPart::Mmproj,
                    mmproj: None,
                };
                let files = self.fetch_hub_model(&query, check, progress)?;
                Ok(LocatedMmproj::At(files.path))
            }
            _ => Err(StoreError::NotAnMmproj {
                reference: reference.to_owned(),
            }),
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
                let files = self.fetch_form(
                    FormQuery {
                        entry,
                        form,
                        check,
                        part: query.gguf_part(),
                    },
                    progress,
                )?;
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
            mmproj: LocatedMmproj::default(),
        }
    }
}

impl From<LocalModel> for ResolvedModel {
    fn from(model: LocalModel) -> Self {
        Self {
            name: path_reference(&model.path),
            path: model.path,
            mmproj: LocatedMmproj::default(),
        }
    }
}

impl From<HubModelFiles> for ResolvedModel {
    fn from(files: HubModelFiles) -> Self {
        Self {
            name: files.reference.to_string(),
            path: files.path,
            mmproj: LocatedMmproj::default(),
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
            part: self.gguf_part(),
            mmproj: None,
        }
    }

    /// Whether a tower is to be downloaded with the model.
    fn gguf_part(&self) -> GgufPart {
        match self.mmproj {
            MmprojQuery::Auto => GgufPart::ModelAndMmproj,
            MmprojQuery::Off | MmprojQuery::Reference(_) => GgufPart::Model,
        }
    }
}
