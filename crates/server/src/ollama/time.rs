//! Times in RFC 3339.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// The time for "never", for clients that require one.
pub const NEVER: &str = "9999-12-31T23:59:59Z";

pub fn now() -> String {
    rfc3339(SystemTime::now())
}

/// With microseconds. Times after the year 9999 are [`NEVER`].
pub fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or(NEVER.to_owned(), |time| format!("{time:.6}"))
}

/// A duration in nanoseconds, as Ollama reports them.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn times_have_six_decimals() {
        let cases = [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_868_799, 0, "2000-02-29T23:59:59.000000Z"),
            (1_700_000_000, 123_456_789, "2023-11-14T22:13:20.123456Z"),
            (253_402_300_800, 0, NEVER),
        ];
        for (seconds, nanos, expected) in cases {
            let time = UNIX_EPOCH + Duration::new(seconds, nanos);
            assert_eq!(rfc3339(time), expected);
        }
    }
}
