//! Times in RFC 3339.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time for "never", for clients that require one.
pub const NEVER: &str = "9999-12-31T23:59:59Z";

pub fn now() -> String {
    rfc3339(SystemTime::now())
}

pub fn rfc3339(time: SystemTime) -> String {
    // No time here is before 1970.
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// A duration in nanoseconds, as Ollama reports them.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The day in the Gregorian calendar, by Howard Hinnant's `civil_from_days`: years begin in March,
/// so that leap days come last, and 400 of them are an era.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / ERA, days % ERA);
    let leap_days = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let before_year = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
    let day_of_year = day_of_era - before_year;
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = match march_based {
        0..=9 => march_based + 3,
        _ => march_based - 9,
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_match_the_calendar() {
        let cases = [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, 0, "2000-02-28T23:59:59.000000Z"),
            (951_868_799, 0, "2000-02-29T23:59:59.000000Z"),
            (951_868_800, 0, "2000-03-01T00:00:00.000000Z"),
            (1_700_000_000, 123_456_789, "2023-11-14T22:13:20.123456Z"),
            (4_107_542_399, 0, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
        ];
        for (seconds, nanos, expected) in cases {
            let time = UNIX_EPOCH + Duration::new(seconds, nanos);
            assert_eq!(rfc3339(time), expected);
        }
    }
}
