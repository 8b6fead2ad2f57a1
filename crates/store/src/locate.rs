//! From a reference to files on this machine.

use crate::fetch::{Fetched, FormWanted};
use crate::obtain::{Ask, HubWanted};
use crate::{Located, NoProgress, Progress, Resolved, Store, StoreError, Wanted};

impl Store {
    /// The files of a model to run, downloaded and verified first where they are not here. Notes
    /// that the model was used.
    pub fn locate(
        &self,
        wanted: &Wanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Located, StoreError> {
        let (located, key) = self.bring(wanted, Ask::IfMissing, progress)?;
        if let Some(key) = key {
            self.stamp_used(&key);
        }
        Ok(located)
    }

    /// The same, not to be run but to be there; asks the hub for what is newer.
    pub fn pull(
        &self,
        wanted: &Wanted<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Located, StoreError> {
        Ok(self.bring(wanted, Ask::Always, progress)?.0)
    }

    /// What [`Store::locate`] would return without the network; `None` where it would download.
    pub fn here(&self, wanted: &Wanted<'_>) -> Result<Option<Located>, StoreError> {
        match self.resolve(wanted)? {
            Resolved::Local(model) => Ok(Some(Located {
                name: model.path.display().to_string(),
                path: model.path,
            })),
            Resolved::Catalog { entry, form } => {
                let ask = Ask::IfMissing;
                let here = self.form_here(FormWanted { entry, form, ask });
                Ok(here.map(|Fetched { path, .. }| Located {
                    path,
                    name: entry.to_string(),
                }))
            }
            Resolved::Hub(reference) => {
                let hub = HubWanted {
                    name: wanted.reference,
                    reference,
                    kind: wanted.kind,
                    sha256: None,
                };
                // Not enough of it is as good as none.
                let here = self.obtain_cached(&hub, &mut NoProgress).ok().flatten();
                Ok(here.map(|obtained| Located {
                    path: obtained.path,
                    name: obtained.reference.to_string(),
                }))
            }
        }
    }

    /// With the model's name among the store's notes, which files of the user's own have not.
    fn bring(
        &self,
        wanted: &Wanted<'_>,
        ask: Ask,
        progress: &mut dyn Progress,
    ) -> Result<(Located, Option<String>), StoreError> {
        match self.resolve(wanted)? {
            Resolved::Local(model) => {
                let located = Located {
                    name: model.path.display().to_string(),
                    path: model.path,
                };
                Ok((located, None))
            }
            Resolved::Catalog { entry, form } => {
                let form = FormWanted { entry, form, ask };
                let Fetched { path, key } = self.fetch_form(form, progress)?;
                let name = entry.to_string();
                Ok((Located { path, name }, Some(key)))
            }
            Resolved::Hub(reference) => {
                let hub = HubWanted {
                    name: wanted.reference,
                    reference,
                    kind: wanted.kind,
                    sha256: None,
                };
                let obtained = self.obtain(&hub, ask, progress)?;
                let located = Located {
                    path: obtained.path,
                    name: obtained.reference.to_string(),
                };
                Ok((located, Some(obtained.key)))
            }
        }
    }
}
