//! Models of the hub: from its cache if they are there, else from the hub itself.

use std::path::{Path, PathBuf};

use crate::contents::{Contents, INDEX, Named, SINGLE, TOKENIZER, quant_of};
use crate::hub::{HubError, Listing, RemoteFile, Repo};
use crate::select::{self, Choice};
use crate::usage::{Pulled, Verified, hub_key, now};
use crate::{
    FileKind, HubReference, NoProgress, Progress, RepoPart, Store, StoreError, local, wheel,
};

const MAIN: &str = "main";

/// A model of the hub that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct HubWanted<'a> {
    /// What people call it.
    pub name: &'a str,
    pub reference: HubReference,
    pub kind: Option<FileKind>,
    /// What its one file must hash to, where someone other than the hub says so.
    pub sha256: Option<&'a str>,
}

impl HubWanted<'_> {
    fn repo(&self) -> Repo {
        let HubReference { repo, revision, .. } = &self.reference;
        Repo {
            id: repo.clone(),
            revision: revision.clone().unwrap_or_else(|| MAIN.to_owned()),
        }
    }
}

/// A model in the hub's cache.
#[derive(Debug, Clone)]
pub(crate) struct Obtained {
    /// What `weights` opens.
    pub path: PathBuf,
    /// The reference that means just this one.
    pub reference: HubReference,
    /// Its name among the store's notes.
    pub key: String,
}

/// Whether to ask the hub what is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Only for what is not here.
    IfMissing,
    /// Always.
    Always,
}

impl Store {
    pub(crate) fn obtain(
        &self,
        wanted: &HubWanted<'_>,
        ask: Ask,
        progress: &mut dyn Progress,
    ) -> Result<Obtained, StoreError> {
        let repo = wanted.repo();
        if ask == Ask::IfMissing || self.hub.is_offline() {
            match self.obtain_cached(wanted) {
                Ok(Some(obtained)) => return Ok(obtained),
                Err(error) if self.hub.is_offline() => return Err(error),
                // What is here is not enough; the hub has more.
                Ok(None) | Err(_) => {}
            }
        }
        let listing = self.hub.listing(&repo)?;
        let before = self.cached_at(&repo.id, &listing.commit)?;
        let taking = Taking {
            store: self,
            repo: &repo,
            listing: &listing,
            wanted,
        };
        let taken = taking.take(progress)?;
        let key = hub_key(&repo.id, &listing.commit, taken.file.as_deref());
        // What others brought is theirs, even if some of it was missing.
        let was_there = |weights: &String| before.iter().any(|file| file.path == *weights);
        if !taken.weights.iter().any(was_there) {
            self.note_pulled(&key, &repo, &listing, &taken);
        }
        Ok(taken.into_obtained(wanted, key))
    }

    /// The same without the network: `None` where nothing of the repository is here, and an error
    /// where not enough of it is.
    pub(crate) fn obtain_cached(
        &self,
        wanted: &HubWanted<'_>,
    ) -> Result<Option<Obtained>, StoreError> {
        let repo = wanted.repo();
        let listing = self.hub.cached_listing(&repo)?;
        listing
            .map(|listing| self.take_cached(&repo, listing, wanted))
            .transpose()
    }

    fn take_cached(
        &self,
        repo: &Repo,
        listing: Listing,
        wanted: &HubWanted<'_>,
    ) -> Result<Obtained, StoreError> {
        let taking = Taking {
            store: self,
            repo,
            listing: &listing,
            wanted,
        };
        let missing = |file: &str| {
            StoreError::Hub(HubError::FilesNotCached {
                repo: repo.id.clone(),
                files: vec![file.to_owned()],
            })
        };
        let taken = match (taking.take(&mut NoProgress), &wanted.reference.part) {
            (Err(StoreError::NoSuchPart { wanted, .. }), _) => return Err(missing(&wanted)),
            (Err(StoreError::NotAModelRepo { .. }), Some(part)) => {
                let (RepoPart::File(part) | RepoPart::Quant(part)) = part;
                return Err(missing(part));
            }
            (Err(StoreError::NotAModelRepo { .. }), None) => return Err(missing("the weights")),
            (taken, _) => taken?,
        };
        let is_here = |path: &str| listing.files.iter().any(|file| file.path == path);
        if taken.kind != FileKind::Gguf && !is_here(TOKENIZER) {
            return Err(missing(TOKENIZER));
        }
        let key = hub_key(&repo.id, &listing.commit, taken.file.as_deref());
        Ok(taken.into_obtained(wanted, key))
    }

    fn cached_at(&self, repo: &str, commit: &str) -> Result<Vec<RemoteFile>, StoreError> {
        let at = Repo {
            id: repo.to_owned(),
            revision: commit.to_owned(),
        };
        let listing = self.hub.cached_listing(&at)?;
        Ok(listing.map(|listing| listing.files).unwrap_or_default())
    }

    fn note_pulled(&self, key: &str, repo: &Repo, listing: &Listing, taken: &Taken) {
        let pulled = Pulled {
            repo: repo.id.clone(),
            commit: listing.commit.clone(),
            file: taken.file.clone(),
            kind: taken.kind,
            verified: taken.verified,
            at: now(),
        };
        if let Err(error) = self.record_pulled(key, &pulled) {
            tracing::warn!("could not note that {} was pulled: {error}", repo.id);
        }
    }
}

/// A model that was chosen and is whole.
struct Taken {
    path: PathBuf,
    kind: FileKind,
    /// The GGUF.
    file: Option<String>,
    weights: Vec<String>,
    /// Whether its quant tells it from the others of its repository.
    named_by_quant: bool,
    verified: Verified,
}

