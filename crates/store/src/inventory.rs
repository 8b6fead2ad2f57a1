//! Lists, verifies and removes the models on this machine.

use std::fs;
use std::path::PathBuf;

use crate::adapter::{self, AdapterFiles};
use crate::catalog::{CatalogEntry, DownloadSource, ModelForm};
use crate::contents::{Contents, NamedFile, quant_in_name};
use crate::hub::CachedSnapshot;
use crate::packaged::{PackagedFile, record_path};
use crate::records::{HashSource, PullRecord, hub_key};
use crate::staging::EntryLock;
use crate::{
    FileKind, HubReference, ModelQuery, Progress, RepoPart, ResolvedReference, Store, StoreError,
    local, wheel,
};

/// A model on this machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoredModel {
    /// The reference that selects it: `name:tag`, or `owner/name` with a revision and part if
    /// needed.
    pub name: String,
    /// The format of its files.
    pub kind: FileKind,
    /// Whether it is an adapter of a model, not a model.
    pub is_adapter: bool,
    /// Its quantization, if the files name one.
    pub quant: Option<String>,
    /// The size of its files.
    pub bytes: u64,
    /// Unix time in seconds; `None` if Loquat never ran it.
    pub last_used: Option<u64>,
    /// The source's display name.
    pub source: String,
    /// Who downloaded it.
    pub owner: Owner,
    /// What its download was verified against, if known.
    pub verified: Option<HashSource>,
    /// The path that `weights` opens.
    pub path: PathBuf,
    key: String,
    location: StorageLocation,
}

/// Who downloaded a model and may remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The store downloaded it.
    Store,
    /// Another tool downloaded it into the shared cache.
    Shared,
}

#[derive(Debug, Clone)]
enum StorageLocation {
    Packaged {
        file: PathBuf,
        sha256: String,
    },
    Hub {
        snapshot: CachedSnapshot,
        /// The GGUF's path; the snapshot may hold others.
        file: Option<String>,
        /// The files it needs.
        files: Vec<String>,
        /// Those of them that the store downloaded.
        downloaded: Vec<String>,
    },
}

/// The result of verifying a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Damaged or missing files, each with the problem.
    pub damaged: Vec<String>,
    /// Files without a known hash.
    pub unchecked: Vec<String>,
}

impl Store {
    /// Every model in the store or in the hub's cache, sorted by name.
    pub fn stored_models(&self) -> Result<Vec<StoredModel>, StoreError> {
        let mut models: Vec<StoredModel> = self.packaged_models();
        for snapshot in self.hub.cached()? {
            models.extend(self.snapshot_models(snapshot));
        }
        models.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(models)
    }

    /// The stored models that a query selects.
    pub fn find_stored(&self, query: &ModelQuery<'_>) -> Result<Vec<StoredModel>, StoreError> {
        let all = self.stored_models()?;
        let named: Vec<StoredModel> = all
            .iter()
            .filter(|model| {
                model.name.eq_ignore_ascii_case(query.reference)
                    && query.kind.is_none_or(|kind| kind == model.kind)
            })
            .cloned()
            .collect();
        if !named.is_empty() {
            return Ok(named);
        }
        let fits: Box<dyn Fn(&StoredModel) -> bool> = match self.resolve(query)? {
            ResolvedReference::Local(local) => {
                Box::new(move |model: &StoredModel| model.path == local.path)
            }
            ResolvedReference::Catalog { entry, .. } => {
                let name = entry.to_string();
                Box::new(move |model: &StoredModel| model.name == name)
            }
            ResolvedReference::Hub(reference) => {
                Box::new(move |model: &StoredModel| model.matches_reference(&reference))
            }
        };
        let fits =
            |model: &StoredModel| fits(model) && query.kind.is_none_or(|kind| kind == model.kind);
        match all.into_iter().filter(fits).collect::<Vec<_>>() {
            none if none.is_empty() => Err(StoreError::NotStored {
                name: query.reference.to_owned(),
            }),
            found => Ok(found),
        }
    }

