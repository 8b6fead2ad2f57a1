//! Sequences that are imported whole.

use super::{RowGrant, SequenceHeader, SequenceStorage, Sequences};
use crate::{SequenceId, SessionError};

impl<S: SequenceStorage> Sequences<S> {
    /// Makes a sequence with an export's header, whose pages and state `write` fills.
    pub fn import<E: From<SessionError>>(
        &mut self,
        header: SequenceHeader,
        write: impl FnOnce(&mut Self, &RowGrant) -> Result<(), E>,
    ) -> Result<SequenceId, E> {
        let SequenceHeader {
            len,
            layout,
            adapters,
        } = header;
        let adapters = self.adapters.imported(&adapters)?;
        let id = self.create(&adapters)?;
        if len == 0 {
            return Ok(id);
        }
        self.skip_pages(id, len);
        let imported = self.grant(id, len, None).map_err(E::from);
        let imported = imported.and_then(|grant| match write(self, &grant) {
            Ok(()) => {
                self.commit(grant);
                if let Some(sequence) = self.alive.get_mut(&id) {
                    sequence.layout = layout;
                }
                Ok(id)
            }
            Err(error) => {
                self.roll_back(grant);
                Err(error)
            }
        });
        if imported.is_err() {
            self.release(id)?;
        }
        imported
    }

    /// Lets an empty sequence of a later length `len` begin with the pages that it then reaches.
    fn skip_pages(&mut self, id: SequenceId, len: usize) {
        let granularity = self.pages.granularity();
        let Some(sequence) = self.alive.get_mut(&id) else {
            return;
        };
        for (held, group) in sequence.pages.iter_mut().zip(self.pages.groups().iter()) {
            held.first = group.first_page(len, granularity);
        }
    }
}
