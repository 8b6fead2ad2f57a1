//! Models of the hub: from its cache if they are there, else from the hub itself.

use std::path::{Path, PathBuf};

use crate::contents::{Contents, INDEX, Named, SINGLE, TOKENIZER, quant_of};
use crate::hub::{HubError, Listing, RemoteFile, Repo};
use crate::select::{self, Choice};
use crate::usage::{Pulled, Verified, hub_key};
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
            match self.obtain_cached(wanted, progress) {
                Ok(Some(obtained)) => return Ok(obtained),
                Err(error) if self.hub.is_offline() => return Err(error),
                // What is here is not enough; the hub has more.
                Ok(None) | Err(_) => {}
            }
        }
        let listing = self.hub.listing(&repo)?;
        let taking = Taking {
            store: self,
            repo: &repo,
            listing: &listing,
            wanted,
            download: Some(Downloading {
                before: self.cached_at(&repo.id, &listing.commit)?,
                check: ask == Ask::Always,
            }),
        };
        let taken = taking.take(progress)?;
        // Last, so that a failure before leaves the revision where a whole model is.
        self.hub.point(&repo, &listing)?;
        let key = hub_key(&repo.id, &listing.commit, taken.file.as_deref());
        Ok(taken.into_obtained(wanted, key))
    }

    /// The same without the network: `None` where nothing of the repository is here, and an error
    /// where not enough of it is.
    pub(crate) fn obtain_cached(
        &self,
        wanted: &HubWanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Option<Obtained>, StoreError> {
        let repo = wanted.repo();
        let Some(listing) = self.hub.cached_listing(&repo)? else {
            return Ok(None);
        };
        let taking = Taking {
            store: self,
            repo: &repo,
            listing: &listing,
            wanted,
            download: None,
        };
        self.take_cached(&taking, progress).map(Some)
    }

    fn take_cached(
        &self,
        taking: &Taking<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Obtained, StoreError> {
        let Taking {
            repo,
            listing,
            wanted,
            ..
        } = *taking;
        let all_missing = |files: Vec<String>| {
            StoreError::Hub(HubError::FilesNotCached {
                repo: repo.id.clone(),
                files,
            })
        };
        let missing = |file: &str| all_missing(vec![file.to_owned()]);
        let taken = match (taking.take(progress), &wanted.reference.part) {
            (Err(StoreError::NoSuchPart { wanted, .. }), _) => return Err(missing(&wanted)),
            (Err(StoreError::NotAModelRepo { .. }), Some(part)) => {
                let (RepoPart::File(part) | RepoPart::Quant(part)) = part;
                return Err(missing(part));
            }
            (Err(StoreError::NotAModelRepo { .. }), None) => {
                return Err(missing("every file of its weights"));
            }
            (taken, _) => taken?,
        };
        let is_here = |path: &str| listing.files.iter().any(|file| file.path == path);
        if taken.kind != FileKind::Gguf && !is_here(TOKENIZER) {
            return Err(missing(TOKENIZER));
        }
        let key = hub_key(&repo.id, &listing.commit, taken.file.as_deref());
        let needed = self.pulled(&key).map(|pulled| pulled.files);
        let needed = needed.unwrap_or_default().into_iter();
        let absent: Vec<String> = needed.filter(|path| !is_here(path)).collect();
        if !absent.is_empty() {
            return Err(all_missing(absent));
        }
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
}

/// A model that was chosen and is whole.
struct Taken {
    path: PathBuf,
    kind: FileKind,
    /// The GGUF.
    file: Option<String>,
    /// Whether its quant tells it from the others of its repository.
    named_by_quant: bool,
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
    /// Else the listing is of what is here.
    download: Option<Downloading>,
}

struct Downloading {
    /// What the commit's snapshot held before.
    before: Vec<RemoteFile>,
    /// Whether to hash what is here, and bring what is damaged again.
    check: bool,
}

/// Which files of the listing make a model.
struct Needs<'n> {
    /// The GGUF.
    file: Option<&'n str>,
    weights: &'n [&'n str],
    /// The weights, as far as they are known, and what goes with them.
    all: &'n [&'n str],
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
                self.say_which(&path, by_default.as_deref(), progress);
                self.take_gguf(&contents, self.file(&path)?, progress)
            }
            Choice::Safetensors => self.take_safetensors(&contents, progress),
        }
    }

    /// Nobody who gave no quant should have to guess which it was.
    fn say_which(&self, path: &str, by_default: Option<&str>, progress: &mut dyn Progress) {
        let id = &self.repo.id;
        let quant = quant_of(path).filter(|_| self.wanted.reference.part.is_none());
        match (by_default, &self.download, quant) {
            (Some(quant), ..) => progress.note(&format!(
                "{id} has several quants; taking {quant} (say {id}:QUANT for another)"
            )),
            (None, None, Some(quant)) => progress.note(&format!(
                "taking {quant} of {id}, which is here (say {id}:QUANT for another)"
            )),
            _ => {}
        }
    }

    fn take_gguf(
        &self,
        contents: &Contents,
        file: &RemoteFile,
        progress: &mut dyn Progress,
    ) -> Result<Taken, StoreError> {
        self.check_stated(file)?;
        self.note_begun(&Needs {
            file: Some(&file.path),
            weights: &[&file.path],
            all: &[&file.path],
        });
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
        })
    }

    fn take_safetensors(
        &self,
        contents: &Contents,
        progress: &mut dyn Progress,
    ) -> Result<Taken, StoreError> {
        // What the rest is stands in these, which are small.
        let first = select::first_files(contents);
        let mut names = first.clone();
        names.extend(select::side_files(contents));
        names.extend(contents.has(SINGLE).then_some(SINGLE));
        self.note_begun(&Needs {
            file: None,
            weights: &contents.safetensors(),
            all: &names,
        });
        let dir = self.fetch(&self.files(&first)?, &mut NoProgress)?;
        let kind = local::kind_of_config(&dir)?;
        if let Some(wanted) = self.wanted.kind.filter(|wanted| *wanted != kind) {
            return Err(StoreError::OtherKind {
                reference: self.wanted.name.to_owned(),
                wanted,
                found: kind,
            });
        }
        let weights = if contents.has(SINGLE) {
            vec![SINGLE.to_owned()]
        } else {
            local::shards_of(&dir.join(INDEX))?
        };
        let weights: Vec<&str> = weights.iter().map(String::as_str).collect();
        names.extend(&weights);
        names.sort_unstable();
        names.dedup();
        self.note_begun(&Needs {
            file: None,
            weights: &weights,
            all: &names,
        });
        let dir = self.fetch(&self.files(&names)?, progress)?;
        Ok(Taken {
            path: dir,
            kind,
            file: None,
            named_by_quant: false,
        })
    }

    fn fetch(
        &self,
        files: &[&RemoteFile],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let hub = &self.store.hub;
        if self.download.as_ref().is_some_and(|from| from.check) {
            for path in hub.discard_damaged(self.repo, self.listing, files, progress)? {
                progress.note(&format!("{path} is damaged; downloading it again"));
            }
        }
        Ok(hub.bring(self.repo, self.listing, files, progress)?)
    }

    /// Notes what is about to come and whose it will be. What others brought is theirs, even if
    /// some of it was missing.
    fn note_begun(&self, needs: &Needs<'_>) {
        let Some(Downloading { before, .. }) = &self.download else {
            return;
        };
        let key = hub_key(&self.repo.id, &self.listing.commit, needs.file);
        let was_there = |path: &&str| before.iter().any(|file| file.path == **path);
        let known = self.store.pulled(&key);
        let by_catalog = |known: &Pulled| known.verified == Verified::Catalog;
        let mut pulled = Pulled {
            repo: self.repo.id.clone(),
            commit: self.listing.commit.clone(),
            file: needs.file.map(str::to_owned),
            verified: if self.wanted.sha256.is_some() || known.as_ref().is_some_and(by_catalog) {
                Verified::Catalog
            } else {
                Verified::Hub
            },
            files: needs.all.iter().map(|path| (*path).to_owned()).collect(),
            ours: known.as_ref().is_some_and(|known| known.ours)
                || !needs.weights.iter().any(was_there),
            brought: known.map(|known| known.brought).unwrap_or_default(),
        };
        let new = needs.all.iter().filter(|path| !was_there(path));
        let new: Vec<String> = new.map(|path| (*path).to_owned()).collect();
        pulled.brought.extend(new);
        pulled.brought.sort_unstable();
        pulled.brought.dedup();
        if pulled.brought.is_empty() {
            return;
        }
        if let Err(error) = self.store.record_pulled(&key, &pulled) {
            tracing::warn!("could not note that {} is pulled: {error}", self.repo.id);
        }
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
