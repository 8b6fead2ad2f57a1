use std::time::{Duration, Instant};

/// Tokens a request cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Generated tokens, the one that ended the text included.
    pub completion_tokens: usize,
    /// Prompt tokens whose state was already there and was not computed again.
    pub cached_tokens: usize,
}

/// Where a request's time went, all but `decode` counted from its submission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until it was admitted.
    pub queued: Duration,
    /// Until the first generated token, or the end where none was asked for.
    pub first_token: Duration,
    /// Between the first generated token and the last.
    pub decode: Duration,
    pub total: Duration,
}

/// The moments [`Timings`] are taken from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    submitted: Instant,
    admitted: Instant,
    first_token: Option<Instant>,
}

impl Clock {
    pub fn admitted(submitted: Instant) -> Self {
        Self {
            submitted,
            admitted: Instant::now(),
            first_token: None,
        }
    }

    pub fn token(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
    }

    pub fn timings(&self) -> Timings {
        let end = Instant::now();
        let first_token = self.first_token.unwrap_or(end);
        Timings {
            queued: self.admitted - self.submitted,
            first_token: first_token - self.submitted,
            decode: end - first_token,
            total: end - self.submitted,
        }
    }
}
