//! A model's status, for clients, operators and metrics.

use std::sync::Arc;
use std::time::SystemTime;

use loquat_engine::Stats;

use super::ModelInfo;
use super::adapters::AdapterStatus;

#[derive(Debug, Clone)]
pub struct ModelStatus {
    /// The configuration's name for it.
    pub name: String,
    pub aliases: Vec<String>,
    pub state: ModelState,
    /// `None` before its files are inspected, and if they cannot be read.
    pub info: Option<Arc<ModelInfo>>,
    /// Why its files cannot be read. For operators: it may name paths.
    pub problem: Option<String>,
    /// The memory it uses, or would use.
    pub resident_bytes: Option<u64>,
    pub last_used: Option<SystemTime>,
    /// When it is unloaded if it stays idle.
    pub expires: Option<SystemTime>,
    /// Requests that use it now.
    pub leases: usize,
    pub adapters: Vec<AdapterStatus>,
    /// While it is loaded.
    pub stats: Option<Stats>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelState {
    /// The next request loads it.
    Unloaded,
    Loading {
        since: SystemTime,
    },
    Ready,
    /// Unloads when the requests that use it have ended.
    Draining,
    /// Taken out of service by an operator, until an operator loads it.
    Drained,
    Failed {
        /// For operators: it may name paths.
        why: String,
        since: SystemTime,
    },
}

impl ModelState {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading { .. } => "loading",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Failed { .. } => "failed",
        }
    }
}
