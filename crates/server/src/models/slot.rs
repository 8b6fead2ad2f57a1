//! One model of the configuration, and its lifecycle.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use loquat_engine::StepMonitor;
use tokio::sync::watch;
use tokio::time::Instant;

use super::adapters::Adapter;
use super::memory_budget::{Resident, Usage};
use super::{Lease, Loaded, ModelInfo, ModelState, ModelStatus, OpenFailure, Planned};
use crate::config::ModelConfig;
use crate::error::ApiError;

/// Identifies a slot. Names are not unique: a model that left the configuration may still be
/// draining when another of its name is added.
pub type SlotId = u64;

/// How long a failure is reported before the next attempt.
pub const RETRY_DELAY: Duration = Duration::from_secs(5);

/// How long an idle model stays loaded. Overrides the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    For(Duration),
    Forever,
}

/// The result of an opening, for everyone who waits for it.
pub type OpenOutcome = watch::Receiver<Option<Result<Lease, ApiError>>>;

pub enum Phase {
    Unloaded,
    Opening {
        since: SystemTime,
        /// Bytes of the memory budget.
        reserved: u64,
        outcome: OpenOutcome,
    },
    Ready(Arc<Loaded>),
    /// Closes when it is idle.
    Draining(Arc<Loaded>),
    /// Its engine is ending.
    Closing {
        bytes: u64,
        monitor: StepMonitor,
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

/// What is known of a model's files.
#[derive(Clone)]
pub enum Inspection {
    Pending,
    Done {
        info: Arc<ModelInfo>,
        resident_bytes: u64,
    },
    Failed {
        failure: OpenFailure,
        until: Instant,
    },
}

/// A time on both clocks: monotonic, and for display.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp {
    pub instant: Instant,
    time: SystemTime,
}

impl Timestamp {
    pub fn now() -> Self {
        Self {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }
}

pub struct Slot {
    pub id: SlotId,
    pub model: Arc<ModelConfig>,
    /// Counts configuration changes that need the model to be opened again.
    pub version: u64,
    pub phase: Phase,
    pub inspection: Inspection,
    pub leases: usize,
    pub last_used: Option<Timestamp>,
    pub keep_alive: Option<KeepAlive>,
    /// Taken out of service by an operator.
    pub drained: bool,
    /// Removed from the configuration.
    pub retired: bool,
    pub was_open: bool,
    /// How often it was closed.
    pub closings: u64,
    /// The adapters that requests can choose, in the order of their numbers.
    pub adapters: Vec<Arc<Adapter>>,
    pub next_adapter: usize,
    /// The adapters of requests that choose none, by number; an operator sets it.
    pub default_adapters: Vec<(usize, f32)>,
}

impl Slot {
    pub fn new(id: SlotId, model: Arc<ModelConfig>) -> Self {
        let mut slot = Self {
            id,
            model,
            version: 0,
            phase: Phase::Unloaded,
            inspection: Inspection::Pending,
            leases: 0,
            last_used: None,
            keep_alive: None,
            drained: false,
            retired: false,
            was_open: false,
            closings: 0,
            adapters: Vec::new(),
            next_adapter: 0,
            default_adapters: Vec::new(),
        };
        slot.configure_adapters();
        slot
    }

    pub fn has_name(&self, name: &str) -> bool {
        !self.retired && self.model.name == name
    }

    pub fn has_alias(&self, name: &str) -> bool {
        !self.retired && self.model.aliases.iter().any(|alias| alias == name)
    }

    /// Whether an alias with `*` matches the name.
    pub fn has_pattern(&self, name: &str) -> bool {
        let mut patterns = self.model.aliases.iter();
        !self.retired && patterns.any(|alias| alias.contains('*') && matches_pattern(alias, name))
    }

    pub fn is_idle(&self) -> bool {
        self.leases == 0
    }

    /// Whether its files need to be inspected.
    pub fn needs_inspection(&self) -> bool {
        match &self.inspection {
            Inspection::Pending => true,
            Inspection::Done { .. } => false,
            Inspection::Failed { until, .. } => Instant::now() >= *until,
        }
    }

