//! The registry of all models.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::opening::{self, Opening};
use super::slot::{OpenOutcome, Phase, Slot, SlotId, Timestamp};
use super::{KeepAlive, Lease, ModelStatus, OpenFailure, Opener, unloader, watchdog};
use crate::config::Config;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;

/// All models of the configuration. Clones share them.
#[derive(Clone)]
pub struct Models {
    pub(super) inner: Arc<Inner>,
}

pub struct Inner {
    pub(super) opener: Arc<dyn Opener>,
    state: Mutex<RegistryState>,
    /// Signals that a slot left a phase that requests wait for.
    changes: watch::Sender<()>,
    /// Wakes the unloader.
    pub(super) wake: Arc<Notify>,
    unloader: Once,
    /// Held while files are inspected.
    inspecting: tokio::sync::Mutex<()>,
}

pub struct RegistryState {
    /// The budget of all models, in bytes.
    pub memory: Option<u64>,
    /// The models of the configuration in order, then removed ones.
    pub slots: Vec<Slot>,
    pub next: SlotId,
    /// The server is stopping.
    pub closing: bool,
}

/// The next step towards a lease.
enum LeaseStep {
    Leased(Lease),
    AwaitOpening(OpenOutcome),
    /// Wait for the model to be closed, then retry.
    AwaitClosing,
}

impl Models {
    pub fn new(config: &Config, opener: Arc<dyn Opener>) -> Self {
        let models = Self {
            inner: Arc::new(Inner {
                opener,
                state: Mutex::new(RegistryState {
                    memory: None,
                    slots: Vec::new(),
                    next: 0,
                    closing: false,
                }),
                changes: watch::Sender::new(()),
                wake: Arc::default(),
                unloader: Once::new(),
                inspecting: tokio::sync::Mutex::default(),
            }),
        };
        models.reconfigure(config);
        models
    }

    /// Leases a model by name or alias, and loads it if necessary. It stays loaded while the lease is
    /// held. Dropping the future does not stop the loading.
    pub async fn lease(&self, name: &str) -> Result<Lease, ApiError> {
        loop {
            let mut changes = self.inner.changes();
            match self.inner.try_lease(name)? {
                LeaseStep::Leased(lease) => return Ok(lease),
                LeaseStep::AwaitOpening(outcome) => return opened(outcome).await,
                LeaseStep::AwaitClosing => _ = changes.changed().await,
            }
        }
    }

    /// Resolves a name or alias to the configured name.
    pub fn resolve_name(&self, name: &str) -> Result<String, ApiError> {
        let mut state = self.inner.lock();
        state.find(name).map(|slot| slot.model.name.clone())
    }

    /// The status of every model, without inspecting files.
    pub fn status(&self) -> Vec<ModelStatus> {
        let state = self.inner.lock();
        state.served().map(Slot::status).collect()
    }

    /// The status of every model; inspects their files first.
    pub async fn list(&self) -> Vec<ModelStatus> {
        self.inner.inspect(|slot| !slot.retired).await;
        self.status()
    }

    /// The status of a model; inspects its files first.
    pub async fn show(&self, name: &str) -> Result<ModelStatus, ApiError> {
        let id = self.inner.lock().find(name)?.id;
        self.inner.inspect(|slot| slot.id == id).await;
        self.inner.lock().find(name).map(|slot| slot.status())
    }

    /// Models that are to be preloaded and were not loaded yet.
    pub fn pending(&self) -> Vec<ModelStatus> {
        let state = self.inner.lock();
        let pending = |slot: &&Slot| slot.model.preload && !slot.was_open;
        state.served().filter(pending).map(Slot::status).collect()
    }

    /// Loads pending models one after the other, in the background.
    pub fn preload(&self) {
        let models = self.clone();
        tokio::spawn(async move {
            for pending in models.pending() {
                // The log and the model's state have the error.
                let _ = models.lease(&pending.name).await;
            }
        });
    }

