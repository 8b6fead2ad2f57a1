//! What is on this machine, whoever brought it, and what may be done with it.

use std::fs;
use std::path::PathBuf;

use crate::catalog::{Entry, Form, Source};
use crate::contents::{Contents, Named, quant_of};
use crate::hub::CachedSnapshot;
use crate::packaged::{Packaged, record_path};
use crate::staging::EntryLock;
use crate::usage::{Pulled, Verified, hub_key};
use crate::{
    FileKind, HubReference, Progress, RepoPart, Resolved, Store, StoreError, Wanted, local, wheel,
};

/// A model on this machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Held {
    /// The reference that means it: `name:tag`, or `owner/name` with what tells it from others.
    pub name: String,
    pub kind: FileKind,
    pub quant: Option<String>,
    pub bytes: u64,
    /// Seconds since 1970; unknown where it was never run by us.
    pub last_used: Option<u64>,
    /// Where it came from.
    pub source: String,
    pub owner: Owner,
    /// What its download was held to, where we know.
    pub verified: Option<Verified>,
    /// What `weights` opens.
    pub path: PathBuf,
    key: String,
    place: Place,
}

/// Who may remove a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The store brought it.
    Store,
    /// Another tool did, and shares its cache.
    Shared,
}

#[derive(Debug, Clone)]
enum Place {
    Packaged {
        file: PathBuf,
        sha256: String,
    },
    Hub {
        snapshot: CachedSnapshot,
        /// The GGUF, where the snapshot may hold others.
        file: Option<String>,
        /// All that it needs, as far as we know.
        files: Vec<String>,
        /// Those of them that the store brought.
        brought: Vec<String>,
    },
}

/// What hashing a model again came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The files that are wrong, each with what is wrong.
    pub damaged: Vec<String>,
    /// The files of which nothing says what they should be.
    pub unchecked: Vec<String>,
}

impl Store {
    /// Every model on this machine that the store or the hub's cache holds, by name.
    pub fn held(&self) -> Result<Vec<Held>, StoreError> {
        let mut held: Vec<Held> = self.held_packages();
        for snapshot in self.hub.cached()? {
            held.extend(self.held_in(snapshot));
        }
        held.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(held)
    }

    /// The models that a reference means of those here.
    pub fn find_held(&self, wanted: &Wanted<'_>) -> Result<Vec<Held>, StoreError> {
        let all = self.held()?;
        let named: Vec<Held> = all
            .iter()
            .filter(|held| {
                held.name.eq_ignore_ascii_case(wanted.reference)
                    && wanted.kind.is_none_or(|kind| kind == held.kind)
            })
            .cloned()
            .collect();
        if !named.is_empty() {
            return Ok(named);
        }
        let fits: Box<dyn Fn(&Held) -> bool> = match self.resolve(wanted)? {
            Resolved::Local(model) => Box::new(move |held: &Held| held.path == model.path),
            Resolved::Catalog { entry, .. } => {
                let name = entry.to_string();
                Box::new(move |held: &Held| held.name == name)
            }
            Resolved::Hub(reference) => Box::new(move |held: &Held| held.is_of(&reference)),
        };
        let fits = |held: &Held| fits(held) && wanted.kind.is_none_or(|kind| kind == held.kind);
        match all.into_iter().filter(fits).collect::<Vec<_>>() {
            none if none.is_empty() => Err(StoreError::NotHeld {
                name: wanted.reference.to_owned(),
            }),
            found => Ok(found),
        }
    }

    /// Removes a model that the store brought, and says how many bytes that freed. A process that
    /// is running it keeps it, and the space, until it ends.
    pub fn remove(&self, held: &Held, progress: &mut dyn Progress) -> Result<u64, StoreError> {
        held.check_ours()?;
        let freed = match &held.place {
            Place::Packaged { file, .. } => self.remove_packaged(file, &held.key, progress)?,
            Place::Hub {
                snapshot, brought, ..
            } => {
                let files: Vec<&str> = brought.iter().map(String::as_str).collect();
                self.hub.remove_files(snapshot, &files)?
            }
        };
        self.forget(&held.key);
        Ok(freed)
    }

