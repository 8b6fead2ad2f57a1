//! From a model's configuration to a model at work.

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

/// What to open, and for whom.
pub struct Opening {
    pub slot: SlotId,
    /// Of the slot, when it began.
    pub version: u64,
    pub model: Arc<Model>,
}

/// Why there is no model at the end of it.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Failed(#[from] OpenFailure),
    #[error(
        "it needs {need} of memory, and all models together may take {budget}: raise `memory`, \
        or lower the model's `context`"
    )]
    Never { need: Bytes, budget: Bytes },
    #[error(
        "it needs {need} of memory, and models in use leave {available} of {budget}: try again \
        when they are idle, or raise `memory`"
    )]
    NoRoom {
        need: Bytes,
        available: Bytes,
        budget: Bytes,
    },
}

impl Trouble {
    fn error(&self, model: &str) -> ApiError {
        let failed = |what| ApiError::new(ErrorKind::Internal, what);
        match self {
            Self::Failed(_) => {
                let what =
                    format!("the model `{model}` cannot be loaded; the server's log says why");
                failed(what).code("model_load_failed")
            }
            Self::Never { .. } => failed(format!("the model `{model}` cannot be loaded: {self}"))
                .code("model_too_large"),
            Self::NoRoom { .. } => {
                let what = format!("there is no room for the model `{model}` now: {self}");
                ApiError::overloaded(what).code("model_no_room")
            }
        }
    }

    /// Whether another try at once would come to the same.
    fn lasts(&self) -> bool {
        match self {
            Self::Failed(_) | Self::Never { .. } => true,
            Self::NoRoom { .. } => false,
        }
    }
}

/// An amount of memory for people.
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

/// Opens the model, whoever still waits for it, and reports to those that do.
pub async fn run(
    inner: Arc<Inner>,
    opening: Opening,
    report: watch::Sender<Option<Result<Lease, ApiError>>>,
) {
    let began = Instant::now();
    let outcome = match open(&inner, &opening).await {
        Ok(loaded) => inner.install(&opening, loaded, began.elapsed()),
        Err(trouble) => Err(inner.fail(&opening, &trouble)),
    };
    if let Ok(lease) = &outcome {
        warm(lease);
    }
    report.send_replace(Some(outcome));
    inner.changed();
}

async fn open(inner: &Arc<Inner>, opening: &Opening) -> Result<Loaded, Trouble> {
    make_room(inner, opening).await?;
    let opener = Arc::clone(&inner.opener);
    let model = Arc::clone(&opening.model);
    let opened = spawn_blocking(move || Loaded::new(&model, opener.open(&model)?)).await;
    Ok(opened.map_err(|error| OpenFailure(error.to_string()))??)
}

/// Sets memory aside where it is bounded, closing idle models for it.
async fn make_room(inner: &Arc<Inner>, opening: &Opening) -> Result<(), Trouble> {
    if inner.lock().memory.is_none() {
        return Ok(());
    }
    inner.look(|slot| slot.id == opening.slot).await;
    loop {
        let mut changes = inner.changes();
        if inner.reserve(opening.slot)? {
            return Ok(());
        }
        // The sender is in `inner`, which is here.
        let _ = changes.changed().await;
    }
}

/// Grammars need a look at the whole vocabulary once, which takes a second where it is large:
/// better now than in the first request that has one.
fn warm(lease: &Lease) {
    let grammars = lease.chat_context().grammars().clone();
    spawn_blocking(move || {
        if let Err(error) = grammars.compile(&GrammarSource::JsonObject) {
            tracing::debug!("grammars are of no use with this model: {error}");
        }
    });
}

impl Inner {
    /// Whether the model's memory is set aside; if not, it will be when others are closed.
    fn reserve(&self, id: SlotId) -> Result<bool, Trouble> {
        let mut state = self.lock();
        let (Some(budget), Some(slot)) = (state.memory, state.slot(id)) else {
            return Ok(true);
        };
        let need = match &slot.known {
            Known::Seen { resident_bytes, .. } => *resident_bytes,
            Known::Unreadable { why, .. } => return Err(OpenFailure(why.clone()).into()),
            Known::Nothing => return Err(OpenFailure("nothing is known of it".into()).into()),
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
            Room::None { available } => Err(Trouble::NoRoom {
                need: Bytes(need),
                available: Bytes(available),
                budget: Bytes(budget),
            }),
            Room::Never => Err(Trouble::Never {
                need: Bytes(need),
                budget: Bytes(budget),
            }),
        }
    }

    /// Puts the model into its slot. Whoever waited gets it, even if it is to be closed already
    /// because its configuration changed meanwhile.
    fn install(
        self: &Arc<Self>,
        opening: &Opening,
        loaded: Loaded,
        took: Duration,
    ) -> Result<Lease, ApiError> {
        let mut state = self.lock();
        let closing = state.closing;
        let Some(slot) = state.slot(opening.slot) else {
            return Err(ApiError::internal(&"a model has lost its place"));
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

    fn fail(&self, opening: &Opening, trouble: &Trouble) -> ApiError {
        let name = &opening.model.name;
        tracing::error!(model = name, "cannot be loaded: {trouble}");
        let error = trouble.error(name);
        let mut state = self.lock();
        if let Some(slot) = state.slot(opening.slot) {
            let lasts = trouble.lasts() && slot.version == opening.version;
            slot.phase = if lasts {
                Phase::Failed {
                    why: trouble.to_string(),
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
