//! The last finished requests, without their content.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::Outcome;

/// How many are kept.
pub const REMEMBERED: usize = 50;

/// A finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRequest {
    pub route: &'static str,
    pub model: String,
    pub outcome: Outcome,
    /// Of its first choice, by the names of [`super::reason`].
    pub finish_reason: Option<&'static str>,
    pub began: SystemTime,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    /// Set if it finished.
    pub cached_tokens: Option<usize>,
    pub queued: Option<Duration>,
    pub first_token: Option<Duration>,
    pub total: Duration,
}

/// Newest first.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<FinishedRequest>>);

impl Recent {
    pub fn add(&self, past: FinishedRequest) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.truncate(REMEMBERED - 1);
        recent.push_front(past);
    }

    pub fn list(&self) -> Vec<FinishedRequest> {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().cloned().collect()
    }
}
