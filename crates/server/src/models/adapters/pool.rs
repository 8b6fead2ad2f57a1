//! The adapters that an engine holds.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loquat_engine::{EngineError, UnloadMode};
use loquat_session::{AdapterId, AppliedAdapter, SessionError};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{Adapter, AdapterError};
use crate::models::Opener;

/// An adapter with its scale.
pub type ScaledAdapter = (Arc<Adapter>, f32);

/// The adapters that a model's engine holds. The least recently used one makes room for another;
/// if all are in use, it takes no further requests, and leaves when those it has are done.
#[derive(Default)]
pub struct AdapterPool {
    state: Mutex<PoolState>,
    /// Held while adapters are loaded: one request after the other gets all that it needs, so that
    /// no two hold a part of it and wait for each other.
    turn: tokio::sync::Mutex<()>,
    /// Signals that an adapter became idle.
    idle: watch::Sender<()>,
}

#[derive(Default)]
struct PoolState {
    residents: Vec<Resident>,
    /// Keys of adapters that requests wait for, once for each.
    awaited: Vec<u64>,
}

/// A loaded adapter.
struct Resident {
    adapter: Arc<Adapter>,
    id: AdapterId,
    users: usize,
    last_used: Instant,
    /// Takes no further requests.
    leaving: bool,
}

/// What an adapter does now.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdapterActivity {
    pub loaded: bool,
    pub users: usize,
    pub awaited: bool,
}

/// An adapter in use: it is not unloaded for another.
pub struct AdapterUse {
    pool: Arc<AdapterPool>,
    key: u64,
    applied: AppliedAdapter,
}

impl AdapterUse {
    pub fn applied(&self) -> AppliedAdapter {
        self.applied
    }
}

impl Drop for AdapterUse {
    fn drop(&mut self) {
        self.pool.release(self.key);
    }
}

/// Counts requests that wait for adapters.
struct Awaiting {
    pool: Arc<AdapterPool>,
    keys: Vec<u64>,
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        for key in &self.keys {
            if let Some(index) = state.awaited.iter().position(|awaited| awaited == key) {
                state.awaited.swap_remove(index);
            }
        }
    }
}

/// Where adapters are loaded from, and into what.
#[derive(Clone)]
pub struct AdapterLoader {
    pub model: loquat::Model,
    pub opener: Arc<dyn Opener>,
}