    /// Sets how long the model stays loaded while idle, until the next call or until it is unloaded;
    /// `None` for the configuration's value.
    pub fn keep_alive(
        &self,
        name: &str,
        keep: impl Into<Option<KeepAlive>>,
    ) -> Result<(), ApiError> {
        self.inner.lock().find(name)?.keep_alive = keep.into();
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Loads the model, even after a failure or if it was drained.
    pub async fn load(&self, name: &str) -> Result<Lease, ApiError> {
        let name = {
            let mut state = self.inner.lock();
            let slot = state.find(name)?;
            slot.drained = false;
            if let Phase::Failed { .. } = slot.phase {
                slot.phase = Phase::Unloaded;
            }
            slot.model.name.clone()
        };
        self.lease(&name).await
    }

    /// Closes the model once it is idle, and returns when it is closed. Requests meanwhile wait, then
    /// load it again.
    pub async fn unload(&self, name: &str) -> Result<(), ApiError> {
        self.close_model(name, false).await
    }

    /// Like [`Self::unload`], but refuses requests until the model is [loaded](Self::load).
    pub async fn drain(&self, name: &str) -> Result<(), ApiError> {
        self.close_model(name, true).await
    }

    async fn close_model(&self, name: &str, drain: bool) -> Result<(), ApiError> {
        let (id, before) = {
            let mut state = self.inner.lock();
            let slot = state.find(name)?;
            slot.drained |= drain;
            (slot.id, slot.closings)
        };
        loop {
            let mut changes = self.inner.changes();
            if self.inner.close_slot(id, before) {
                return Ok(());
            }
            let _ = changes.changed().await;
        }
    }

    /// Clears the model's prefix cache. Returns whether the model was loaded.
    pub fn clear_cache(&self, name: &str) -> Result<bool, ApiError> {
        let mut state = self.inner.lock();
        let loaded = state.find(name)?.loaded();
        loaded.inspect(|loaded| loaded.engine().clear_cache());
        Ok(loaded.is_some())
    }

    /// Whether an engine that is ending may still store cached prefixes on disk.
    pub fn are_storing(&self) -> bool {
        let state = self.inner.lock();
        let stores = |slot: &Slot| {
            matches!(slot.phase, Phase::Closing { .. }) && slot.model.kv_disk != Some(0)
        };
        state.slots.iter().any(stores)
    }

    /// Refuses new leases, and returns when every model is closed.
    pub async fn close(&self) {
        self.inner.lock().closing = true;
        loop {
            let mut changes = self.inner.changes();
            if self.inner.close_all() {
                return;
            }
            let _ = changes.changed().await;
        }
    }
}

/// Waits for an opening.
async fn opened(mut outcome: OpenOutcome) -> Result<Lease, ApiError> {
    let opened = outcome.wait_for(Option::is_some).await;
    let opened = opened.ok().and_then(|opened| opened.clone());
    opened.unwrap_or_else(|| Err(ApiError::internal(&"an opening ended without a result")))
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn changed(&self) {
        self.changes.send_replace(());
    }

    fn try_lease(self: &Arc<Self>, name: &str) -> Result<LeaseStep, ApiError> {
        let mut state = self.lock();
        if state.closing {
            return Err(stopping());
        }
        let slot = state.find(name)?;
        if slot.drained {
            return Err(drained(&slot.model.name));
        }
        match &slot.phase {
            Phase::Ready(loaded) => match loaded.engine().check() {
                Ok(()) => {
                    let lease = Lease::counted(self, slot.id, Arc::clone(loaded));
                    slot.leases += 1;
                    slot.last_used = Some(Timestamp::now());
                    Ok(LeaseStep::Leased(lease))
                }
                Err(error) => {
                    tracing::error!(model = slot.model.name, "opening it again: {error}");
                    slot.drain();
                    self.wake.notify_one();
                    Ok(LeaseStep::AwaitClosing)
                }
            },
            Phase::Opening { outcome, .. } => Ok(LeaseStep::AwaitOpening(outcome.clone())),
            Phase::Draining(_) | Phase::Closing { .. } => Ok(LeaseStep::AwaitClosing),
            Phase::Failed { error, until, .. } if Instant::now() < *until => Err(ApiError {
                retry_after: Some(until.duration_since(Instant::now())),
                ..error.clone()
            }),
            Phase::Failed { .. } | Phase::Unloaded => Ok(LeaseStep::AwaitOpening(self.open(slot))),
        }
    }

    fn open(self: &Arc<Self>, slot: &mut Slot) -> OpenOutcome {
        let (report, outcome) = watch::channel(None);
        slot.phase = Phase::Opening {
            since: SystemTime::now(),
            reserved: 0,
            outcome: outcome.clone(),
        };
        let opening = Opening {
            slot: slot.id,
            version: slot.version,
            model: Arc::clone(&slot.model),
        };
        tokio::spawn(opening::run(Arc::clone(self), opening, report));
        // The first place that surely runs within a runtime.
        self.unloader.call_once(|| {
            let unloader = unloader::run(Arc::downgrade(self), Arc::clone(&self.wake));
            tokio::spawn(unloader);
            tokio::spawn(watchdog::run(Arc::downgrade(self)));
        });
        outcome
    }

    /// Counts another lease of a model in use.
    pub(super) fn count_lease(&self, id: SlotId) {
        if let Some(slot) = self.lock().slot(id) {
            slot.leases += 1;
        }
    }

    pub(super) fn release(&self, id: SlotId) {
        let mut state = self.lock();
        let Some(slot) = state.slot(id) else { return };
        slot.leases -= 1;
        slot.last_used = Some(Timestamp::now());
        let draining = matches!(slot.phase, Phase::Draining(_));
        if slot.is_idle() && (draining || slot.idle_timeout().is_some()) {
            self.wake.notify_one();
        }
    }

    /// Starts to close a slot. Returns whether it has been closed since it had `before` closings.
    fn close_slot(&self, id: SlotId, before: u64) -> bool {
        let mut state = self.lock();
        let Some(slot) = state.slot(id) else {
            return true;
        };
        if slot.closings != before {
            return true;
        }
        match slot.phase {
            Phase::Failed { .. } => slot.phase = Phase::Unloaded,
            Phase::Ready(_) => {
                slot.drain();
                self.wake.notify_one();
            }
            Phase::Unloaded
            | Phase::Opening { .. }
            | Phase::Draining(_)
            | Phase::Closing { .. } => {}
        }
        matches!(slot.phase, Phase::Unloaded)
    }

    /// Starts to close every slot. Returns whether all are closed.
    fn close_all(&self) -> bool {
        let mut state = self.lock();
        state.slots.iter_mut().for_each(Slot::drain);
        self.wake.notify_one();
        let open = |slot: &Slot| slot.resident().is_some();
        !state.slots.iter().any(open)
    }

    /// Inspects the files of models that need it, among those that `filter` selects.
    pub(super) async fn inspect(self: &Arc<Self>, filter: impl Fn(&Slot) -> bool) {
        let _exclusive = self.inspecting.lock().await;
        let pending: Vec<_> = {
            let state = self.lock();
            let pending = state.slots.iter().filter(|slot| slot.needs_inspection());
            let pending = pending.filter(|slot| filter(slot));
            pending
                .map(|slot| (slot.id, slot.version, Arc::clone(&slot.model)))
                .collect()
        };
        for (id, version, model) in pending {
            let opener = Arc::clone(&self.opener);
            let planned = tokio::task::spawn_blocking(move || opener.plan(&model)).await;
            let planned = planned.unwrap_or_else(|error| Err(OpenFailure::from(error)));
            if let Some(slot) = self.lock().slot(id)
                && slot.version == version
            {
                slot.set_inspection(planned);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl RegistryState {
    pub fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    /// The models of the configuration, in order.
    pub fn served(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| !slot.retired)
    }

    /// A name takes precedence over an alias, and that over a pattern.
    pub fn find(&mut self, name: &str) -> Result<&mut Slot, ApiError> {
        let named = self.slots.iter().position(|slot| slot.has_name(name));
        let aliased = || self.slots.iter().position(|slot| slot.has_alias(name));
        let matched = || self.slots.iter().position(|slot| slot.has_pattern(name));
        match named.or_else(aliased).or_else(matched) {
            Some(index) => Ok(&mut self.slots[index]),
            None => Err(model_not_found(name)),
        }
    }

    /// Removes retired slots whose models are closed.
    pub fn remove_retired(&mut self) {
        let open = |slot: &Slot| slot.resident().is_some();
        self.slots.retain(|slot| !slot.retired || open(slot));
    }
}

/// Does not list other models, which the caller may not be allowed to see.
pub fn model_not_found(name: &str) -> ApiError {
    let message = format!("Model `{name}` not found.");
    let error = ApiError::new(ErrorKind::NotFound, message).param(Field::Model);
    error.code("model_not_found")
}

pub fn stopping() -> ApiError {
    ApiError::overloaded("the server is stopping")
}

fn drained(model: &str) -> ApiError {
    let message = format!("Model `{model}` was taken out of service by an operator.");
    ApiError::overloaded(message).code("model_drained")
}
