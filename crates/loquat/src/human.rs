//! Numbers formatted for people. Not part of the public API.

/// `98.4 MB`
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value < 99.95) {
        (0, _) => format!("{count} B"),
        (_, true) => format!("{value:.1} {}", UNITS[unit]),
        (_, false) => format!("{value:.0} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_keep_three_digits() {
        let table = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_600, "1.0 MB"),
            (123_456_789, "123 MB"),
            (4_700_000_000, "4.7 GB"),
        ];
        for (count, expected) in table {
            assert_eq!(bytes(count), expected);
        }
    }
}
