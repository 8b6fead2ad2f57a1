//! The output path: the result is written next to it and moved there when complete.

use std::path::{Path, PathBuf};

use loquat_weights::gguf::Gguf;
use tempfile::TempPath;

use crate::ConvertError;
use crate::leftovers::WorkFolder;
use crate::source::{COMPANION_FILES, CONFIG, Source};

/// Whether the result is a file or a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    File,
    Folder,
}

/// The requested path.
pub(crate) struct OutputPath<'a> {
    pub target: &'a Path,
    pub shape: Shape,
    /// Replace an existing model.
    pub force: bool,
}

/// An output in progress, with a work folder next to it that is removed on drop.
pub(crate) struct PendingOutput<'a> {
    path: OutputPath<'a>,
    work: WorkFolder,
    /// Dropped after the work folder, which is in the last of them.
    _parents: Parents,
}

const WHOLE: &str = "whole";
/// An old model that is moved back if the new one cannot take its place.
pub(crate) const REPLACED: &str = "replaced";
/// Other files of published checkpoints; a folder with any other file is not replaced.
const HUB_FILES: &[&str] = &[
    "README.md",
    "LICENSE",
    ".gitattributes",
    "model.safetensors.index.json",
];

impl<'a> OutputPath<'a> {
    /// Refuses an existing path, unless `force` is set and it is a model of the same shape and not
    /// the source.
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
                expected: match self.shape {
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

    /// A dangling link counts as existing.
    fn is_taken(&self) -> bool {
        self.target.symlink_metadata().is_ok()
    }

    /// Creates missing parent folders. Checks again, since the path may have changed. The work folder
    /// is recorded in `records`, if it can be.
    pub fn open(self, records: Option<&Path>) -> Result<PendingOutput<'a>, ConvertError> {
        self.check_free()?;
        let parent = self.target.parent().filter(|path| *path != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let failed = ConvertError::writing(self.target);
        let parents = Parents::make(parent).map_err(&failed)?;
        let work = WorkFolder::beside(self.target, records).map_err(&failed)?;
        Ok(PendingOutput {
            work,
            path: self,
            _parents: parents,
        })
    }
}

/// Whether a folder holds a checkpoint and nothing else.
fn is_checkpoint(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    let mut weights = false;
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_weights = name.ends_with(".safetensors");
        let known = name == CONFIG
            || COMPANION_FILES
                .iter()
                .chain(HUB_FILES)
                .any(|known| *known == name);
        if !entry.path().is_file() || !(is_weights || known) {
            return false;
        }
        weights |= is_weights;
    }
    weights && folder.join(CONFIG).is_file()
}

impl PendingOutput<'_> {
    /// The path to write to, which does not exist yet.
    pub fn whole(&self) -> PathBuf {
        self.work.path().join(WHOLE)
    }

    /// Refuses if the disk has less than `needed` bytes left.
    pub fn has_room(&self, needed: u64) -> Result<(), ConvertError> {
        // If the free space is unknown, writing fails when the disk is full.
        match fs4::available_space(self.work.path()) {
            Ok(free) if free < needed => Err(ConvertError::NoSpace {
                path: self.path.target.to_owned(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// Moves the result to its path, unless something else appeared there.
    pub fn commit(self) -> Result<(), ConvertError> {
        self.path.check_shape()?;
        self.path.check_free()?;
        let (whole, target) = (self.whole(), self.path.target);
        let failed = ConvertError::writing(target);
        match self.path.shape {
            Shape::File if self.path.force => std::fs::rename(whole, target).map_err(failed),
            Shape::File => {
                let whole = TempPath::try_from_path(whole).map_err(&failed)?;
                let moved = whole.persist_noclobber(target);
                moved.map_err(|error| failed(error.error))
            }
            Shape::Folder if self.path.is_taken() => self.exchange(),
            // Fails if the folder exists and is not empty.
            Shape::Folder => std::fs::rename(whole, target).map_err(failed),
        }
    }

    /// Replaces the old folder: in one step where the system can, otherwise restoring it on failure.
    fn exchange(self) -> Result<(), ConvertError> {
        let (target, replaced) = (self.path.target, self.work.path().join(REPLACED));
        if swap(&self.whole(), target).is_ok() {
            return Ok(());
        }
        let failed = ConvertError::writing(target);
        std::fs::rename(target, &replaced).map_err(&failed)?;
        let Err(error) = std::fs::rename(self.whole(), target) else {
            return Ok(());
        };
        if std::fs::rename(&replaced, target).is_err() {
            // Keep the work folder, which contains the old model.
            let _ = self.work.keep();
        }
        Err(failed(error))
    }
}

/// Exchanges two folders, so that both paths exist at every moment.
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn swap(one: &Path, other: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn swap(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Created parent folders, outermost first; those that stay empty are removed on drop.
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
            // Fails, as intended, if the folder is not empty.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn output(target: &Path, shape: Shape, force: bool) -> OutputPath<'_> {
        OutputPath {
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
    fn foreign_files_make_a_folder_irreplaceable() {
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
    fn concurrently_created_path_is_kept() {
        for force in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("model.gguf");
            let pending = output(&file, Shape::File, force).open(None).unwrap();
            fs::write(pending.whole(), "GGUF").unwrap();
            fs::write(&file, "a letter").unwrap();
            assert!(pending.commit().is_err(), "{force}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "a letter");

            let out = folder.path().join("out");
            let pending = output(&out, Shape::Folder, force).open(None).unwrap();
            fs::create_dir(pending.whole()).unwrap();
            fs::create_dir(&out).unwrap();
            fs::write(out.join("letter"), "").unwrap();
            assert!(pending.commit().is_err(), "{force}");
            assert!(out.join("letter").is_file());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn failed_move_restores_old_model() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        checkpoint(&out);
        // Nothing was written, so there is nothing to move.
        let pending = output(&out, Shape::Folder, true).open(None).unwrap();
        assert!(pending.commit().is_err());
        assert_eq!(fs::read_to_string(out.join(CONFIG)).unwrap(), "old");
    }

    #[test]
    fn empty_parent_folders_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/model.gguf");
        drop(output(&file, Shape::File, false).open(None).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let pending = output(&file, Shape::File, false).open(None).unwrap();
        fs::write(pending.whole(), "GGUF").unwrap();
        pending.commit().unwrap();
        assert!(file.is_file());
    }
}