impl Taken {
    fn into_obtained(self, wanted: &HubWanted<'_>, key: String) -> Obtained {
        let by_quant = |file: &String| match (self.named_by_quant, quant_of(file)) {
            (true, Some(quant)) => RepoPart::Quant(quant),
            _ => RepoPart::File(file.clone()),
        };
        Obtained {
            path: self.path,
            reference: HubReference {
                part: self.file.as_ref().map(by_quant),
                ..wanted.reference.clone()
            },
            key,
        }
    }
}

struct Taking<'a> {
    store: &'a Store,
    repo: &'a Repo,
    listing: &'a Listing,
    wanted: &'a HubWanted<'a>,
}

impl Taking<'_> {
    fn take(&self, progress: &mut dyn Progress) -> Result<Taken, StoreError> {
        let contents = contents_of(self.listing);
        // A file that was given another name is still the one the hash says.
        if let Some(file) = self.of_hash() {
            return self.take_gguf(&contents, file, progress);
        }
        match select::choose(&contents, &self.wanted.reference, self.wanted.kind)? {
            Choice::Gguf { path, by_default } => {
                if let Some(quant) = by_default {
                    progress.note(&format!(
                        "{} has several quants; taking {quant} (say {}:QUANT for another)",
                        self.repo.id, self.repo.id
                    ));
                }
                self.take_gguf(&contents, self.file(&path)?, progress)
            }
            Choice::Safetensors => self.take_safetensors(&contents, progress),
        }
    }

    fn take_gguf(
        &self,
        contents: &Contents,
        file: &RemoteFile,
        progress: &mut dyn Progress,
    ) -> Result<Taken, StoreError> {
        self.check_stated(file)?;
        let dir = self.fetch(&[file], progress)?;
        let path = dir.join(&file.path);
        let kind = local::examine(&path, Some(FileKind::Gguf))?.kind;
        self.check_found(file, &path, progress)?;
        let quant = quant_of(&file.path);
        let alike = contents.ggufs();
        let alike = alike.iter().filter(|gguf| gguf.quant == quant);
        Ok(Taken {
            path,
            kind,
            named_by_quant: quant.is_some() && alike.count() == 1,
            file: Some(file.path.clone()),
            weights: vec![file.path.clone()],
            verified: match self.wanted.sha256 {
                Some(_) => Verified::Catalog,
                None => Verified::Hub,
            },
        })
    }

    fn take_safetensors(
        &self,
        contents: &Contents,
        progress: &mut dyn Progress,
    ) -> Result<Taken, StoreError> {
        // What the rest is stands in these, which are small.
        let first = self.files(&select::first_files(contents))?;
        let dir = self.fetch(&first, &mut NoProgress)?;
        let kind = local::kind_of_config(&dir)?;
        if let Some(wanted) = self.wanted.kind.filter(|wanted| *wanted != kind) {
            return Err(StoreError::OtherKind {
                reference: self.wanted.name.to_owned(),
                wanted,
                found: kind,
            });
        }
        let weights = match contents.has(SINGLE) {
            true => vec![SINGLE.to_owned()],
            false => local::shards_of(&dir.join(INDEX))?,
        };
        let mut names = select::first_files(contents);
        names.extend(select::side_files(contents));
        names.extend(weights.iter().map(String::as_str));
        names.sort_unstable();
        names.dedup();
        let dir = self.fetch(&self.files(&names)?, progress)?;
        Ok(Taken {
            path: dir,
            kind,
            file: None,
            weights,
            named_by_quant: false,
            verified: Verified::Hub,
        })
    }

    fn fetch(
        &self,
        files: &[&RemoteFile],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        Ok(self
            .store
            .hub
            .fetch(self.repo, self.listing, files, progress)?)
    }

    fn files(&self, names: &[&str]) -> Result<Vec<&RemoteFile>, StoreError> {
        names.iter().map(|name| self.file(name)).collect()
    }

    fn file(&self, path: &str) -> Result<&RemoteFile, StoreError> {
        let found = self.listing.files.iter().find(|file| file.path == path);
        found.ok_or_else(|| StoreError::NotAModelRepo {
            repo: self.repo.id.clone(),
            why: format!("{path} is missing"),
        })
    }

    fn of_hash(&self) -> Option<&RemoteFile> {
        let wanted = self.wanted.sha256?;
        let files = &mut self.listing.files.iter();
        files.find(|file| file.sha256.as_deref() == Some(wanted))
    }

    /// Before a download, where the hub says what it would bring.
    fn check_stated(&self, file: &RemoteFile) -> Result<(), StoreError> {
        match (self.wanted.sha256, &file.sha256) {
            (Some(wanted), Some(stated)) if wanted != stated => {
                Err(self.wrong_hash(wanted, stated))
            }
            _ => Ok(()),
        }
    }

    /// After one, where the hub did not say.
    fn check_found(
        &self,
        file: &RemoteFile,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), StoreError> {
        let (Some(wanted), None) = (self.wanted.sha256, &file.sha256) else {
            return Ok(());
        };
        progress.start(&format!("verifying {}", self.wanted.name), file.size);
        let found = wheel::hash_file(path, progress);
        progress.finish();
        match found? {
            found if found == wanted => Ok(()),
            found => Err(self.wrong_hash(wanted, &found)),
        }
    }

    fn wrong_hash(&self, expected: &str, found: &str) -> StoreError {
        StoreError::ChangedOnHub {
            model: self.wanted.name.to_owned(),
            reference: self.wanted.reference.to_string(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }
}

pub(crate) fn contents_of(listing: &Listing) -> Contents {
    let named = |file: &RemoteFile| Named {
        path: file.path.clone(),
        bytes: file.size,
    };
    Contents {
        files: listing.files.iter().map(named).collect(),
    }
}
