//! Loads a model.

use std::sync::Arc;
use std::time::Duration;

use loquat_grammar::GrammarSource;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::memory_budget::{Admission, admit};
use super::registry::{Inner, stopping};
use super::slot::{Inspection, Phase, RETRY_DELAY, SlotId, Timestamp};
use super::{Lease, Loaded, OpenFailure};
use crate::config::ModelConfig;
use crate::error::{ApiError, ErrorKind};

/// What to open.
pub struct Opening {
    pub slot: SlotId,
    /// The slot's version when the opening began.
    pub version: u64,
    pub model: Arc<ModelConfig>,
}

/// Why a model is not loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("{0}")]
    Failed(#[from] OpenFailure),
    #[error(
        "it needs {need} of memory, and the limit for all models is {budget}: raise `memory`, or \
         lower the model's `context`"
    )]
    TooLarge { need: Bytes, budget: Bytes },
    #[error(
        "it needs {need} of memory, and models in use leave {available} of {budget}: try again \
         when they are idle, or raise `memory`"
    )]
    Busy {
        need: Bytes,
        available: Bytes,
        budget: Bytes,
    },
}

impl LoadError {
    fn to_api_error(&self, model: &str) -> ApiError {
        let failed = |message| ApiError::new(ErrorKind::Internal, message);
        match self {
            Self::Failed(_) => {
                let message =
                    format!("Model `{model}` cannot be loaded; the server's log has the cause.");
                failed(message).code("model_load_failed")
            }
            Self::TooLarge { .. } => {
                failed(format!("Model `{model}` cannot be loaded: {self}")).code("model_too_large")
            }
            Self::Busy { .. } => {
                let message = format!("Model `{model}` does not fit now: {self}");
                ApiError::overloaded(message).code("model_no_room")
            }
        }
    }

    /// Whether an immediate retry would fail the same way.
    fn is_persistent(&self) -> bool {
        match self {
            Self::Failed(_) | Self::TooLarge { .. } => true,
            Self::Busy { .. } => false,
        }
    }
}

/// An amount of memory for display.
#[derive(Debug, Clone, Copy)]
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Opens the model, even if nobody waits any more, and reports the result.
pub async fn run(
    inner: Arc<Inner>,
    opening: Opening,
    report: watch::Sender<Option<Result<Lease, ApiError>>>,
) {
    let began = Instant::now();
    let outcome = match open(&inner, &opening).await {
        Ok(loaded) => inner.install(&opening, loaded, began.elapsed()),
        Err(error) => Err(inner.fail(&opening, &error)),
    };
    if let Ok(lease) = &outcome {
        load_pinned(&inner, lease).await;
        warm_up(lease);
    }
    report.send_replace(Some(outcome));
    inner.changed();
}

async fn open(inner: &Arc<Inner>, opening: &Opening) -> Result<Loaded, LoadError> {
    reserve_memory(inner, opening).await?;
    let opener = Arc::clone(&inner.opener);
    let model = Arc::clone(&opening.model);
    let opened = spawn_blocking(move || Loaded::new(&model, opener.open(&model)?)).await;
    Ok(opened.map_err(OpenFailure::from)??)
}

/// Reserves memory if there is a limit, and closes idle models for it.
async fn reserve_memory(inner: &Arc<Inner>, opening: &Opening) -> Result<(), LoadError> {
    if inner.lock().memory.is_none() {
        return Ok(());
    }
    inner.inspect(|slot| slot.id == opening.slot).await;
    loop {
        let mut changes = inner.changes();
        if inner.reserve(opening.slot)? {
            return Ok(());
        }
        // `inner` holds the sender, so this cannot fail.
        let _ = changes.changed().await;
    }
}

/// Loads the pinned adapters. The log has the errors; requests that choose the adapter get them too.
async fn load_pinned(inner: &Arc<Inner>, lease: &Lease) {
    let pinned = {
        let mut state = inner.lock();
        let slot = state.slot(lease.slot());
        slot.map(|slot| slot.pinned_adapters()).unwrap_or_default()
    };
    for adapter in pinned {
        let name = adapter.name.clone();
        let loaded = lease.clone().with_adapters(vec![(adapter, 1.0)]).await;
        if let Err((_, error)) = loaded {
            tracing::error!(adapter = name, "cannot be loaded: {error}");
        }
    }
}

