//! One model of the configuration, and how far it is from being of use.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::room::{Resident, Stay};
use super::{Lease, Loaded, ModelInfo, ModelState, ModelStatus, OpenFailure, Planned};
use crate::config::Model;
use crate::error::ApiError;

/// Tells slots apart, those of one name among them: a model that was taken out of the
/// configuration may still be draining when another of its name comes in.
pub type SlotId = u64;

/// How long a failure is told again before another try.
pub const REMEMBERED: Duration = Duration::from_secs(5);

/// How long a model stays open without being used, in place of the configuration's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    For(Duration),
    Forever,
}

/// What everybody who waits for an opening gets.
pub type Outcome = watch::Receiver<Option<Result<Lease, ApiError>>>;

pub enum Phase {
    Unloaded,
    Opening {
        since: SystemTime,
        /// Of the memory for all models.
        reserved: u64,
        outcome: Outcome,
    },
    Ready(Arc<Loaded>),
    /// To be closed when nobody uses it any more.
    Draining(Arc<Loaded>),
    /// Its engine is ending.
    Closing {
        bytes: u64,
    },
    Failed {
        /// For operators.
        why: String,
        /// For clients.
        error: ApiError,
        since: SystemTime,
        until: Instant,
    },
}

/// What is known of a model besides its configuration.
#[derive(Clone)]
pub enum Known {
    Nothing,
    Seen {
        info: Arc<ModelInfo>,
        resident_bytes: u64,
    },
    Unreadable {
        failure: OpenFailure,
        until: Instant,
    },
}

/// A moment on both clocks: one to count with, one to show.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub instant: Instant,
    time: SystemTime,
}

impl Moment {
    pub fn now() -> Self {
        Self {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }
}

pub struct Slot {
    pub id: SlotId,
    pub model: Arc<Model>,
    /// Counts changes of the configuration that an open model does not have in it.
    pub version: u64,
    pub phase: Phase,
    pub known: Known,
    pub leases: usize,
    pub last_used: Option<Moment>,
    pub keep_alive: Option<KeepAlive>,
    /// An operator took it out of service.
    pub parked: bool,
    /// It is no longer in the configuration.
    pub retired: bool,
    pub was_open: bool,
    /// How often it was closed.
    pub closings: u64,
}

impl Slot {
    pub fn new(id: SlotId, model: Arc<Model>) -> Self {
        Self {
            id,
            model,
            version: 0,
            phase: Phase::Unloaded,
            known: Known::Nothing,
            leases: 0,
            last_used: None,
            keep_alive: None,
            parked: false,
            retired: false,
            was_open: false,
            closings: 0,
        }
    }

    pub fn is_called(&self, name: &str) -> bool {
        !self.retired && self.model.name == name
    }

    pub fn has_alias(&self, name: &str) -> bool {
        !self.retired && self.model.aliases.iter().any(|alias| alias == name)
    }

    pub fn is_idle(&self) -> bool {
        self.leases == 0
    }

    /// Whether somebody should look into its files.
    pub fn is_unknown(&self) -> bool {
        match &self.known {
            Known::Nothing => true,
            Known::Seen { .. } => false,
            Known::Unreadable { until, .. } => Instant::now() >= *until,
        }
    }

    pub fn learn(&mut self, planned: Result<Planned, OpenFailure>) {
        self.known = match planned {
            Ok(planned) => Known::Seen {
                info: Arc::new(planned.info),
                resident_bytes: planned.resident_bytes,
            },
            Err(failure) => Known::Unreadable {
                failure,
                until: Instant::now() + REMEMBERED,
            },
        };
    }

    /// Closes it when nobody uses it. Nothing happens to one that is not open.
    pub fn drain(&mut self) {
        if let Phase::Ready(loaded) = &self.phase {
            self.phase = Phase::Draining(Arc::clone(loaded));
        }
    }

    /// When it has been idle for long enough; `None` is never, and while it is in use.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Ready(_) if self.is_idle() => {
                let used = self.last_used?;
                used.instant.checked_add(self.patience()?)
            }
            _ => None,
        }
    }

    /// How long it stays open without being used.
    pub fn patience(&self) -> Option<Duration> {
        match self.keep_alive {
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Forever) => None,
            None => self.model.idle_unload,
        }
    }

    /// What it holds of the memory for all models.
    pub fn resident(&self) -> Option<Resident> {
        let (bytes, stay) = match &self.phase {
            Phase::Unloaded | Phase::Failed { .. } => return None,
            Phase::Opening { reserved, .. } => (*reserved, Stay::Needed),
            Phase::Closing { bytes } => (*bytes, Stay::Leaving),
            Phase::Draining(loaded) if self.is_idle() => (loaded.resident_bytes, Stay::Leaving),
            Phase::Ready(loaded) if self.is_idle() => {
                let since = self
                    .last_used
                    .map_or_else(Instant::now, |used| used.instant);
                (loaded.resident_bytes, Stay::IdleSince(since))
            }
            Phase::Ready(loaded) | Phase::Draining(loaded) => (loaded.resident_bytes, Stay::Needed),
        };
        let id = self.id;
        Some(Resident { id, bytes, stay })
    }

    pub fn status(&self) -> ModelStatus {
        let (info, resident_bytes, problem) = match &self.known {
            Known::Nothing => (None, None, None),
            Known::Seen {
                info,
                resident_bytes,
            } => (Some(Arc::clone(info)), Some(*resident_bytes), None),
            Known::Unreadable { failure, .. } => (None, None, Some(failure.to_string())),
        };
        let loaded = self.loaded();
        ModelStatus {
            name: self.model.name.clone(),
            aliases: self.model.aliases.clone(),
            state: self.state(),
            info,
            problem,
            resident_bytes,
            last_used: self.last_used.map(|used| used.time),
            expires: loaded.and_then(|_| self.last_used?.time.checked_add(self.patience()?)),
            leases: self.leases,
            stats: loaded.map(|loaded| loaded.engine().stats()),
        }
    }

    pub fn loaded(&self) -> Option<&Arc<Loaded>> {
        match &self.phase {
            Phase::Ready(loaded) | Phase::Draining(loaded) => Some(loaded),
            _ => None,
        }
    }

    fn state(&self) -> ModelState {
        match &self.phase {
            Phase::Unloaded if self.parked => ModelState::Drained,
            Phase::Unloaded => ModelState::Unloaded,
            Phase::Opening { since, .. } => ModelState::Loading { since: *since },
            Phase::Ready(_) => ModelState::Ready,
            Phase::Draining(_) | Phase::Closing { .. } => ModelState::Draining,
            Phase::Failed { why, since, .. } => ModelState::Failed {
                why: why.clone(),
                since: *since,
            },
        }
    }
}