    pub(crate) fn remove_packaged(
        &self,
        file: &PathBuf,
        key: &str,
        progress: &mut dyn Progress,
    ) -> Result<u64, StoreError> {
        // So that nobody is bringing it while it goes.
        let _lock = EntryLock::acquire(&self.cache_dir, key, progress)?;
        let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
        // The record first: a file without one is looked at again, a record without a file lies.
        for path in [&record_path(file), file] {
            match fs::remove_file(path) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io("remove", path, cause));
                }
                _ => {}
            }
        }
        if let Some(dir) = file.parent() {
            // Other files of the entry may be there.
            let _ = fs::remove_dir(dir);
        }
        Ok(bytes)
    }

    /// Hashes a model's files again.
    pub fn verify(&self, held: &Held, progress: &mut dyn Progress) -> Result<Verdict, StoreError> {
        match &held.place {
            Place::Packaged { file, sha256 } => {
                progress.start(&format!("verifying {}", held.name), Some(held.bytes));
                let found = wheel::hash_file(file, progress);
                progress.finish();
                let found = found?;
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let wrong = (found != *sha256)
                    .then(|| format!("{name}: its SHA-256 is {found}, and {sha256} is right"));
                Ok(Verdict {
                    damaged: wrong.into_iter().collect(),
                    ..Verdict::default()
                })
            }
            Place::Hub {
                snapshot, files, ..
            } => {
                let mut part = snapshot.clone();
                part.files.retain(|other| files.contains(&other.path));
                let is_here = |path: &&String| part.files.iter().any(|file| file.path == **path);
                let absent = files.iter().filter(|path| !is_here(path));
                let absent = absent.map(|path| format!("{path}: it is missing"));
                let unchecked = part.files.iter().filter(|file| !file.can_be_checked());
                let unchecked = unchecked.map(|file| file.path.clone()).collect();
                let damaged = self.hub.verify(&part, progress)?;
                let told = damaged.into_iter().map(|damaged| match damaged.found {
                    Some(found) => format!(
                        "{}: its hash is {found}, and {} is right",
                        damaged.path, damaged.expected
                    ),
                    None => format!("{}: its content is missing", damaged.path),
                });
                Ok(Verdict {
                    damaged: told.chain(absent).collect(),
                    unchecked,
                })
            }
        }
    }

    fn held_packages(&self) -> Vec<Held> {
        let held = |entry: &Entry, form: &Form| {
            let packaged = Packaged::of(entry, form)?;
            let path = self.verified(&packaged)?;
            let is_packages = |source: &&Source| matches!(source, Source::PythonPackages { .. });
            let source = form.sources.iter().find(is_packages)?;
            Some(Held {
                name: entry.to_string(),
                kind: form.kind,
                quant: Some(form.quant.clone()),
                bytes: packaged.bytes,
                last_used: self.last_used(&packaged.key),
                source: source.name(),
                owner: Owner::Store,
                verified: Some(Verified::Catalog),
                place: Place::Packaged {
                    file: path.clone(),
                    sha256: packaged.sha256.to_owned(),
                },
                path,
                key: packaged.key,
            })
        };
        let forms = self.catalog.entries().iter();
        forms
            .flat_map(|entry| entry.forms.iter().filter_map(move |form| held(entry, form)))
            .collect()
    }

    /// A snapshot may hold no model, one, or several quants of one.
    fn held_in(&self, snapshot: CachedSnapshot) -> Vec<Held> {
        let named = snapshot.files.iter().map(|file| Named {
            path: file.path.clone(),
            bytes: Some(file.size),
        });
        let contents = Contents {
            files: named.collect(),
        };
        let mut held = Vec::new();
        let ggufs = contents.ggufs();
        for gguf in ggufs.iter().filter(|gguf| !gguf.is_split()) {
            let alike = ggufs.iter().filter(|other| other.quant == gguf.quant);
            let part = match &gguf.quant {
                Some(quant) if alike.count() == 1 => RepoPart::Quant(quant.clone()),
                _ => RepoPart::File(gguf.path.clone()),
            };
            held.push(self.held_of(HubModel {
                snapshot: &snapshot,
                kind: FileKind::Gguf,
                quant: quant_of(&gguf.path),
                file: Some(&gguf.path),
                part: Some(part),
            }));
        }
        if contents.has_safetensors()
            && let Ok(kind) = local::kind_of_config(&snapshot.dir)
        {
            held.push(self.held_of(HubModel {
                snapshot: &snapshot,
                kind,
                quant: local::quant_of_config(&snapshot.dir),
                file: None,
                part: None,
            }));
        }
        held
    }

    fn held_of(&self, model: HubModel<'_>) -> Held {
        let HubModel {
            snapshot,
            kind,
            quant,
            file,
            part,
        } = model;
        let key = hub_key(&snapshot.repo, &snapshot.commit, file.map(String::as_str));
        let pulled: Option<Pulled> = self.pulled(&key);
        let files = match &pulled {
            Some(pulled) => pulled.files.clone(),
            None => of_model(snapshot, file.map(String::as_str)),
        };
        let sizes = snapshot.files.iter();
        let sizes = sizes.filter(|file| files.contains(&file.path));
        let bytes = sizes.map(|file| file.size).sum();
        let is_main = snapshot.refs.iter().any(|name| name == "main");
        let reference = HubReference {
            repo: snapshot.repo.clone(),
            // A branch where one leads here, so that the name can be used again.
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
        Held {
            name: known.unwrap_or_else(|| reference.to_string()),
            kind,
            quant,
            bytes,
            last_used: self.last_used(&key),
            source: format!("hub {}", snapshot.repo),
            owner: match &pulled {
                Some(Pulled { ours: true, .. }) => Owner::Store,
                _ => Owner::Shared,
            },
            verified: pulled
                .as_ref()
                .filter(|pulled| pulled.ours)
                .map(|pulled| pulled.verified),
            path: match file {
                Some(file) => snapshot.dir.join(file),
                None => snapshot.dir.clone(),
            },
            key,
            place: Place::Hub {
                snapshot: snapshot.clone(),
                file: file.cloned(),
                files,
                brought: pulled.map(|pulled| pulled.brought).unwrap_or_default(),
            },
        }
    }

    /// The entry that means just these files.
    fn catalog_name(&self, repo: &str, kind: FileKind, file: Option<&String>) -> Option<String> {
        let is_it = |form: &Form| {
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
        found.next().map(Entry::to_string)
    }
}

/// The files of one model of a snapshot that may hold others: its GGUF, or all that are none.
fn of_model(snapshot: &CachedSnapshot, gguf: Option<&str>) -> Vec<String> {
    let is_gguf = |path: &str| path.to_ascii_lowercase().ends_with(".gguf");
    let paths = snapshot.files.iter().map(|file| file.path.as_str());
    paths
        .filter(|path| match gguf {
            Some(gguf) => *path == gguf,
            None => !is_gguf(path),
        })
        .map(str::to_owned)
        .collect()
}

struct HubModel<'a> {
    snapshot: &'a CachedSnapshot,
    kind: FileKind,
    quant: Option<String>,
    file: Option<&'a String>,
    part: Option<RepoPart>,
}

impl Held {
    /// Refuses what another tool brought, which is not ours to remove.
    pub fn check_ours(&self) -> Result<(), StoreError> {
        match self.owner {
            Owner::Store => Ok(()),
            Owner::Shared => Err(StoreError::NotOurs {
                name: self.name.clone(),
                path: self.path.clone(),
            }),
        }
    }

    /// Whether a reference to the hub may mean it.
    fn is_of(&self, reference: &HubReference) -> bool {
        let Place::Hub { snapshot, file, .. } = &self.place else {
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
