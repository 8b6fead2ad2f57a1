//! Relative times.

use std::time::{SystemTime, UNIX_EPOCH};

/// How long ago a Unix time was, in words.
pub fn since(at: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    ago(now.map_or(0, |now| now.as_secs()).saturating_sub(at))
}

fn ago(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (7 * 24 * 60 * 60, "week"),
        (24 * 60 * 60, "day"),
        (60 * 60, "hour"),
        (60, "minute"),
    ];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    match unit.map(|(length, name)| (seconds / length, name)) {
        None => "just now".to_owned(),
        Some((1, name)) => format!("1 {name} ago"),
        Some((count, name)) => format!("{count} {name}s ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::ago;

    #[test]
    fn ages_use_largest_whole_unit() {
        for (seconds, expected) in [
            (0, "just now"),
            (59, "just now"),
            (60, "1 minute ago"),
            (7199, "1 hour ago"),
            (3 * 86_400, "3 days ago"),
            (15 * 86_400, "2 weeks ago"),
        ] {
            assert_eq!(ago(seconds), expected);
        }
    }
}
