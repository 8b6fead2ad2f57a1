//! Where the result goes: written beside its place and moved there when it is whole.

use std::path::{Path, PathBuf};

use loquat_weights::gguf::Gguf;
use tempfile::{TempDir, TempPath};

use crate::ConvertError;
use crate::source::{BESIDE, CONFIG, Source};

/// What a result is to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    File,
    Folder,
}

/// A place that may be taken.
pub(crate) struct Site<'a> {
    pub target: &'a Path,
    pub shape: Shape,
    /// Replace a model that is there.
    pub force: bool,
}

/// A place with a folder beside it to work in, which goes when this is dropped.
pub(crate) struct Place<'a> {
    site: Site<'a>,
    work: TempDir,
    /// Dropped after the work folder, which stands in the last of them.
    _parents: Parents,
}

const WORK: &str = ".loquat-convert-";
const WHOLE: &str = "whole";
const REPLACED: &str = "replaced";
/// What people and the hub put beside a checkpoint; only a folder of nothing else is replaced.
const ABOUT: &[&str] = &[
    "README.md",
    "LICENSE",
    ".gitattributes",
    "model.safetensors.index.json",
];

impl<'a> Site<'a> {
    /// Refuses what is there already, unless `force` is said and it is a model of the same shape
    /// that is not the source.
    pub fn check(&self, source: &Source) -> Result<(), ConvertError> {
        self.check_shape()?;
        let target = self.target.canonicalize();
        let mut read = source.files().filter_map(|path| path.canonicalize().ok());
        if target.is_ok_and(|target| read.any(|path| path.starts_with(&target))) {
            return Err(ConvertError::OntoItself {
                path: self.target.to_owned(),
            });
        }
        self.check_free()
    }

    fn check_shape(&self) -> Result<(), ConvertError> {
        let named = self.target.as_os_str().to_string_lossy();
        let is_folder = self.target.is_dir() || named.ends_with(std::path::is_separator);
        let fits = match self.shape {
            Shape::File => !is_folder,
            Shape::Folder => !self.target.is_file(),
        };
        if fits {
            Ok(())
        } else {
            Err(ConvertError::WrongShape {
                path: self.target.to_owned(),
                wanted: match self.shape {
                    Shape::File => "file",
                    Shape::Folder => "folder",
                },
            })
        }
    }

    fn check_free(&self) -> Result<(), ConvertError> {
        let path = || self.target.to_owned();
        if !self.is_taken() {
            return Ok(());
        }
        if !self.force {
            return Err(ConvertError::Exists { path: path() });
        }
        let is_model = match self.shape {
            Shape::File => Gguf::is_at(self.target),
            Shape::Folder => is_checkpoint(self.target),
        };
        if is_model {
            Ok(())
        } else {
            Err(ConvertError::NotReplaceable { path: path() })
        }
    }

    /// A link that leads nowhere takes its place too.
    fn is_taken(&self) -> bool {
        self.target.symlink_metadata().is_ok()
    }

    /// Makes the folders that lead there. What the check found out may have changed since.
    pub fn open(self) -> Result<Place<'a>, ConvertError> {
        self.check_free()?;
        let parent = self.target.parent().filter(|path| *path != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let failed = ConvertError::writing(self.target);
        let parents = Parents::make(parent).map_err(&failed)?;
        let work = tempfile::Builder::new().prefix(WORK).tempdir_in(parent);
        Ok(Place {
            work: work.map_err(&failed)?,
            site: self,
            _parents: parents,
        })
    }
}

/// Whether a folder holds a checkpoint and nothing that a checkpoint does not have.
fn is_checkpoint(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    let mut weights = false;
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_weights = name.ends_with(".safetensors");
        let known = name == CONFIG || BESIDE.iter().chain(ABOUT).any(|known| *known == name);
        if !entry.path().is_file() || !(is_weights || known) {
            return false;
        }
        weights |= is_weights;
    }
    weights && folder.join(CONFIG).is_file()
}

