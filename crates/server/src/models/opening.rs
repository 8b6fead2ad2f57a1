//! Opens a model of the configuration.

use std::sync::Arc;
use std::time::Duration;

use loquat_grammar::GrammarSource;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::registry::{Inner, stopping};
use super::room::{self, Room};
use super::slot::{Known, Moment, Phase, REMEMBERED, SlotId};
use super::{Lease, Loaded, OpenFailure};
use crate::config::Model;
use crate::error::{ApiError, ErrorKind};

/// What to open.
pub struct Opening {
    pub slot: SlotId,
    /// Of the slot when the opening began.
    pub version: u64,
    pub model: Arc<Model>,
}

/// Why an opening failed.
#[derive(Debug, thiserror::Error)]
enum OpeningError {
    #[error("{0}")]
    Failed(#[from] OpenFailure),
    #[error(
        "it needs {need} of memory, and all models together may take {budget}: raise `memory`, \
        or lower the model's `context`"
    )]
    TooLarge { need: ByteCount, budget: ByteCount },
    #[error(
        "it needs {need} of memory, and models in use leave {available} of {budget}: try again \
        when they are idle, or raise `memory`"
    )]
    NoRoom {
        need: ByteCount,
        available: ByteCount,
        budget: ByteCount,
    },
}

impl OpeningError {
    /// What the client is told.
    fn api_error(&self, model: &str) -> ApiError {
        let failed = |what| ApiError::new(ErrorKind::Internal, what);
        match self {
            Self::Failed(_) => {
                let what =
                    format!("the model `{model}` cannot be loaded; the server's log says why");
                failed(what).code("model_load_failed")
            }
            Self::TooLarge { .. } => {
                failed(format!("the model `{model}` cannot be loaded: {self}"))
                    .code("model_too_large")
            }
            Self::NoRoom { .. } => {
                let what = format!("there is no room for the model `{model}` now: {self}");
                ApiError::overloaded(what).code("model_no_room")
            }
        }
    }

    /// Whether an immediate retry would fail too.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Failed(_) | Self::TooLarge { .. } => true,
            Self::NoRoom { .. } => false,
        }
    }
}

/// An amount of memory, displayed with a unit.
#[derive(Debug, Clone, Copy)]
struct ByteCount(u64);

impl std::fmt::Display for ByteCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Opens the model, even if no request waits for it any more, and reports to those that do.
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
        warm(lease);
    }
    report.send_replace(Some(outcome));
    inner.changed();
}

async fn open(inner: &Arc<Inner>, opening: &Opening) -> Result<Loaded, OpeningError> {
    make_room(inner, opening).await?;
    let opener = Arc::clone(&inner.opener);
    let model = Arc::clone(&opening.model);
    let opened = spawn_blocking(move || Loaded::new(&model, opener.open(&model)?)).await;
    Ok(opened.map_err(|error| OpenFailure::Panicked(error.to_string()))??)
}

/// Reserves memory if it is bounded, closing idle models for it.
async fn make_room(inner: &Arc<Inner>, opening: &Opening) -> Result<(), OpeningError> {
    if inner.lock().memory.is_none() {
        return Ok(());
    }
    inner.look(|slot| slot.id == opening.slot).await;
    loop {
        let mut changes = inner.changes();
        if inner.reserve(opening.slot)? {
            return Ok(());
        }
        // Cannot fail: `inner` holds the sender.
        let _ = changes.changed().await;
    }
}

/// Compiles a first grammar, which indexes the vocabulary and may take a second, so that no request
/// waits for it.
fn warm(lease: &Lease) {
    let grammars = lease.chat_context().grammars().clone();
    spawn_blocking(move || {
        if let Err(error) = grammars.compile(&GrammarSource::JsonObject) {
            tracing::debug!("this model does not support grammars: {error}");
        }
    });
}

impl Inner {
    /// Reserves the model's memory. `false` if other models have to close first.
    fn reserve(&self, id: SlotId) -> Result<bool, OpeningError> {
        let mut state = self.lock();
        let (Some(budget), Some(slot)) = (state.memory, state.slot(id)) else {
            return Ok(true);
        };
        let need = match &slot.known {
            Known::Seen { resident_bytes, .. } => *resident_bytes,
            Known::Unreadable { failure, .. } => return Err(failure.clone().into()),
            Known::Nothing => return Err(OpenFailure::NotPlanned.into()),
        };
        let others = state.slots.iter().filter(|slot| slot.id != id);
        let others: Vec<_> = others.filter_map(|slot| slot.resident()).collect();
        match room::find(need, budget, &others) {
            Room::Free => {
                if let Some(slot) = state.slot(id)
                    && let Phase::Opening { reserved, .. } = &mut slot.phase
                {
                    *reserved = need;
                }
                Ok(true)
            }
            Room::After(victims) => {
                for victim in victims {
                    if let Some(slot) = state.slot(victim) {
                        tracing::info!(model = slot.model.name, "unloading: another needs room");
                        slot.drain();
                    }
                }
                self.wake.notify_one();
                Ok(false)
            }
            Room::None { available } => Err(OpeningError::NoRoom {
                need: ByteCount(need),
                available: ByteCount(available),
                budget: ByteCount(budget),
            }),
            Room::Never => Err(OpeningError::TooLarge {
                need: ByteCount(need),
                budget: ByteCount(budget),
            }),
        }
    }

    /// Puts the model into its slot. Waiting requests get it even if its configuration changed
    /// meanwhile and it is about to close.
    fn install(
        self: &Arc<Self>,
        opening: &Opening,
        loaded: Loaded,
        took: Duration,
    ) -> Result<Lease, ApiError> {
        let mut state = self.lock();
        let closing = state.closing;
        let Some(slot) = state.slot(opening.slot) else {
            return Err(ApiError::internal(&"the slot of an opening model is gone"));
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
        slot.last_used = Some(Moment::now());
        if !stale {
            slot.known = Known::Seen {
                info: Arc::clone(&loaded.info),
                resident_bytes: loaded.resident_bytes,
            };
        }
        if closing || stale || slot.parked || slot.retired {
            slot.drain();
        }
        slot.leases += 1;
        let lease = Lease::counted(self, slot.id, loaded);
        drop(state);
        if closing { Err(stopping()) } else { Ok(lease) }
    }

    fn fail(&self, opening: &Opening, failure: &OpeningError) -> ApiError {
        let name = &opening.model.name;
        tracing::error!(model = name, "cannot be loaded: {failure}");
        let error = failure.api_error(name);
        let mut state = self.lock();
        if let Some(slot) = state.slot(opening.slot) {
            let is_permanent = failure.is_permanent() && slot.version == opening.version;
            slot.phase = if is_permanent {
                Phase::Failed {
                    why: failure.to_string(),
                    error: error.clone(),
                    since: std::time::SystemTime::now(),
                    until: Instant::now() + REMEMBERED,
                }
            } else {
                Phase::Unloaded
            };
        }
        state.forget_retired();
        error
    }
}