    pub fn set_inspection(&mut self, planned: Result<Planned, OpenFailure>) {
        self.inspection = match planned {
            Ok(planned) => Inspection::Done {
                info: Arc::new(planned.info),
                resident_bytes: planned.resident_bytes,
            },
            Err(failure) => Inspection::Failed {
                failure,
                until: Instant::now() + RETRY_DELAY,
            },
        };
    }

    /// Whether it is loaded and stays so.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// Closes a loaded model once it is idle.
    pub fn drain(&mut self) {
        if let Phase::Ready(loaded) = &self.phase {
            self.phase = Phase::Draining(Arc::clone(loaded));
        }
    }

    /// When it is unloaded; `None` for never, and while it is in use.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Ready(_) if self.is_idle() => {
                let used = self.last_used?;
                used.instant.checked_add(self.idle_timeout()?)
            }
            _ => None,
        }
    }

    /// How long it stays loaded while idle; `None` for forever.
    pub fn idle_timeout(&self) -> Option<Duration> {
        match self.keep_alive {
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Forever) => None,
            None => self.model.idle_unload,
        }
    }

    /// The memory it holds.
    pub fn resident(&self) -> Option<Resident> {
        let (bytes, usage) = match &self.phase {
            Phase::Unloaded | Phase::Failed { .. } => return None,
            Phase::Opening { reserved, .. } => (*reserved, Usage::InUse),
            Phase::Closing { bytes, .. } => (*bytes, Usage::Closing),
            Phase::Draining(loaded) if self.is_idle() => (loaded.resident_bytes, Usage::Closing),
            Phase::Ready(loaded) if self.is_idle() => {
                let since = self
                    .last_used
                    .map_or_else(Instant::now, |used| used.instant);
                (loaded.resident_bytes, Usage::IdleSince(since))
            }
            Phase::Ready(loaded) | Phase::Draining(loaded) => (loaded.resident_bytes, Usage::InUse),
        };
        let id = self.id;
        Some(Resident { id, bytes, usage })
    }

    pub fn status(&self) -> ModelStatus {
        let (info, resident_bytes, problem) = match &self.inspection {
            Inspection::Pending => (None, None, None),
            Inspection::Done {
                info,
                resident_bytes,
            } => (Some(Arc::clone(info)), Some(*resident_bytes), None),
            Inspection::Failed { failure, .. } => (None, None, Some(failure.to_string())),
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
            expires: loaded.and_then(|_| self.last_used?.time.checked_add(self.idle_timeout()?)),
            leases: self.leases,
            adapters: self.adapter_statuses(),
            stats: loaded.map(|loaded| loaded.engine().stats()),
        }
    }

    pub fn loaded(&self) -> Option<&Arc<Loaded>> {
        match &self.phase {
            Phase::Ready(loaded) | Phase::Draining(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Watches the steps of its engine, if it has one.
    pub fn step_monitor(&self) -> Option<StepMonitor> {
        match &self.phase {
            Phase::Ready(loaded) | Phase::Draining(loaded) => Some(loaded.engine().step_monitor()),
            Phase::Closing { monitor, .. } => Some(monitor.clone()),
            Phase::Unloaded | Phase::Opening { .. } | Phase::Failed { .. } => None,
        }
    }

    fn state(&self) -> ModelState {
        match &self.phase {
            Phase::Unloaded if self.drained => ModelState::Drained,
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

/// Whether a pattern matches the whole name; its `*` matches any text.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn stars_match_any_text() {
    for (pattern, name, expected) in [
        ("claude-*", "claude-sonnet-4-5", true),
        ("claude-*", "claude-", true),
        ("claude-*", "my-claude-1", false),
        ("*", "", true),
        ("*-mini", "gpt-4o-mini", true),
        ("gpt-*-mini", "gpt-mini", false),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c-b", false),
        ("plain", "plain", true),
        ("plain", "plainer", false),
    ] {
        assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
    }
}