impl Place<'_> {
    /// Where to write: nothing is there yet.
    pub fn whole(&self) -> PathBuf {
        self.work.path().join(WHOLE)
    }

    /// Refuses where the disk has not `needed` bytes left.
    pub fn has_room(&self, needed: u64) -> Result<(), ConvertError> {
        // A disk that does not say is found out when it is full.
        match fs4::available_space(self.work.path()) {
            Ok(free) if free < needed => Err(ConvertError::NoSpace {
                path: self.site.target.to_owned(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// Moves what was written to its place, which somebody may have taken meanwhile.
    pub fn settle(self) -> Result<(), ConvertError> {
        self.site.check_shape()?;
        self.site.check_free()?;
        let (whole, target) = (self.whole(), self.site.target);
        let failed = ConvertError::writing(target);
        match self.site.shape {
            Shape::File if self.site.force => std::fs::rename(whole, target).map_err(failed),
            Shape::File => {
                let whole = TempPath::try_from_path(whole).map_err(&failed)?;
                let moved = whole.persist_noclobber(target);
                moved.map_err(|error| failed(error.error))
            }
            Shape::Folder if self.site.is_taken() => self.exchange(),
            // Refused by the system where the folder is there and not empty.
            Shape::Folder => std::fs::rename(whole, target).map_err(failed),
        }
    }

    /// Puts the new folder where the old one is, or leaves the old one there.
    fn exchange(self) -> Result<(), ConvertError> {
        let (target, replaced) = (self.site.target, self.work.path().join(REPLACED));
        let failed = ConvertError::writing(target);
        std::fs::rename(target, &replaced).map_err(&failed)?;
        let Err(error) = std::fs::rename(self.whole(), target) else {
            return Ok(());
        };
        if std::fs::rename(&replaced, target).is_err() {
            // Better a folder too many than a model too few.
            let _ = self.work.keep();
        }
        Err(failed(error))
    }
}

/// Folders that were made on the way, the outermost first; those that stay empty go again.
struct Parents(Vec<PathBuf>);

impl Parents {
    fn make(folder: &Path) -> std::io::Result<Self> {
        let missing = folder.ancestors().take_while(|path| {
            let here = *path == Path::new("");
            !here && !path.exists()
        });
        let mut made: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        made.reverse();
        let parents = Self(made);
        std::fs::create_dir_all(folder)?;
        Ok(parents)
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            // Fails, as it should, where something is in it.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn site(target: &Path, shape: Shape, force: bool) -> Site<'_> {
        Site {
            target,
            shape,
            force,
        }
    }

    fn checkpoint(folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(CONFIG), "old").unwrap();
        fs::write(folder.join("model.safetensors"), "").unwrap();
    }

    #[test]
    fn only_a_folder_of_a_checkpoint_s_files_is_one() {
        let table: &[(&[&str], bool)] = &[
            (&["config.json", "model.safetensors"], true),
            (
                &[
                    "config.json",
                    "model-00001-of-00002.safetensors",
                    "README.md",
                ],
                true,
            ),
            (&["config.json"], false),
            (&["model.safetensors"], false),
            (&["config.json", "model.safetensors", "diary.txt"], false),
            (
                &["config.json", "model.safetensors", "contexts/meta"],
                false,
            ),
        ];
        for (files, expected) in table {
            let folder = tempfile::tempdir().unwrap();
            for file in *files {
                let path = folder.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            assert_eq!(is_checkpoint(folder.path()), *expected, "{files:?}");
        }
    }

    #[test]
    fn what_appears_meanwhile_stays() {
        for force in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("model.gguf");
            let place = site(&file, Shape::File, force).open().unwrap();
            fs::write(place.whole(), "GGUF").unwrap();
            fs::write(&file, "a letter").unwrap();
            assert!(place.settle().is_err(), "{force}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "a letter");

            let out = folder.path().join("out");
            let place = site(&out, Shape::Folder, force).open().unwrap();
            fs::create_dir(place.whole()).unwrap();
            fs::create_dir(&out).unwrap();
            fs::write(out.join("letter"), "").unwrap();
            assert!(place.settle().is_err(), "{force}");
            assert!(out.join("letter").is_file());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn the_old_model_is_back_where_the_new_one_cannot_be_moved() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        checkpoint(&out);
        // Nothing was written, so there is nothing to move.
        let place = site(&out, Shape::Folder, true).open().unwrap();
        assert!(place.settle().is_err());
        assert_eq!(fs::read_to_string(out.join(CONFIG)).unwrap(), "old");
    }

    #[test]
    fn folders_on_the_way_stay_only_with_a_result_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/model.gguf");
        drop(site(&file, Shape::File, false).open().unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let place = site(&file, Shape::File, false).open().unwrap();
        fs::write(place.whole(), "GGUF").unwrap();
        place.settle().unwrap();
        assert!(file.is_file());
    }
}