    /// Removes a model that the store downloaded. Returns the bytes freed; a process that runs the
    /// model keeps the space until it ends.
    pub fn remove(
        &self,
        model: &StoredModel,
        progress: &mut dyn Progress,
    ) -> Result<u64, StoreError> {
        model.check_owned()?;
        let freed = match &model.location {
            StorageLocation::Packaged { file, .. } => {
                self.remove_packaged(file, &model.key, progress)?
            }
            StorageLocation::Hub {
                snapshot,
                downloaded,
                ..
            } => {
                let mut files: Vec<&str> = downloaded.iter().map(String::as_str).collect();
                let left = self.hand_over_shared(&model.key, downloaded);
                files.retain(|file| !left.iter().any(|left| left == file));
                self.hub.remove_files(snapshot, &files)?
            }
        };
        self.forget(&model.key);
        Ok(freed)
    }

    pub(crate) fn remove_packaged(
        &self,
        file: &PathBuf,
        key: &str,
        progress: &mut dyn Progress,
    ) -> Result<u64, StoreError> {
        // Excludes concurrent downloads.
        let _lock = EntryLock::acquire(&self.cache_dir, key, progress)?;
        let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
        // The record first: a file without a record is verified again, a record without a file is
        // wrong.
        for path in [&record_path(file), file] {
            match fs::remove_file(path) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io("remove", path, cause));
                }
                _ => {}
            }
        }
        if let Some(dir) = file.parent() {
            // The entry may have other files.
            let _ = fs::remove_dir(dir);
        }
        Ok(bytes)
    }

    /// Hashes a model's files again.
    pub fn verify(
        &self,
        model: &StoredModel,
        progress: &mut dyn Progress,
    ) -> Result<VerifyReport, StoreError> {
        match &model.location {
            StorageLocation::Packaged { file, sha256 } => {
                progress.start(&format!("verifying {}", model.name), Some(model.bytes));
                let found = wheel::hash_file(file, progress);
                progress.finish();
                let found = found?;
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let wrong = (found != *sha256)
                    .then(|| format!("{name}: its SHA-256 is {found}, expected {sha256}"));
                Ok(VerifyReport {
                    damaged: wrong.into_iter().collect(),
                    ..VerifyReport::default()
                })
            }
            StorageLocation::Hub {
                snapshot, files, ..
            } => {
                let mut part = snapshot.clone();
                part.files.retain(|other| files.contains(&other.path));
                let is_here = |path: &&String| part.files.iter().any(|file| file.path == **path);
                let absent = files.iter().filter(|path| !is_here(path));
                let absent = absent.map(|path| format!("{path}: missing"));
                let unchecked = part.files.iter().filter(|file| !file.can_be_checked());
                let unchecked = unchecked.map(|file| file.path.clone()).collect();
                let damaged = self.hub.verify(&part, progress)?;
                let problems = damaged.into_iter().map(|damaged| match damaged.found {
                    Some(found) => format!(
                        "{}: its hash is {found}, expected {}",
                        damaged.path, damaged.expected
                    ),
                    None => format!("{}: content missing", damaged.path),
                });
                Ok(VerifyReport {
                    damaged: problems.chain(absent).collect(),
                    unchecked,
                })
            }
        }
    }

    fn packaged_models(&self) -> Vec<StoredModel> {
        let stored = |entry: &CatalogEntry, form: &ModelForm| {
            let packaged = PackagedFile::from_form(entry, form)?;
            let path = self.verified(&packaged)?;
            let is_packages =
                |source: &&DownloadSource| matches!(source, DownloadSource::PythonPackages { .. });
            let source = form.sources.iter().find(is_packages)?;
            Some(StoredModel {
                name: entry.to_string(),
                kind: form.kind,
                is_adapter: false,
                quant: Some(form.quant.clone()),
                bytes: packaged.bytes,
                last_used: self.last_used(&packaged.key),
                source: source.name(),
                owner: Owner::Store,
                verified: Some(HashSource::Catalog),
                location: StorageLocation::Packaged {
                    file: path.clone(),
                    sha256: packaged.sha256.to_owned(),
                },
                path,
                key: packaged.key,
            })
        };
        let forms = self.catalog.entries().iter();
        forms
            .flat_map(|entry| {
                entry
                    .forms
                    .iter()
                    .filter_map(move |form| stored(entry, form))
            })
            .collect()
    }

    /// A snapshot may hold no model, one model, or several quants.
    fn snapshot_models(&self, snapshot: CachedSnapshot) -> Vec<StoredModel> {
        let named = snapshot.files.iter().map(|file| NamedFile {
            path: file.path.clone(),
            bytes: Some(file.size),
        });
        let contents = Contents {
            files: named.collect(),
        };
        let mut models = Vec::new();
        let ggufs = contents.ggufs();
        for gguf in ggufs.iter().filter(|gguf| !gguf.is_split()) {
            let same_quant = ggufs.iter().filter(|other| other.quant == gguf.quant);
            let part = match &gguf.quant {
                Some(quant) if same_quant.count() == 1 => RepoPart::Quant(quant.clone()),
                _ => RepoPart::File(gguf.path.clone()),
            };
            let key = hub_key(&snapshot.repo, &snapshot.commit, Some(&gguf.path));
            let pulled = self.pull_record(&key);
            let named_by_repo = pulled.is_some_and(|pulled| pulled.adapter)
                && adapter::is_default(&contents, &gguf.path);
            models.push(self.stored_model(SnapshotModel {
                snapshot: &snapshot,
                kind: FileKind::Gguf,
                quant: quant_in_name(&gguf.path),
                file: Some(&gguf.path),
                part: (!named_by_repo).then_some(part),
            }));
        }
        if contents.has_safetensors()
            && let Ok(kind) = local::config_kind(&snapshot.dir)
        {
            models.push(self.stored_model(SnapshotModel {
                snapshot: &snapshot,
                kind,
                quant: local::config_quant(&snapshot.dir),
                file: None,
                part: None,
            }));
        }
        for files in AdapterFiles::all(&contents) {
            let part = RepoPart::File(files.weights.clone());
            models.push(self.stored_model(SnapshotModel {
                snapshot: &snapshot,
                kind: files.kind,
                quant: None,
                file: Some(&files.weights),
                part: (!adapter::is_default(&contents, &files.weights)).then_some(part),
            }));
        }
        models
    }

    fn stored_model(&self, model: SnapshotModel<'_>) -> StoredModel {
        let SnapshotModel {
            snapshot,
            kind,
            quant,
            file,
            part,
        } = model;
        let key = hub_key(&snapshot.repo, &snapshot.commit, file.map(String::as_str));
        let pulled: Option<PullRecord> = self.pull_record(&key);
        let files = match &pulled {
            Some(pulled) => pulled.files.clone(),
            None => model_files(snapshot, kind, file.map(String::as_str)),
        };
        let is_adapter = pulled.as_ref().is_some_and(|pulled| pulled.adapter)
            || (kind != FileKind::Gguf && file.is_some());
        let sizes = snapshot.files.iter();
        let sizes = sizes.filter(|file| files.contains(&file.path));
        let bytes = sizes.map(|file| file.size).sum();
        let is_main = snapshot.refs.iter().any(|name| name == "main");
        let reference = HubReference {
            repo: snapshot.repo.clone(),
            // Prefer a branch to the commit, so that the name stays valid.
            revision: if is_main {
                None
            } else {
                Some(snapshot.refs.first().unwrap_or(&snapshot.commit).clone())
            },
            part,
        };
        let known = self
            .catalog_name(&snapshot.repo, kind, file)
            .filter(|_| is_main);
        StoredModel {
            name: known.unwrap_or_else(|| reference.to_string()),
            kind,
            is_adapter,
            quant,
            bytes,
            last_used: self.last_used(&key),
            source: format!("hub {}", snapshot.repo),
            owner: match &pulled {
                Some(PullRecord { owned: true, .. }) => Owner::Store,
                _ => Owner::Shared,
            },
            verified: pulled
                .as_ref()
                .filter(|pulled| pulled.owned)
                .map(|pulled| pulled.verified),
            path: match file {
                Some(file) => snapshot.dir.join(file),
                None => snapshot.dir.clone(),
            },
            key,
            location: StorageLocation::Hub {
                snapshot: snapshot.clone(),
                file: file.cloned(),
                files,
                downloaded: pulled.map(|pulled| pulled.downloaded).unwrap_or_default(),
            },
        }
    }

    /// The catalog entry that selects exactly these files.
    fn catalog_name(&self, repo: &str, kind: FileKind, file: Option<&String>) -> Option<String> {
        let is_it = |form: &ModelForm| {
            let sources = form
                .sources
                .iter()
                .filter_map(|source| source.reference(form));
            let mut sources = sources.filter(|reference| reference.repo == repo);
            form.kind == kind
                && sources.any(|reference| match (&reference.part, file) {
                    (Some(RepoPart::File(part)), Some(file)) => part == file,
                    (None, None) => true,
                    _ => false,
                })
        };
        let entries = self.catalog.entries().iter();
        let mut found = entries.filter(|entry| entry.forms.iter().any(is_it));
        found.next().map(CatalogEntry::to_string)
    }
}

