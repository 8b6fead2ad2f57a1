//! The state that all requests share.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use crate::auth::Keys;
use crate::caller::Caller;
use crate::config::Config;
use crate::error::ApiError;
use crate::http::{Bodies, Tls, Traffic};
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::models::{ChosenModel, Lease, Models, Opener};
use crate::openai::Responses;
use crate::reload::Reloads;
use crate::wire::LoggedFields;

/// Handlers get it as `State<Arc<App>>`.
pub struct App {
    /// The current configuration; a reload replaces it.
    config: RwLock<Arc<Config>>,
    pub models: Models,
    pub keys: Keys,
    pub metrics: Metrics,
    pub in_flight: InFlight,
    pub traffic: Traffic,
    pub bodies: Bodies,
    pub tls: Tls,
    /// Responses that `/v1/responses` stores for later turns.
    pub responses: Responses,
    /// Ignored fields that the log has mentioned.
    pub ignored: LoggedFields,
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
            ignored: LoggedFields::default(),
            started: SystemTime::now(),
            reloading: Reloads::default(),
        })
    }

    pub fn config(&self) -> Arc<Config> {
        let config = self.config.read();
        Arc::clone(&config.unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the server is shutting down and refuses new work.
    pub fn is_stopping(&self) -> bool {
        self.traffic.is_stopping()
    }

    /// The configured name of the model that a name, an alias or an adapter's name means. Models
    /// that the caller may not use are not found.
    pub fn name_for(&self, caller: &Caller, name: &str) -> Result<String, ApiError> {
        self.choose(caller, name).map(|chosen| chosen.model)
    }

    /// The model and adapter that a name means.
    pub fn choose(&self, caller: &Caller, name: &str) -> Result<ChosenModel, ApiError> {
        let chosen = self.models.choose(name, &|model| caller.may_see(model));
        chosen.map_err(|error| {
            // Others list what there is.
            if !error.message.ends_with("not found.") {
                return error;
            }
            let names = self.names_for(caller).join(", ");
            let message = format!("{} Use one of: {names}.", error.message);
            ApiError { message, ..error }
        })
    }

    /// The name by which an adapter is listed for the caller.
    pub fn adapter_id(&self, caller: &Caller, model: &str, adapter: &str) -> String {
        let may_see = |model: &str| caller.may_see(model);
        self.models.adapter_id(model, adapter, &may_see)
    }

    /// The model that serves requests for unknown ones.
    fn only_model(&self, caller: &Caller) -> Option<String> {
        let config = self.config();
        match config.models.as_slice() {
            // An unknown name may be meant for an adapter.
            [only]
                if !config.server.strict_model_names
                    && !only.takes_adapters()
                    && caller.may_see(&only.name) =>
            {
                Some(only.name.clone())
            }
            _ => None,
        }
    }

    /// The models that the caller may use, by their configured names.
    pub fn names_for(&self, caller: &Caller) -> Vec<String> {
        let config = self.config();
        let names = config.models.iter().map(|model| &model.name);
        names.filter(|name| caller.may_see(name)).cloned().collect()
    }

    /// Leases a model by its name or alias, or with an adapter by the adapter's name. If only one model is served, it serves requests for
    /// unknown models too, unless the configuration forbids it.
    pub async fn lease(&self, caller: &Caller, name: &str) -> Result<Lease, ApiError> {
        let chosen = match (self.choose(caller, name), self.only_model(caller)) {
            (Ok(chosen), _) => chosen,
            (Err(_), Some(model)) => {
                caller.notes.substitute_model(&model);
                ChosenModel {
                    model,
                    adapter: None,
                }
            }
            (Err(error), None) => return Err(error),
        };
        // The log names the first model of a request.
        (caller.notes.model).get_or_init(|| chosen.id().to_owned());
        // Adapters in use may leave no room for another until their requests have ended.
        tokio::select! {
            lease = self.models.lease_chosen(&chosen) => lease,
            late = caller.out_of_time() => Err(late),
        }
    }

    pub(crate) fn set_config(&self, config: Config) {
        let current = self.config.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}
