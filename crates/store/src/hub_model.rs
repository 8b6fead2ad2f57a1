//! Hub models: from the cache if they are complete, otherwise from the hub.

use std::path::{Path, PathBuf};

use loquat_weights::{MmprojMatch, match_mmproj};

use crate::adapter::{self, AdapterFiles};
use crate::contents::{Contents, INDEX, NamedFile, SINGLE, TOKENIZER, quant_in_name};
use crate::hub::{HubError, HubRepo, Listing, RemoteFile};
use crate::records::{HashSource, PullRecord, hub_key};
use crate::select::{self, Choice};
use crate::{
    FileKind, HubReference, NoProgress, Progress, RepoPart, Store, StoreError, local, wheel,
};

const MAIN: &str = "main";

/// A query for a hub model.
#[derive(Debug, Clone)]
pub(crate) struct HubQuery<'a> {
    /// The model's name in messages.
    pub name: &'a str,
    pub reference: HubReference,
    pub kind: Option<FileKind>,
    /// The expected SHA-256 of its one file, if the catalog states it.
    pub sha256: Option<&'a str>,
    pub part: GgufPart,
    /// The vision tower's path, if the catalog states it.
    pub mmproj: Option<&'a str>,
}

/// Which files of a GGUF model are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GgufPart {
    Model,
    /// The model with its vision tower, if the repository has one that fits.
    ModelAndMmproj,
    /// The vision tower alone.
    Mmproj,
    /// An adapter, in any format.
    Adapter,
}

impl HubQuery<'_> {
    fn repo(&self) -> HubRepo {
        let HubReference { repo, revision, .. } = &self.reference;
        HubRepo {
            id: repo.clone(),
            revision: revision.clone().unwrap_or_else(|| MAIN.to_owned()),
        }
    }
}

/// A complete model in the hub's cache.
#[derive(Debug, Clone)]
pub(crate) struct HubModelFiles {
    /// The path that `weights` opens.
    pub path: PathBuf,
    /// The reference that selects exactly this model.
    pub reference: HubReference,
    /// Its key in the store's records.
    pub key: String,
}

/// When to check the hub for updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdateCheck {
    /// Only if files are missing.
    IfMissing,
    Always,
}

impl Store {
    pub(crate) fn fetch_hub_model(
        &self,
        query: &HubQuery<'_>,
        check: UpdateCheck,
        progress: &mut dyn Progress,
    ) -> Result<HubModelFiles, StoreError> {
        let repo = query.repo();
        if check == UpdateCheck::IfMissing || self.hub.is_offline() {
            match self.cached_hub_model(query, progress) {
                Ok(Some(files)) => return Ok(files),
                Err(error) if self.hub.is_offline() => return Err(error),
                // Incomplete: check the hub.
                Ok(None) | Err(_) => {}
            }
        }
        let listing = self.hub.listing(&repo)?;
        let selector = ModelSelector {
            store: self,
            repo: &repo,
            listing: &listing,
            query,
            download: Some(DownloadContext {
                before: self.cached_at(&repo.id, &listing.commit)?,
                check: check == UpdateCheck::Always,
            }),
        };
        let selected = selector.select(progress)?;
        // Last, so that the ref always points to a complete model.
        self.hub.set_ref(&repo, &listing)?;
        let key = hub_key(&repo.id, &listing.commit, selected.file.as_deref());
        Ok(selected.into_files(query, key))
    }