/// The files of one model in a snapshot: its GGUF, an adapter's folder, or everything that is not a
/// GGUF.
fn model_files(snapshot: &CachedSnapshot, kind: FileKind, file: Option<&str>) -> Vec<String> {
    let is_gguf = |path: &str| path.to_ascii_lowercase().ends_with(".gguf");
    let folder = |path: &str| path.rfind('/').map(|at| path[..at].to_owned());
    let paths = snapshot.files.iter().map(|file| file.path.as_str());
    paths
        .filter(|path| match (file, kind) {
            (Some(file), FileKind::Gguf) => *path == file,
            (Some(file), _) => folder(path) == folder(file) && !is_gguf(path),
            (None, _) => !is_gguf(path),
        })
        .map(str::to_owned)
        .collect()
}

struct SnapshotModel<'a> {
    snapshot: &'a CachedSnapshot,
    kind: FileKind,
    quant: Option<String>,
    file: Option<&'a String>,
    part: Option<RepoPart>,
}

impl StoredModel {
    /// Fails for a model that another tool downloaded.
    pub fn check_owned(&self) -> Result<(), StoreError> {
        match self.owner {
            Owner::Store => Ok(()),
            Owner::Shared => Err(StoreError::NotOwned {
                name: self.name.clone(),
                path: self.path.clone(),
            }),
        }
    }

    /// Whether a hub reference selects it.
    fn matches_reference(&self, reference: &HubReference) -> bool {
        let StorageLocation::Hub { snapshot, file, .. } = &self.location else {
            return false;
        };
        let at = |revision: &String| {
            snapshot.refs.contains(revision) || snapshot.commit.starts_with(revision.as_str())
        };
        let part = match &reference.part {
            None => true,
            Some(RepoPart::File(part)) => file.as_ref() == Some(part),
            Some(RepoPart::Quant(quant)) => {
                let own = self.quant.as_deref().filter(|_| file.is_some());
                own.is_some_and(|own| own.eq_ignore_ascii_case(quant))
            }
        };
        snapshot.repo.eq_ignore_ascii_case(&reference.repo)
            && reference.revision.as_ref().is_none_or(at)
            && part
    }
}
