//! Timeouts and sizes of downloads.

use std::time::Duration;

use super::retry::RetryPolicy;

/// Tests use smaller values. Not a user option.
#[derive(Debug, Clone)]
pub struct DownloadTuning {
    /// How long to wait for a connection.
    pub connect: Duration,
    /// A connection without data for this long has failed.
    pub stall: Duration,
    /// Limits consecutive failures of one stream; received data resets the count.
    pub retry: RetryPolicy,
    /// Fail instead of waiting longer than this for a rate limit.
    pub longest_wait: Duration,
    /// Files to download in parallel.
    pub files_at_once: usize,
    /// Connections per large file.
    pub streams_per_file: usize,
    /// The minimum bytes for a separate connection.
    pub smallest_stream: u64,
    /// Bytes between journal entries.
    pub journal_step: u64,
}

impl Default for DownloadTuning {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            retry: RetryPolicy {
                retries: 5,
                backoff: Duration::from_millis(500),
            },
            longest_wait: Duration::from_secs(60),
            files_at_once: 3,
            streams_per_file: 4,
            smallest_stream: 16 << 20,
            journal_step: 16 << 20,
        }
    }
}
