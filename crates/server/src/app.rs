//! What every request can reach.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use crate::auth::Keys;
use crate::caller::Caller;
use crate::config::Config;
use crate::error::ApiError;
use crate::http::{Bodies, Tls, Traffic};
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::models::{self, Lease, Models, Opener};
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
    pub bodies: Bodies,
    pub tls: Tls,
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
            bodies: Bodies::default(),
            tls: Tls::default(),
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

    /// The configuration's name for what may be an alias. What is not for the caller does not
    /// exist for it.
    pub fn name_for(&self, caller: &Caller, name: &str) -> Result<String, ApiError> {
        let found = self.models.name_of(name);
        let found = found.and_then(|id| {
            if caller.may_see(&id) {
                Ok(id)
            } else {
                Err(models::unknown(name))
            }
        });
        found.map_err(|unknown| ApiError {
            message: format!(
                "{}; served: {}",
                unknown.message,
                self.names_for(caller).join(", ")
            ),
            ..unknown
        })
    }

    /// What the caller may use, by the configuration's names.
    pub fn names_for(&self, caller: &Caller) -> Vec<String> {
        let config = self.config();
        let names = config.models.iter().map(|model| &model.name);
        names.filter(|name| caller.may_see(name)).cloned().collect()
    }

    /// The model of that name or alias, for a caller who may use it.
    pub async fn lease(&self, caller: &Caller, name: &str) -> Result<Lease, ApiError> {
        let id = self.name_for(caller, name)?;
        // A request may use several; the log names the first.
        caller.notes.model.get_or_init(|| id.clone());
        self.models.lease(&id).await
    }

    pub(crate) fn set_config(&self, config: Config) {
        let current = self.config.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}
