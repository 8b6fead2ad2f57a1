//! Adapters that an operator loads and unloads.

use std::sync::Arc;
use std::time::Duration;

use super::{Adapter, AdapterError};
use crate::config::AdapterConfig;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;
use crate::models::Models;
use crate::models::slot::{Phase, Slot};

/// An adapter to load.
#[derive(Debug)]
pub struct NewAdapter {
    /// The model's configured name.
    pub model: String,
    pub name: String,
    /// A path, or a reference to the hub.
    pub source: String,
    /// Whether it replaces one of its name.
    pub replaces: bool,
}

impl Models {
    /// Loads an adapter, and the model if necessary; then requests can choose it. One that it
    /// replaces serves requests until then, and is unloaded when those have ended, or fails those
    /// that take longer than `patience`.
    pub async fn load_adapter(&self, new: NewAdapter, patience: Duration) -> Result<(), ApiError> {
        let adapter = {
            let mut state = self.inner.lock();
            let slot = state.find(&new.model)?;
            let before = slot.adapters.iter().find(|old| old.name == new.name);
            if before.is_some() && !new.replaces {
                return Err(already_loaded(&new.name));
            }
            // A default scale stays with the number.
            let number = before.map_or(slot.next_adapter, |before| before.number);
            slot.next_adapter = slot.next_adapter.max(number + 1);
            let config = AdapterConfig::new(&new.source);
            Adapter::new(number, &new.name, config, false)
        };
        let lease = self.lease(&new.model).await?;
        let loaded = lease.with_adapters(vec![(Arc::clone(&adapter), 1.0)]).await;
        let lease = loaded.map_err(|(_, error)| not_loaded(&new.name, &error))?;
        let mut state = self.inner.lock();
        let Some(slot) = state.slot(lease.slot()) else {
            return Err(ApiError::internal(&"a lease has no slot"));
        };
        let before = slot.adapters.iter().position(|old| old.name == new.name);
        let retired = match before {
            Some(index) if new.replaces => Some(std::mem::replace(
                &mut slot.adapters[index],
                Arc::clone(&adapter),
            )),
            // Another request was faster.
            Some(_) => Some(Arc::clone(&adapter)),
            None => {
                slot.adapters.push(Arc::clone(&adapter));
                None
            }
        };
        drop(state);
        let Some(retired) = retired else {
            return Ok(());
        };
        retired.remove();
        let is_late = Arc::ptr_eq(&retired, &adapter);
        let (pool, model) = (Arc::clone(lease.pool()), lease.model.clone());
        drop(lease);
        tokio::spawn(async move { pool.retire(&model, &retired, patience).await });
        if is_late {
            return Err(already_loaded(&new.name));
        }
        Ok(())
    }

    /// Unloads an adapter: new requests cannot choose it, and those that use it may end within
    /// `patience`, or fail. Returns when it is unloaded.
    pub async fn unload_adapter(
        &self,
        model: &str,
        name: &str,
        patience: Duration,
    ) -> Result<(), ApiError> {
        let (adapter, loaded) = {
            let mut state = self.inner.lock();
            let slot = state.find(model)?;
            let index = slot.adapters.iter().position(|own| own.name == name);
            let adapter = index.map(|index| slot.adapters.remove(index));
            let adapter = adapter.ok_or_else(|| not_found(name))?;
            adapter.remove();
            slot.forget_defaults();
            // Closing a model unloads its adapters.
            let loaded = match &slot.phase {
                Phase::Ready(loaded) | Phase::Draining(loaded) => Some(loaded),
                _ => None,
            };
            let loaded = loaded.map(|loaded| (Arc::clone(&loaded.adapters), loaded.model.clone()));
            (adapter, loaded)
        };
        let Some((pool, model)) = loaded else {
            return Ok(());
        };
        let retired = pool.retire(&model, &adapter, patience).await;
        retired.map_err(|error| ApiError::internal(&error))
    }

    /// Which models have an adapter of this name.
    pub fn models_with_adapter(&self, name: &str) -> Vec<String> {
        let state = self.inner.lock();
        let has = |slot: &&Slot| slot.adapters.iter().any(|adapter| adapter.name == name);
        let owners = state.served().filter(has);
        owners.map(|slot| slot.model.name.clone()).collect()
    }
}

fn already_loaded(name: &str) -> ApiError {
    let message = format!(
        "The lora adapter '{name}' has already been loaded. If you want to load the adapter in \
         place, set 'load_inplace' to True."
    );
    let error = ApiError::bad_request(message).param(Field::LoraName);
    error.code("adapter_exists")
}

/// The error of an unknown adapter.
pub fn not_found(name: &str) -> ApiError {
    let message = format!("The lora adapter '{name}' cannot be found.");
    let error = ApiError::new(ErrorKind::NotFound, message).param(Field::LoraName);
    error.code("adapter_not_found")
}

/// An operator may see paths.
fn not_loaded(name: &str, error: &AdapterError) -> ApiError {
    let message = format!("The lora adapter '{name}' cannot be loaded: {error}");
    let error = ApiError::bad_request(message).param(Field::LoraPath);
    error.code("adapter_load_failed")
}