    /// The model from the cache alone: `None` if nothing of the repository is cached, an error if
    /// it is incomplete.
    pub(crate) fn cached_hub_model(
        &self,
        query: &HubQuery<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Option<HubModelFiles>, StoreError> {
        let repo = query.repo();
        let Some(listing) = self.hub.cached_listing(&repo)? else {
            return Ok(None);
        };
        let selector = ModelSelector {
            store: self,
            repo: &repo,
            listing: &listing,
            query,
            download: None,
        };
        self.select_cached(&selector, progress).map(Some)
    }

    fn select_cached(
        &self,
        selector: &ModelSelector<'_>,
        progress: &mut dyn Progress,
    ) -> Result<HubModelFiles, StoreError> {
        let ModelSelector {
            repo,
            listing,
            query,
            ..
        } = *selector;
        let all_missing = |files: Vec<String>| {
            StoreError::Hub(HubError::FilesNotCached {
                repo: repo.id.clone(),
                files,
            })
        };
        let missing = |file: &str| all_missing(vec![file.to_owned()]);
        let selected = match (selector.select(progress), &query.reference.part) {
            (Err(StoreError::NoSuchPart { requested, .. }), _) => return Err(missing(&requested)),
            (Err(StoreError::NotAModelRepo { .. }), Some(part)) => {
                let (RepoPart::File(part) | RepoPart::Quant(part)) = part;
                return Err(missing(part));
            }
            (Err(StoreError::NotAModelRepo { .. }), None) => {
                return Err(missing("all weights"));
            }
            (Err(StoreError::NotAnAdapterRepo { .. }), _) => {
                return Err(missing("the adapter"));
            }
            (selected, _) => selected?,
        };
        let is_here = |path: &str| listing.files.iter().any(|file| file.path == path);
        let is_model = query.part != GgufPart::Adapter;
        if is_model && selected.kind != FileKind::Gguf && !is_here(TOKENIZER) {
            return Err(missing(TOKENIZER));
        }
        let key = hub_key(&repo.id, &listing.commit, selected.file.as_deref());
        let needed = self.pull_record(&key).map(|pulled| pulled.files);
        let needed = needed.unwrap_or_default().into_iter();
        let absent: Vec<String> = needed.filter(|path| !is_here(path)).collect();
        if !absent.is_empty() {
            return Err(all_missing(absent));
        }
        Ok(selected.into_files(query, key))
    }

    fn cached_at(&self, repo: &str, commit: &str) -> Result<Vec<RemoteFile>, StoreError> {
        let at = HubRepo {
            id: repo.to_owned(),
            revision: commit.to_owned(),
        };
        let listing = self.hub.cached_listing(&at)?;
        Ok(listing.map(|listing| listing.files).unwrap_or_default())
    }
}

/// A selected, complete model.
struct SelectedModel {
    path: PathBuf,
    kind: FileKind,
    /// The GGUF's path.
    file: Option<String>,
    /// Whether its quant is unique in its repository.
    named_by_quant: bool,
    /// Whether the repository alone selects it.
    named_by_repo: bool,
}

impl SelectedModel {
    fn into_files(self, query: &HubQuery<'_>, key: String) -> HubModelFiles {
        let by_quant = |file: &String| match (self.named_by_quant, quant_in_name(file)) {
            (true, Some(quant)) => RepoPart::Quant(quant),
            _ => RepoPart::File(file.clone()),
        };
        HubModelFiles {
            path: self.path,
            reference: HubReference {
                part: self
                    .file
                    .as_ref()
                    .filter(|_| !self.named_by_repo)
                    .map(by_quant),
                ..query.reference.clone()
            },
            key,
        }
    }
}

struct ModelSelector<'a> {
    store: &'a Store,
    repo: &'a HubRepo,
    listing: &'a Listing,
    query: &'a HubQuery<'a>,
    /// `None` if the listing is of the cache.
    download: Option<DownloadContext>,
}

struct DownloadContext {
    /// The snapshot's files before the download.
    before: Vec<RemoteFile>,
    /// Whether to hash existing files and replace damaged ones.
    check: bool,
}

/// The listed files that make up a model.
struct RequiredFiles<'n> {
    /// The GGUF's path.
    file: Option<&'n str>,
    weights: &'n [&'n str],
    /// Known weights and side files.
    all: &'n [&'n str],
}

