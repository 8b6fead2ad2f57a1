//! The numbers of a download.

use std::time::Duration;

use super::patience::Patience;

/// What tests make small. People have no use for it, so it is no option and no variable.
#[derive(Debug, Clone)]
pub struct Tuning {
    pub connect: Duration,
    /// So long without a byte, and the connection is given up.
    pub stall: Duration,
    /// Of consecutive failures of one stream; a byte that comes starts the count again.
    pub patience: Patience,
    /// A server that wants to be left alone for longer is not waited for.
    pub longest_wait: Duration,
    pub files_at_once: usize,
    pub streams_per_file: usize,
    /// A stream for less than this is not worth its connection.
    pub smallest_stream: u64,
    /// So many bytes are made durable and then written into the journal.
    pub journal_step: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            patience: Patience {
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
