use std::time::{Duration, Instant};

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: usize,
    /// Generated tokens, the one that ended the text included.
    pub completion_tokens: usize,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
}

/// Times of a request, measured from its submission except `decode`, and what they depend on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until it was admitted.
    pub queued: Duration,
    /// Until the first generated token, or the end if none was requested.
    pub first_token: Duration,
    /// Between the first generated token and the last.
    pub decode: Duration,
    /// Until the request ended.
    pub total: Duration,
    /// How speculative decoding shortened `decode`.
    pub drafts: DraftCounts,
}

/// Drafts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were drafted and verified.
    pub tokens: usize,
    /// Those that were right, and delivered.
    pub accepted: usize,
}

impl Timings {
    /// The mean time between two of `completion_tokens`; `None` for fewer than two.
    pub fn per_token(&self, completion_tokens: usize) -> Option<Duration> {
        let gaps = u32::try_from(completion_tokens.checked_sub(1)?).ok()?;
        self.decode.checked_div(gaps)
    }
}

/// Records the times for [`Timings`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
}

impl Stopwatch {
    pub fn start(now: Instant) -> Self {
        Self {
            submitted: now,
            admitted: None,
            first_token: None,
        }
    }

    pub fn submitted(&self) -> Instant {
        self.submitted
    }

    pub fn was_admitted(&self) -> bool {
        self.admitted.is_some()
    }

    pub fn has_spoken(&self) -> bool {
        self.first_token.is_some()
    }

    /// Only the first admission counts.
    pub fn admit(&mut self, now: Instant) {
        self.admitted.get_or_insert(now);
    }

    pub fn token(&mut self, now: Instant) {
        self.first_token.get_or_insert(now);
    }

    pub fn timings(&self, end: Instant) -> Timings {
        let first_token = self.first_token.unwrap_or(end);
        Timings {
            queued: self.admitted.unwrap_or(end) - self.submitted,
            first_token: first_token - self.submitted,
            decode: end - first_token,
            total: end - self.submitted,
            drafts: DraftCounts::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_per_token_needs_two_tokens() {
        let timings = Timings {
            decode: Duration::from_secs(6),
            ..Timings::default()
        };
        assert_eq!(timings.per_token(0), None);
        assert_eq!(timings.per_token(1), None);
        assert_eq!(timings.per_token(4), Some(Duration::from_secs(2)));
    }
}
