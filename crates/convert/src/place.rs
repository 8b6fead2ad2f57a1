//! Where the result goes: written beside its place and moved there when it is whole.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::ConvertError;

/// A place for a file or a folder. What stands in the work folder goes when this is dropped.
pub(crate) struct Place {
    work: TempDir,
    target: PathBuf,
}

const WORK: &str = ".loquat-convert-";
const WHOLE: &str = "whole";
const REPLACED: &str = "replaced";

impl Place {
    /// Refuses what is there already, unless `force` is said and it is a model.
    pub fn new(target: &Path, source: &Path, force: bool) -> Result<Self, ConvertError> {
        check(target, source, force)?;
        let parent = target.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let failed = ConvertError::writing(target);
        std::fs::create_dir_all(parent).map_err(&failed)?;
        let work = tempfile::Builder::new().prefix(WORK).tempdir_in(parent);
        Ok(Self {
            work: work.map_err(&failed)?,
            target: target.to_owned(),
        })
    }

    /// Where to write: nothing is there yet.
    pub fn whole(&self) -> PathBuf {
        self.work.path().join(WHOLE)
    }

    /// Refuses where the disk has not `needed` bytes left.
    pub fn has_room(&self, needed: u64) -> Result<(), ConvertError> {
        // A disk that does not say is found out when it is full.
        match fs4::available_space(self.work.path()) {
            Ok(free) if free < needed => Err(ConvertError::NoSpace {
                path: self.target.clone(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// Moves what was written to its place.
    pub fn settle(self) -> Result<(), ConvertError> {
        let failed = ConvertError::writing(&self.target);
        if self.target.is_dir() {
            std::fs::rename(&self.target, self.work.path().join(REPLACED)).map_err(&failed)?;
        }
        std::fs::rename(self.whole(), &self.target).map_err(&failed)
    }
}

fn check(target: &Path, source: &Path, force: bool) -> Result<(), ConvertError> {
    if !target.exists() {
        return Ok(());
    }
    let real = |path: &Path| path.canonicalize().ok();
    let (source_path, target_path) = (real(source), real(target));
    if let (Some(source), Some(target)) = (&source_path, &target_path)
        && source.starts_with(target)
    {
        return Err(ConvertError::OntoItself {
            path: target.to_owned(),
        });
    }
    if !force {
        return Err(ConvertError::Exists {
            path: target.to_owned(),
        });
    }
    let is_model = match target.is_dir() {
        true => target.join("config.json").is_file(),
        false => target.extension().is_some_and(|ending| ending == "gguf"),
    };
    if !is_model {
        return Err(ConvertError::NotReplaceable {
            path: target.to_owned(),
        });
    }
    Ok(())
}
