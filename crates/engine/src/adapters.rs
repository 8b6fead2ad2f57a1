//! Adapters of the engine's session: loaded and unloaded on its thread, between steps.

use std::sync::{Arc, mpsc};

use loquat_session::{AdapterId, AdapterWeights, AppliedAdapter, SessionError};

use crate::EngineError;
use crate::sequence::{Sequence, SequenceEnd};
use crate::worker::Worker;

/// What happens to requests that use an adapter which is to be unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadMode {
    /// They finish. Requests that come later are refused.
    Wait,
    /// They fail.
    Cancel,
}

/// Work for the engine's thread, and where it answers.
pub(crate) enum AdapterCommand {
    Load {
        weights: Arc<AdapterWeights>,
        reply: mpsc::Sender<Result<AdapterId, SessionError>>,
    },
    Unload {
        id: AdapterId,
        mode: UnloadMode,
        reply: mpsc::Sender<Result<(), SessionError>>,
    },
}

/// An adapter that is unloaded once no request uses it.
pub(crate) struct Unloading {
    id: AdapterId,
    reply: mpsc::Sender<Result<(), SessionError>>,
}

/// The prefix cache keeps prefixes of different scopes and adapters apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub name: Option<Arc<str>>,
    /// Each adapter and the bits of its scale, in the order of their ids.
    adapters: Arc<[(AdapterId, u32)]>,
}

impl Scope {
    pub fn new(name: Option<String>, adapters: &[AppliedAdapter]) -> Self {
        let mut adapters: Vec<(AdapterId, u32)> = adapters
            .iter()
            .filter(|adapter| adapter.scale != 0.0)
            .map(|adapter| (adapter.id, adapter.scale.to_bits()))
            .collect();
        adapters.sort_unstable();
        Self {
            name: name.map(Arc::from),
            adapters: adapters.into(),
        }
    }

    /// Each adapter and the bits of its scale.
    pub fn adapters(&self) -> &[(AdapterId, u32)] {
        &self.adapters
    }

    /// Whether its sequences have the adapter.
    pub fn has(&self, id: AdapterId) -> bool {
        self.adapters.iter().any(|(own, _)| *own == id)
    }
}

impl Worker {
    pub(super) fn handle_adapter(&mut self, command: AdapterCommand) {
        match command {
            AdapterCommand::Load { weights, reply } => {
                let loaded = self.session.load_adapter(&weights);
                if let (Ok(id), Some(disk)) = (&loaded, &mut self.disk) {
                    disk.add_adapter(*id, weights.fingerprint());
                }
                self.publish();
                // A caller that no longer waits could never unload it.
                if let Err(mpsc::SendError(Ok(id))) = reply.send(loaded) {
                    let _ = self.session.unload_adapter(id);
                    self.publish();
                }
            }
            AdapterCommand::Unload { id, mode, reply } => {
                if mode == UnloadMode::Cancel {
                    self.fail_users(id);
                }
                self.unloading.push(Unloading { id, reply });
                self.finish_unloads();
            }
        }
    }

    /// Refuses a request for an adapter that is being unloaded.
    pub(super) fn check_adapters(&self, sequence: &mut Sequence) {
        let mut unloading = self.unloading.iter();
        if let Some(gone) = unloading.find(|unloading| sequence.scope.has(unloading.id)) {
            let error = SessionError::UnknownAdapter(gone.id);
            sequence.end(SequenceEnd::Failed(error.into()));
        }
    }

    fn fail_users(&mut self, id: AdapterId) {
        let now = self.time.now();
        let failed = || {
            let error = SessionError::UnknownAdapter(id);
            SequenceEnd::Failed(EngineError::from(error))
        };
        for running in &mut self.running {
            if running.sequence.scope.has(id) {
                running.sequence.end(failed());
            }
        }
        let queued = self.queue.remove_if(|sequence| {
            let uses = sequence.scope.has(id);
            if uses {
                sequence.end(failed());
            }
            uses
        });
        let ended = self.retire();
        self.conclude(ended, now);
        self.conclude(queued, now);
    }

    /// Unloads the adapters that no request uses any more.
    pub(super) fn finish_unloads(&mut self) {
        if self.unloading.is_empty() {
            return;
        }
        self.drop_loads_without_requests();
        let mut index = 0;
        while index < self.unloading.len() {
            let id = self.unloading[index].id;
            let running = self.running.iter().map(|running| &running.sequence);
            if running
                .chain(self.queue.iter())
                .any(|used| used.scope.has(id))
            {
                index += 1;
                continue;
            }
            let Unloading { reply, .. } = self.unloading.remove(index);
            self.cache.forget_adapter(&mut *self.session, id);
            let unloaded = self.session.unload_adapter(id);
            self.publish();
            // Fails if the caller no longer waits.
            let _ = reply.send(unloaded);
        }
    }
}
