//! Resolves references without the network.

use crate::error::{ModelCandidate, ModelCandidates};
use crate::local::{self, LocalModel};
use crate::reference::reference_path;
use crate::{
    CatalogEntry, FileKind, HubReference, ModelForm, ModelQuery, ModelReference, Store, StoreError,
};

/// What a reference resolves to.
#[derive(Debug, Clone)]
pub enum ResolvedReference<'a> {
    /// A directory or model file that exists.
    Local(LocalModel),
    /// A form of a catalog entry, downloaded or not.
    Catalog {
        /// The catalog entry.
        entry: &'a CatalogEntry,
        /// The entry's files that the query selects.
        form: &'a ModelForm,
    },
    /// A hub repository, cached or not.
    Hub(HubReference),
}

impl Store {
    /// Resolves a reference. A model that exists at that path wins over a catalog name and a hub
    /// repository; `./name` is always a path.
    pub fn resolve(&self, query: &ModelQuery<'_>) -> Result<ResolvedReference<'_>, StoreError> {
        let ModelQuery {
            reference, kind, ..
        } = *query;
        let path = reference_path(reference);
        if path.exists() {
            let found = local::inspect(&path, kind);
            let not_a_model = matches!(found, Err(StoreError::NotAModel { .. }));
            return match (
                self.catalog.find(reference),
                ModelReference::parse(reference),
            ) {
                (Some(entry), _) if not_a_model => self.catalog_form(entry, kind),
                (None, Ok(ModelReference::Hub(hub))) if not_a_model => {
                    Ok(ResolvedReference::Hub(hub))
                }
                _ => found.map(ResolvedReference::Local),
            };
        }
        match ModelReference::parse(reference)? {
            ModelReference::Path(_) => Err(StoreError::PathMissing {
                path: path.into_owned(),
            }),
            ModelReference::Name(name) => match self.catalog.find(&name) {
                Some(entry) => self.catalog_form(entry, kind),
                None => Err(self.unknown(&name)),
            },
            ModelReference::Hub(reference) => Ok(ResolvedReference::Hub(reference)),
        }
    }

    fn catalog_form<'s>(
        &self,
        entry: &'s CatalogEntry,
        kind: Option<FileKind>,
    ) -> Result<ResolvedReference<'s>, StoreError> {
        let form = match kind {
            Some(kind) => entry.form(kind),
            None => entry.usual_form(),
        };
        match (form, kind) {
            (Some(form), _) => Ok(ResolvedReference::Catalog { entry, form }),
            (None, kind) => Err(StoreError::NoSuchPart {
                reference: entry.to_string(),
                requested: kind.map_or("form", FileKind::name).to_owned(),
                candidates: form_candidates(entry),
            }),
        }
    }

    fn unknown(&self, name: &str) -> StoreError {
        let advice = match self.catalog.suggest(name).as_slice() {
            [] => format!("the default is {}", self.default_model()),
            [one] => format!("did you mean {one}?"),
            several => format!("did you mean one of {}?", several.join(", ")),
        };
        StoreError::UnknownModel {
            reference: name.to_owned(),
            advice,
        }
    }
}

fn form_candidates(entry: &CatalogEntry) -> ModelCandidates {
    let candidates = entry.forms.iter().map(|form| ModelCandidate {
        kind: form.kind,
        quant: Some(form.quant.clone()),
        bytes: form.bytes,
        selector: format!("{entry} {}", form.kind.flag()),
    });
    ModelCandidates(candidates.collect())
}
