//! All models, and the doors to them.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::opening::{self, Opening};
use super::slot::{Moment, Outcome, Phase, Slot, SlotId};
use super::{KeepAlive, Lease, ModelStatus, OpenFailure, Opener, keeper};
use crate::config::Config;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;

/// All models of the configuration; cloning shares them.
#[derive(Clone)]
pub struct Models {
    pub(super) inner: Arc<Inner>,
}

pub struct Inner {
    pub(super) opener: Arc<dyn Opener>,
    state: Mutex<State>,
    /// A slot came out of a phase that others wait for the end of.
    changes: watch::Sender<()>,
    /// Wakes the keeper.
    pub(super) wake: Arc<Notify>,
    keeper: Once,
    /// One at a time looks into the files of models.
    looking: tokio::sync::Mutex<()>,
}

pub struct State {
    /// For all models together, in bytes.
    pub memory: Option<u64>,
    /// Those of the configuration in its order, then those that are no longer in it.
    pub slots: Vec<Slot>,
    pub next: SlotId,
    /// The server is stopping.
    pub closing: bool,
}

/// What somebody who wants a model has to do.
enum Asked {
    Have(Lease),
    /// Wait for what comes of it.
    AwaitOpening(Outcome),
    /// Wait for it to be closed, and ask again.
    AwaitClosing,
}

impl Models {
    pub fn new(config: &Config, opener: Arc<dyn Opener>) -> Self {
        let models = Self {
            inner: Arc::new(Inner {
                opener,
                state: Mutex::new(State {
                    memory: None,
                    slots: Vec::new(),
                    next: 0,
                    closing: false,
                }),
                changes: watch::Sender::new(()),
                wake: Arc::default(),
                keeper: Once::new(),
                looking: tokio::sync::Mutex::default(),
            }),
        };
        models.reconfigure(config);
        models
    }

    /// The model of that name or alias, opened if it is not yet. It stays open while the lease is
    /// held. An opening that began goes on when whoever wanted it went away.
    pub async fn lease(&self, name: &str) -> Result<Lease, ApiError> {
        loop {
            let mut changes = self.inner.changes();
            match self.inner.ask(name)? {
                Asked::Have(lease) => return Ok(lease),
                Asked::AwaitOpening(outcome) => return result(outcome).await,
                Asked::AwaitClosing => _ = changes.changed().await,
            }
        }
    }

    /// The configuration's name for what may be an alias.
    pub fn name_of(&self, name: &str) -> Result<String, ApiError> {
        let mut state = self.inner.lock();
        state.find(name).map(|slot| slot.model.name.clone())
    }

    /// Every model as far as it is known by now.
    pub fn status(&self) -> Vec<ModelStatus> {
        let state = self.inner.lock();
        state.served().map(Slot::status).collect()
    }

    /// Every model; those that nobody knows yet are looked at first.
    pub async fn list(&self) -> Vec<ModelStatus> {
        self.inner.look(|slot| !slot.retired).await;
        self.status()
    }

    /// The model of that name or alias; looked at first if nobody knows it yet.
    pub async fn show(&self, name: &str) -> Result<ModelStatus, ApiError> {
        let id = self.inner.lock().find(name)?.id;
        self.inner.look(|slot| slot.id == id).await;
        self.inner.lock().find(name).map(|slot| slot.status())
    }

    /// Models that are to be open from the start, and were not yet.
    pub fn pending(&self) -> Vec<ModelStatus> {
        let state = self.inner.lock();
        let pending = |slot: &&Slot| slot.model.preload && !slot.was_open;
        state.served().filter(pending).map(Slot::status).collect()
    }

    /// Opens those, one after the other, in the background.
    pub fn preload(&self) {
        let models = self.clone();
        tokio::spawn(async move {
            for pending in models.pending() {
                // What went wrong is in the log and in the model's state.
                let _ = models.lease(&pending.name).await;
            }
        });
    }

