//! What every request can reach.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use crate::auth::Keys;
use crate::caller::Caller;
use crate::config::Config;
use crate::error::ApiError;
use crate::http::Traffic;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::models::{Lease, Models, Opener};
use crate::openai::Responses;
use crate::reload::Reloads;

/// Handlers get it as `State<Arc<App>>`.
pub struct App {
    /// As it is in force now; a reload puts another in its place.
    config: RwLock<Arc<Config>>,
    pub models: Models,
    pub keys: Keys,
    pub metrics: Metrics,
    pub in_flight: InFlight,
    pub traffic: Traffic,
    /// What `/v1/responses` keeps for later turns.
    pub responses: Responses,
    pub started: SystemTime,
    pub(crate) reloading: Reloads,
}

impl App {
    pub fn new(config: Config, opener: Arc<dyn Opener>) -> Arc<Self> {
        let metrics = Metrics::new();
        let config = Arc::new(config);
        Arc::new(Self {
            models: Models::new(&config, opener),
            keys: Keys::new(&config.keys),
            responses: Responses::default(),
            in_flight: InFlight::default(),
            traffic: Traffic::default(),
            config: RwLock::new(config),
            metrics,
            started: SystemTime::now(),
            reloading: Reloads::default(),
        })
    }

    pub fn config(&self) -> Arc<Config> {
        let config = self.config.read();
        Arc::clone(&config.unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it was told to stop: it takes no new work.
    pub fn is_stopping(&self) -> bool {
        self.traffic.is_stopping()
    }

    /// The model of that name or alias, for a caller who may use it.
    pub async fn lease(&self, caller: &Caller, name: &str) -> Result<Lease, ApiError> {
        let id = self.models.name_of(name)?;
        if let Some(key) = &caller.key {
            key.may_use(&id)?;
        }
        // A request may use several; the log names the first.
        caller.notes.model.get_or_init(|| id.clone());
        self.models.lease(&id).await
    }

    pub(crate) fn set_config(&self, config: Config) {
        let current = self.config.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}