impl AdapterPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn activity(&self, adapter: &Adapter) -> AdapterActivity {
        let state = self.lock();
        let resident = state.resident(adapter.key);
        AdapterActivity {
            loaded: resident.is_some(),
            users: resident.map_or(0, |resident| resident.users),
            awaited: state.awaited.contains(&adapter.key),
        }
    }

    /// Uses adapters, and loads those that are not loaded. The error has the name of the adapter
    /// that failed. Dropping the future does not stop the loading.
    pub async fn acquire(
        self: &Arc<Self>,
        loader: AdapterLoader,
        wanted: Vec<ScaledAdapter>,
    ) -> Result<Vec<AdapterUse>, (String, AdapterError)> {
        if let Some(uses) = self.use_loaded(&wanted) {
            return Ok(uses);
        }
        let awaiting = self.awaiting(&wanted);
        let pool = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _awaiting = awaiting;
            let _turn = pool.turn.lock().await;
            let mut uses = Vec::new();
            for each in &wanted {
                let used = pool.acquire_one(&loader, each, &wanted).await;
                uses.push(used.map_err(|error| (each.0.name.clone(), error))?);
            }
            Ok(uses)
        });
        let failed = |error| (String::new(), AdapterError::Failed(format!("{error}")));
        task.await.unwrap_or_else(|error| Err(failed(error)))
    }

    /// Uses adapters if all of them are loaded and stay so.
    fn use_loaded(self: &Arc<Self>, wanted: &[ScaledAdapter]) -> Option<Vec<AdapterUse>> {
        let mut state = self.lock();
        let stays = |(adapter, _): &ScaledAdapter| {
            let resident = state.resident(adapter.key);
            resident.is_some_and(|resident| !resident.leaving)
        };
        if !wanted.iter().all(stays) {
            return None;
        }
        wanted
            .iter()
            .map(|(adapter, scale)| self.count(&mut state, adapter.key, *scale))
            .collect()
    }

    fn count(self: &Arc<Self>, state: &mut PoolState, key: u64, scale: f32) -> Option<AdapterUse> {
        let resident = state.resident_mut(key)?;
        resident.users += 1;
        let id = resident.id;
        Some(AdapterUse {
            pool: Arc::clone(self),
            key,
            applied: AppliedAdapter { id, scale },
        })
    }

    fn release(&self, key: u64) {
        if let Some(resident) = self.lock().resident_mut(key) {
            resident.users -= 1;
            resident.last_used = Instant::now();
        }
        self.idle.send_replace(());
    }

    fn awaiting(self: &Arc<Self>, wanted: &[ScaledAdapter]) -> Awaiting {
        let keys: Vec<_> = wanted.iter().map(|(adapter, _)| adapter.key).collect();
        self.lock().awaited.extend(&keys);
        let pool = Arc::clone(self);
        Awaiting { pool, keys }
    }

    /// The caller has the turn.
    async fn acquire_one(
        self: &Arc<Self>,
        loader: &AdapterLoader,
        (adapter, scale): &ScaledAdapter,
        wanted: &[ScaledAdapter],
    ) -> Result<AdapterUse, AdapterError> {
        if adapter.is_removed() {
            return Err(AdapterError::Removed);
        }
        if let Some(used) = self.count(&mut self.lock(), adapter.key, *scale) {
            return Ok(used);
        }
        let id = self.load(loader, adapter, wanted).await?;
        if let Some(used) = self.install(adapter, id, *scale) {
            return Ok(used);
        }
        let model = loader.model.clone();
        blocking(move || model.unload_adapter(id, UnloadMode::Wait).map_err(failed)).await?;
        Err(AdapterError::Removed)
    }

    /// `None` if a request or a reload removed the adapter while it was loading. The caller then
    /// unloads it.
    fn install(
        self: &Arc<Self>,
        adapter: &Arc<Adapter>,
        id: AdapterId,
        scale: f32,
    ) -> Option<AdapterUse> {
        let mut state = self.lock();
        if adapter.is_removed() {
            return None;
        }
        state.residents.push(Resident {
            adapter: Arc::clone(adapter),
            id,
            users: 0,
            last_used: Instant::now(),
            leaving: false,
        });
        self.count(&mut state, adapter.key, scale)
    }

    /// Loads an adapter, and unloads others to make room, but not those that are `wanted` with it.
    async fn load(
        &self,
        loader: &AdapterLoader,
        adapter: &Arc<Adapter>,
        wanted: &[ScaledAdapter],
    ) -> Result<AdapterId, AdapterError> {
        let began = Instant::now();
        let AdapterLoader { model, opener } = loader.clone();
        let source = adapter.config.source.clone();
        let weights = blocking(move || {
            let path: PathBuf = opener.locate_adapter(&source).map_err(failed)?;
            model.read_adapter(&path).map_err(failed)
        });
        let weights = weights.await?;
        loop {
            let (model, weights) = (loader.model.clone(), Arc::clone(&weights));
            let loaded = spawn_blocking(move || model.engine().load_adapter(weights)).await;
            match loaded.map_err(failed)? {
                Ok(id) => {
                    tracing::info!(
                        adapter = adapter.name,
                        seconds = began.elapsed().as_secs_f64(),
                        "adapter loaded"
                    );
                    return Ok(id);
                }
                Err(EngineError::Session(
                    SessionError::TooManyAdapters { .. } | SessionError::AdapterMemory { .. },
                )) => {
                    let leaving = self.choose_leaving(wanted).ok_or(AdapterError::NoRoom)?;
                    self.until_idle(leaving).await;
                    self.unload(&loader.model, leaving, UnloadMode::Wait)
                        .await?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// The adapter that makes room: an idle one if there is one, and the least recently used.
    fn choose_leaving(&self, wanted: &[ScaledAdapter]) -> Option<u64> {
        let mut state = self.lock();
        let is_wanted = |key| wanted.iter().any(|(adapter, _)| adapter.key == key);
        let candidates = state.residents.iter_mut().filter(|resident| {
            let stays = resident.adapter.config.pinned && !resident.adapter.is_removed();
            !stays && !is_wanted(resident.adapter.key)
        });
        let first = candidates.min_by_key(|resident| (resident.users > 0, resident.last_used))?;
        first.leaving = true;
        Some(first.adapter.key)
    }

    /// Returns when no request uses the adapter.
    async fn until_idle(&self, key: u64) {
        let mut idle = self.idle.subscribe();
        let is_used = || {
            let state = self.lock();
            state
                .resident(key)
                .is_some_and(|resident| resident.users > 0)
        };
        while is_used() {
            // The sender is in `self`, so this cannot fail.
            let _ = idle.changed().await;
        }
    }

    /// Unloads an adapter that is [removed](Adapter::remove), when the requests that use it have
    /// ended, or fails those that take longer than `patience`.
    pub async fn retire(
        &self,
        model: &loquat::Model,
        adapter: &Adapter,
        patience: Duration,
    ) -> Result<(), AdapterError> {
        if let Some(resident) = self.lock().resident_mut(adapter.key) {
            resident.leaving = true;
        }
        let waited = tokio::time::timeout(patience, self.until_idle(adapter.key)).await;
        let mode = match waited {
            Ok(()) => UnloadMode::Wait,
            Err(_) => UnloadMode::Cancel,
        };
        self.unload(model, adapter.key, mode).await
    }

    /// Does nothing if it is not loaded.
    async fn unload(
        &self,
        model: &loquat::Model,
        key: u64,
        mode: UnloadMode,
    ) -> Result<(), AdapterError> {
        let resident = {
            let mut state = self.lock();
            let index = state
                .residents
                .iter()
                .position(|own| own.adapter.key == key);
            index.map(|index| state.residents.remove(index))
        };
        let Some(Resident { adapter, id, .. }) = resident else {
            return Ok(());
        };
        let model = model.clone();
        blocking(move || model.unload_adapter(id, mode).map_err(failed)).await?;
        tracing::info!(adapter = adapter.name, "adapter unloaded");
        Ok(())
    }
}

impl PoolState {
    fn resident(&self, key: u64) -> Option<&Resident> {
        self.residents.iter().find(|own| own.adapter.key == key)
    }

    fn resident_mut(&mut self, key: u64) -> Option<&mut Resident> {
        self.residents.iter_mut().find(|own| own.adapter.key == key)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AdapterError> + Send + 'static,
) -> Result<T, AdapterError> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(failed(error)))
}

fn failed(error: impl std::fmt::Display) -> AdapterError {
    AdapterError::Failed(error.to_string())
}