    /// How long the model stays open without being used, until somebody says otherwise or it is
    /// unloaded; `None` is as long as the configuration says.
    pub fn keep_alive(
        &self,
        name: &str,
        keep: impl Into<Option<KeepAlive>>,
    ) -> Result<(), ApiError> {
        self.inner.lock().find(name)?.keep_alive = keep.into();
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Forgets failures and an operator's veto, and opens the model.
    pub async fn load(&self, name: &str) -> Result<Lease, ApiError> {
        let name = {
            let mut state = self.inner.lock();
            let slot = state.find(name)?;
            slot.parked = false;
            if let Phase::Failed { .. } = slot.phase {
                slot.phase = Phase::Unloaded;
            }
            slot.model.name.clone()
        };
        self.lease(&name).await
    }

    /// Closes the model when nobody uses it any more, and returns when it is closed. Who wants it
    /// meanwhile waits, and has it opened again.
    pub async fn unload(&self, name: &str) -> Result<(), ApiError> {
        self.take_down(name, false).await
    }

    /// As [`Self::unload`]; but who wants it is refused, until it is [loaded](Self::load).
    pub async fn drain(&self, name: &str) -> Result<(), ApiError> {
        self.take_down(name, true).await
    }

    async fn take_down(&self, name: &str, park: bool) -> Result<(), ApiError> {
        let (id, before) = {
            let mut state = self.inner.lock();
            let slot = state.find(name)?;
            slot.parked |= park;
            (slot.id, slot.closings)
        };
        loop {
            let mut changes = self.inner.changes();
            if self.inner.is_down(id, before) {
                return Ok(());
            }
            let _ = changes.changed().await;
        }
    }

    /// Forgets every prefix that the model keeps; whether there was any open model to do so.
    pub fn clear_cache(&self, name: &str) -> Result<bool, ApiError> {
        let mut state = self.inner.lock();
        let loaded = state.find(name)?.loaded();
        loaded.inspect(|loaded| loaded.engine().clear_cache());
        Ok(loaded.is_some())
    }

    /// Gives no more leases, and returns when every model is closed.
    pub async fn close(&self) {
        self.inner.lock().closing = true;
        loop {
            let mut changes = self.inner.changes();
            if self.inner.is_closed() {
                return;
            }
            let _ = changes.changed().await;
        }
    }
}

/// What an opening came to.
async fn result(mut outcome: Outcome) -> Result<Lease, ApiError> {
    let came = outcome.wait_for(Option::is_some).await;
    let came = came.ok().and_then(|came| came.clone());
    came.unwrap_or_else(|| Err(ApiError::internal(&"an opening ended without a word")))
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn changed(&self) {
        self.changes.send_replace(());
    }

    fn ask(self: &Arc<Self>, name: &str) -> Result<Asked, ApiError> {
        let mut state = self.lock();
        if state.closing {
            return Err(stopping());
        }
        let slot = state.find(name)?;
        if slot.parked {
            return Err(drained(&slot.model.name));
        }
        match &slot.phase {
            Phase::Ready(loaded) => match loaded.engine().check() {
                Ok(()) => {
                    let lease = Lease::counted(self, slot.id, Arc::clone(loaded));
                    slot.leases += 1;
                    slot.last_used = Some(Moment::now());
                    Ok(Asked::Have(lease))
                }
                Err(error) => {
                    tracing::error!(model = slot.model.name, "opening it anew: {error}");
                    slot.drain();
                    self.wake.notify_one();
                    Ok(Asked::AwaitClosing)
                }
            },
            Phase::Opening { outcome, .. } => Ok(Asked::AwaitOpening(outcome.clone())),
            Phase::Draining(_) | Phase::Closing { .. } => Ok(Asked::AwaitClosing),
            Phase::Failed { error, until, .. } if Instant::now() < *until => Err(ApiError {
                retry_after: Some(until.duration_since(Instant::now())),
                ..error.clone()
            }),
            Phase::Failed { .. } | Phase::Unloaded => Ok(Asked::AwaitOpening(self.open(slot))),
        }
    }

    fn open(self: &Arc<Self>, slot: &mut Slot) -> Outcome {
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
        // Here at the latest somebody has a runtime to offer.
        self.keeper.call_once(|| {
            let keeper = keeper::keep(Arc::downgrade(self), Arc::clone(&self.wake));
            tokio::spawn(keeper);
        });
        outcome
    }

    /// Another lease of a model that is in use.
    pub(super) fn hold(&self, id: SlotId) {
        if let Some(slot) = self.lock().slot(id) {
            slot.leases += 1;
        }
    }

    pub(super) fn release(&self, id: SlotId) {
        let mut state = self.lock();
        let Some(slot) = state.slot(id) else { return };
        slot.leases -= 1;
        slot.last_used = Some(Moment::now());
        let leaving = matches!(slot.phase, Phase::Draining(_));
        if slot.is_idle() && (leaving || slot.patience().is_some()) {
            self.wake.notify_one();
        }
    }

    /// Whether the slot was closed since it had been so many times before; sees to it that it
    /// will be.
    fn is_down(&self, id: SlotId, before: u64) -> bool {
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

    /// Whether nothing is open any more; sees to it that nothing will be.
    fn is_closed(&self) -> bool {
        let mut state = self.lock();
        state.slots.iter_mut().for_each(Slot::drain);
        self.wake.notify_one();
        let open = |slot: &Slot| slot.resident().is_some();
        !state.slots.iter().any(open)
    }

    /// Looks into the files of models that nobody knows yet, where `which` says so.
    pub(super) async fn look(self: &Arc<Self>, which: impl Fn(&Slot) -> bool) {
        let _alone = self.looking.lock().await;
        let unknown: Vec<_> = {
            let state = self.lock();
            let unknown = state.slots.iter().filter(|slot| slot.is_unknown());
            let unknown = unknown.filter(|slot| which(slot));
            unknown
                .map(|slot| (slot.id, slot.version, Arc::clone(&slot.model)))
                .collect()
        };
        for (id, version, model) in unknown {
            let opener = Arc::clone(&self.opener);
            let planned = tokio::task::spawn_blocking(move || opener.plan(&model)).await;
            let planned =
                planned.unwrap_or_else(|error| Err(OpenFailure::Panicked(error.to_string())));
            if let Some(slot) = self.lock().slot(id)
                && slot.version == version
            {
                slot.learn(planned);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl State {
    pub fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    /// Those of the configuration, in its order.
    pub fn served(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| !slot.retired)
    }

    /// A name counts for more than an alias.
    fn find(&mut self, name: &str) -> Result<&mut Slot, ApiError> {
        let named = self.slots.iter().position(|slot| slot.is_called(name));
        let aliased = || self.slots.iter().position(|slot| slot.has_alias(name));
        match named.or_else(aliased) {
            Some(place) => Ok(&mut self.slots[place]),
            None => Err(model_not_found(name)),
        }
    }

    /// Slots go when their models are closed.
    pub fn forget_retired(&mut self) {
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
    let what = format!("the model `{model}` was taken out of service by an operator");
    ApiError::overloaded(what).code("model_drained")
}
