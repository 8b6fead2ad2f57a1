//! What every request can reach.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use crate::auth::Keys;
use crate::config::Config;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::models::{Models, Opener};
use crate::openai::Responses;

/// Handlers get it as `State<Arc<App>>`.
pub struct App {
    /// As it is in force now; a reload puts another in its place.
    config: RwLock<Arc<Config>>,
    pub models: Models,
    pub keys: Keys,
    pub metrics: Metrics,
    pub in_flight: InFlight,
    /// What `/v1/responses` keeps for later turns.
    pub responses: Responses,
    pub started: SystemTime,
}

impl App {
    pub fn new(config: Config, opener: Arc<dyn Opener>) -> Arc<Self> {
        let metrics = Metrics::new();
        let config = Arc::new(config);
        Arc::new(Self {
            models: Models::new(&config, opener),
            keys: Keys::new(&config.keys),
            responses: Responses::new(&config.responses),
            in_flight: InFlight::default(),
            config: RwLock::new(config),
            metrics,
            started: SystemTime::now(),
        })
    }

    pub fn config(&self) -> Arc<Config> {
        let config = self.config.read();
        Arc::clone(&config.unwrap_or_else(PoisonError::into_inner))
    }
}