/// Compiles a grammar. The first one indexes the vocabulary, which takes a second if it is large,
/// and the first request should not wait for it.
fn warm_up(lease: &Lease) {
    let grammars = lease.chat_context().grammars().clone();
    spawn_blocking(move || {
        if let Err(error) = grammars.compile(&GrammarSource::JsonObject) {
            tracing::debug!("this model does not support grammars: {error}");
        }
    });
}

impl Inner {
    /// Whether the model's memory is reserved; if not, it can be once other models are closed.
    fn reserve(&self, id: SlotId) -> Result<bool, LoadError> {
        let mut state = self.lock();
        let (Some(budget), Some(slot)) = (state.memory, state.slot(id)) else {
            return Ok(true);
        };
        let need = match &slot.inspection {
            Inspection::Done { resident_bytes, .. } => *resident_bytes,
            Inspection::Failed { failure, .. } => return Err(failure.clone().into()),
            Inspection::Pending => return Err(OpenFailure::NotInspected.into()),
        };
        let others = state.slots.iter().filter(|slot| slot.id != id);
        let others: Vec<_> = others.filter_map(|slot| slot.resident()).collect();
        match admit(need, budget, &others) {
            Admission::Fits => {
                if let Some(slot) = state.slot(id)
                    && let Phase::Opening { reserved, .. } = &mut slot.phase
                {
                    *reserved = need;
                }
                Ok(true)
            }
            Admission::AfterEviction(victims) => {
                for victim in victims {
                    if let Some(slot) = state.slot(victim) {
                        tracing::info!(
                            model = slot.model.name,
                            "unloading: another model needs its memory"
                        );
                        slot.drain();
                    }
                }
                self.wake.notify_one();
                Ok(false)
            }
            Admission::Busy { available } => Err(LoadError::Busy {
                need: Bytes(need),
                available: Bytes(available),
                budget: Bytes(budget),
            }),
            Admission::TooLarge => Err(LoadError::TooLarge {
                need: Bytes(need),
                budget: Bytes(budget),
            }),
        }
    }

    /// Puts the model into its slot. Waiting requests get it even if its configuration has changed
    /// and it is about to be closed.
    fn install(
        self: &Arc<Self>,
        opening: &Opening,
        loaded: Loaded,
        took: Duration,
    ) -> Result<Lease, ApiError> {
        let mut state = self.lock();
        let closing = state.closing;
        let Some(slot) = state.slot(opening.slot) else {
            return Err(ApiError::internal(&"a model has no slot"));
        };
        tracing::info!(
            model = slot.model.name,
            seconds = took.as_secs_f64(),
            bytes = loaded.resident_bytes,
            "loaded"
        );
        let loaded = Arc::new(loaded);
        let stale = slot.version != opening.version;
        slot.phase = Phase::Ready(Arc::clone(&loaded));
        slot.was_open = true;
        slot.last_used = Some(Timestamp::now());
        if !stale {
            slot.inspection = Inspection::Done {
                info: Arc::clone(&loaded.info),
                resident_bytes: loaded.resident_bytes,
            };
        }
        if closing || stale || slot.drained || slot.retired {
            slot.drain();
        }
        slot.leases += 1;
        let lease = Lease::counted(self, slot.id, loaded);
        drop(state);
        if closing { Err(stopping()) } else { Ok(lease) }
    }

    fn fail(&self, opening: &Opening, cause: &LoadError) -> ApiError {
        let name = &opening.model.name;
        tracing::error!(model = name, "cannot be loaded: {cause}");
        let error = cause.to_api_error(name);
        let mut state = self.lock();
        if let Some(slot) = state.slot(opening.slot) {
            let persistent = cause.is_persistent() && slot.version == opening.version;
            slot.phase = if persistent {
                Phase::Failed {
                    why: cause.to_string(),
                    error: error.clone(),
                    since: std::time::SystemTime::now(),
                    until: Instant::now() + RETRY_DELAY,
                }
            } else {
                Phase::Unloaded
            };
        }
        state.remove_retired();
        error
    }
}