impl ModelSelector<'_> {
    fn select(&self, progress: &mut dyn Progress) -> Result<SelectedModel, StoreError> {
        let contents = listing_contents(self.listing);
        // The hash identifies the file even if it was renamed.
        if let Some(file) = self.file_by_hash() {
            return self.select_gguf(&contents, file, progress);
        }
        if self.query.part == GgufPart::Mmproj {
            let path = select::choose_mmproj(&contents, &self.query.reference)?;
            return self.select_gguf(&contents, self.file(&path)?, progress);
        }
        if self.query.part == GgufPart::Adapter {
            let files = adapter::choose(&contents, &self.query.reference)?;
            return self.select_adapter(&contents, files, progress);
        }
        match select::choose(&contents, &self.query.reference, self.query.kind)? {
            Choice::Gguf { path, by_default } => {
                self.note_quant(&path, by_default.as_deref(), progress);
                self.select_gguf(&contents, self.file(&path)?, progress)
            }
            Choice::Safetensors => self.select_safetensors(&contents, progress),
        }
    }

    /// Tells a user who named no quant which one is used.
    fn note_quant(&self, path: &str, by_default: Option<&str>, progress: &mut dyn Progress) {
        let id = &self.repo.id;
        let quant = quant_in_name(path).filter(|_| self.query.reference.part.is_none());
        match (by_default, &self.download, quant) {
            (Some(quant), ..) => progress.note(&format!(
                "{id} has several quants; using {quant} (choose another with {id}:QUANT)"
            )),
            (None, None, Some(quant)) => progress.note(&format!(
                "using the local {quant} of {id} (choose another with {id}:QUANT)"
            )),
            _ => {}
        }
    }

    fn select_gguf(
        &self,
        contents: &Contents,
        file: &RemoteFile,
        progress: &mut dyn Progress,
    ) -> Result<SelectedModel, StoreError> {
        self.check_stated(file)?;
        let mmproj = self.mmproj_of(contents, file, progress)?;
        let needed: Vec<&RemoteFile> = std::iter::once(file).chain(mmproj).collect();
        let names: Vec<&str> = needed.iter().map(|file| file.path.as_str()).collect();
        self.record_start(&RequiredFiles {
            file: Some(&file.path),
            weights: &[&file.path],
            all: &names,
        });
        let dir = self.fetch(&needed, progress)?;
        let path = dir.join(&file.path);
        let kind = local::inspect(&path, Some(FileKind::Gguf))?.kind;
        self.check_found(file, &path, progress)?;
        let quant = quant_in_name(&file.path);
        let same_quant = contents.ggufs();
        let same_quant = same_quant.iter().filter(|gguf| gguf.quant == quant);
        Ok(SelectedModel {
            path,
            kind,
            named_by_quant: quant.is_some() && same_quant.count() == 1,
            named_by_repo: false,
            file: Some(file.path.clone()),
        })
    }

    fn select_adapter(
        &self,
        contents: &Contents,
        files: AdapterFiles,
        progress: &mut dyn Progress,
    ) -> Result<SelectedModel, StoreError> {
        let names = files.paths();
        self.record_start(&RequiredFiles {
            file: Some(&files.weights),
            weights: &[&files.weights],
            all: &names,
        });
        let dir = self.fetch(&self.files(&names)?, progress)?;
        Ok(SelectedModel {
            path: dir.join(&files.weights),
            kind: files.kind,
            named_by_quant: false,
            named_by_repo: adapter::is_default(contents, &files.weights),
            file: Some(files.weights),
        })
    }

    /// The vision tower of a model, if it is wanted and the repository has one.
    fn mmproj_of(
        &self,
        contents: &Contents,
        file: &RemoteFile,
        progress: &mut dyn Progress,
    ) -> Result<Option<&RemoteFile>, StoreError> {
        if self.query.part != GgufPart::ModelAndMmproj {
            return Ok(None);
        }
        if let Some(path) = self.query.mmproj {
            return self.file(path).map(Some);
        }
        let names: Vec<&str> = contents
            .files
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        match match_mmproj(&file.path, &names) {
            MmprojMatch::None => Ok(None),
            MmprojMatch::One(path) => self.file(&path).map(Some),
            MmprojMatch::Several(paths) => {
                let id = &self.repo.id;
                progress.note(&format!(
                    "{id} has several vision towers and none is used; choose one with --mmproj \
                     {id}:FILE: {}",
                    paths.join(", ")
                ));
                Ok(None)
            }
        }
    }

    fn select_safetensors(
        &self,
        contents: &Contents,
        progress: &mut dyn Progress,
    ) -> Result<SelectedModel, StoreError> {
        // These small files name the others.
        let first = select::first_files(contents);
        let mut names = first.clone();
        names.extend(select::side_files(contents));
        names.extend(contents.has(SINGLE).then_some(SINGLE));
        self.record_start(&RequiredFiles {
            file: None,
            weights: &contents.safetensors(),
            all: &names,
        });
        let dir = self.fetch(&self.files(&first)?, &mut NoProgress)?;
        let kind = local::config_kind(&dir)?;
        if let Some(requested) = self.query.kind.filter(|requested| *requested != kind) {
            return Err(StoreError::KindMismatch {
                reference: self.query.name.to_owned(),
                requested,
                found: kind,
            });
        }
        let weights = if contents.has(SINGLE) {
            vec![SINGLE.to_owned()]
        } else {
            local::index_shards(&dir.join(INDEX))?
        };
        let weights: Vec<&str> = weights.iter().map(String::as_str).collect();
        names.extend(&weights);
        names.sort_unstable();
        names.dedup();
        self.record_start(&RequiredFiles {
            file: None,
            weights: &weights,
            all: &names,
        });
        let dir = self.fetch(&self.files(&names)?, progress)?;
        Ok(SelectedModel {
            path: dir,
            kind,
            file: None,
            named_by_quant: false,
            named_by_repo: true,
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
        Ok(hub.download(self.repo, self.listing, files, progress)?)
    }

    /// Records the download before it starts. A model that another tool downloaded stays that
    /// tool's, even if files were missing.
    fn record_start(&self, required: &RequiredFiles<'_>) {
        let Some(DownloadContext { before, .. }) = &self.download else {
            return;
        };
        let key = hub_key(&self.repo.id, &self.listing.commit, required.file);
        let was_there = |path: &&str| before.iter().any(|file| file.path == **path);
        let known = self.store.pull_record(&key);
        let by_catalog = |known: &PullRecord| known.verified == HashSource::Catalog;
        let mut pulled = PullRecord {
            repo: self.repo.id.clone(),
            commit: self.listing.commit.clone(),
            file: required.file.map(str::to_owned),
            adapter: self.query.part == GgufPart::Adapter,
            verified: if self.query.sha256.is_some() || known.as_ref().is_some_and(by_catalog) {
                HashSource::Catalog
            } else {
                HashSource::Hub
            },
            files: required.all.iter().map(|path| (*path).to_owned()).collect(),
            owned: known.as_ref().is_some_and(|known| known.owned)
                || !required.weights.iter().any(was_there),
            downloaded: known.map(|known| known.downloaded).unwrap_or_default(),
        };
        let new = required.all.iter().filter(|path| !was_there(path));
        let new: Vec<String> = new.map(|path| (*path).to_owned()).collect();
        pulled.downloaded.extend(new);
        pulled.downloaded.sort_unstable();
        pulled.downloaded.dedup();
        if pulled.downloaded.is_empty() {
            return;
        }
        if let Err(error) = self.store.record_pulled(&key, &pulled) {
            tracing::warn!("could not record the download of {}: {error}", self.repo.id);
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

    fn file_by_hash(&self) -> Option<&RemoteFile> {
        let expected = self.query.sha256?;
        let files = &mut self.listing.files.iter();
        files.find(|file| file.sha256.as_deref() == Some(expected))
    }

    /// Compares the catalog's hash with the hub's before a download.
    fn check_stated(&self, file: &RemoteFile) -> Result<(), StoreError> {
        match (self.query.sha256, &file.sha256) {
            (Some(expected), Some(stated)) if expected != stated => {
                Err(self.wrong_hash(expected, stated))
            }
            _ => Ok(()),
        }
    }

    /// Hashes the file after a download if the hub stated no hash.
    fn check_found(
        &self,
        file: &RemoteFile,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), StoreError> {
        let (Some(expected), None) = (self.query.sha256, &file.sha256) else {
            return Ok(());
        };
        progress.start(&format!("verifying {}", self.query.name), file.size);
        let found = wheel::hash_file(path, progress);
        progress.finish();
        match found? {
            found if found == expected => Ok(()),
            found => Err(self.wrong_hash(expected, &found)),
        }
    }

    fn wrong_hash(&self, expected: &str, found: &str) -> StoreError {
        StoreError::ChangedOnHub {
            model: self.query.name.to_owned(),
            reference: self.query.reference.to_string(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }
}

pub(crate) fn listing_contents(listing: &Listing) -> Contents {
    let named = |file: &RemoteFile| NamedFile {
        path: file.path.clone(),
        bytes: file.size,
    };
    Contents {
        files: listing.files.iter().map(named).collect(),
    }
}
