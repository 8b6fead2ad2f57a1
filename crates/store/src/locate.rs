//! From a reference to files on this machine.

use crate::{Located, Progress, Resolved, Store, StoreError, Wanted};

impl Store {
    /// The files of a model, downloaded and verified first where they are not here.
    pub fn locate(
        &self,
        wanted: &Wanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Located, StoreError> {
        match self.resolve(wanted)? {
            Resolved::Local(model) => Ok(Located {
                name: model.path.display().to_string(),
                path: model.path,
            }),
            Resolved::Catalog { entry, form } => Ok(Located {
                path: self.fetch(entry, form, progress)?,
                name: entry.to_string(),
            }),
            Resolved::Hub(reference) => Err(StoreError::NotAModelRepo {
                repo: reference.to_string(),
                why: "the hub is not reached yet".to_owned(),
            }),
        }
    }
}
