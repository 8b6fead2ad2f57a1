//! Sizes, shares and durations with units.

use std::time::Duration;

use loquat_session::MemoryBudget;

/// Longest first, so that `MiB` does not match as `B`.
const SIZES: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("b", 1),
];

/// In milliseconds; `ms` before `s`, which is its suffix.
const TIMES: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// A century, far below overflow.
const LONGEST_MS: f64 = 100.0 * 365.0 * 86_400_000.0;

/// `6GiB`, `512 MiB`, `4GB`, `1.5G` or `60%`.
pub fn budget(text: &str) -> Result<MemoryBudget, String> {
    let text = text.trim();
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim_end().parse() {
            Ok(percent @ 1..=100) => Ok(MemoryBudget::Percent(percent)),
            _ => Err("a share must be a whole number from 1% to 100%".to_owned()),
        },
        None => at_least_one(text).map(MemoryBudget::Bytes).ok_or_else(|| {
            "must be a size such as 6GiB or 800MB, or a share of this machine such as 60%"
                .to_owned()
        }),
    }
}

fn at_least_one(text: &str) -> Option<u64> {
    size(text).filter(|bytes| *bytes > 0)
}

/// Bytes; a unit is required. Fractions of a byte are refused.
pub fn size(text: &str) -> Option<u64> {
    let bytes = measure(text, &SIZES)?;
    let sound = bytes == 0.0 || (1.0..u64::MAX as f64).contains(&bytes);
    sound.then_some(bytes as u64)
}

/// `30s`, `1.5h`, `250ms`: at least a millisecond; a unit is required.
pub fn duration(text: &str) -> Option<Duration> {
    let millis = measure(text, &TIMES)?;
    (1.0..=LONGEST_MS)
        .contains(&millis)
        .then(|| Duration::from_millis(millis as u64))
}

fn measure(text: &str, units: &[(&str, u64)]) -> Option<f64> {
    let text = text.trim().to_ascii_lowercase();
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    // Refuses signs, exponents, `inf` and `nan`.
    let plain = number.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    let number: f64 = plain.then(|| number.parse().ok()).flatten()?;
    Some(number * unit as f64)
}

/// In the largest binary unit that gives a whole number.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    whole(bytes, &UNITS).unwrap_or_else(|| format!("{bytes}B"))
}

/// In the largest unit up to hours that gives a whole number.
pub fn duration_text(time: Duration) -> String {
    const UNITS: [(&str, u64); 3] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    whole(millis, &UNITS).unwrap_or_else(|| format!("{millis}ms"))
}

pub fn budget_text(budget: MemoryBudget) -> String {
    match budget {
        MemoryBudget::Bytes(bytes) => size_text(bytes),
        MemoryBudget::Percent(percent) => format!("{percent}%"),
    }
}

fn whole(count: u64, units: &[(&str, u64)]) -> Option<String> {
    let fits = |(_, unit): &&(&str, u64)| count >= *unit && count.is_multiple_of(*unit);
    let (name, unit) = units.iter().find(fits)?;
    Some(format!("{}{name}", count / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_read() {
        for (text, bytes) in [
            ("6GiB", 6 << 30),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("4GB", 4_000_000_000),
            ("800M", 800_000_000),
            ("1.5G", 1_500_000_000),
            ("0.5KiB", 512),
            ("2t", 2_000_000_000_000),
            ("7kB", 7_000),
            ("1B", 1),
        ] {
            assert_eq!(budget(text), Ok(MemoryBudget::Bytes(bytes)), "{text}");
        }
        for (text, percent) in [("1%", 1), ("60%", 60), (" 100 %", 100)] {
            assert_eq!(budget(text), Ok(MemoryBudget::Percent(percent)), "{text}");
        }
    }

    #[test]
    fn invalid_size_is_refused_with_examples() {
        for text in [
            "",
            "6",
            "GiB",
            "-1GB",
            "+1GB",
            "1e3MB",
            "infGB",
            "nanGB",
            "1.2.3GB",
            "0GB",
            "0.1B",
            "99999999999TB",
            "6 GiBs",
            "6XB",
            ".GB",
        ] {
            let refused = budget(text).unwrap_err();
            assert!(
                refused.contains("6GiB") && refused.contains("60%"),
                "{text}"
            );
        }
        for text in ["0%", "101%", "-5%", "1.5%", "%", "300%"] {
            assert!(budget(text).unwrap_err().contains("1% to 100%"), "{text}");
        }
    }

    #[test]
    fn times_are_read_and_written() {
        for (text, millis, written) in [
            ("30s", 30_000, "30s"),
            ("90s", 90_000, "90s"),
            ("5m", 300_000, "5m"),
            ("1.5h", 5_400_000, "90m"),
            ("250 MS", 250, "250ms"),
            ("2d", 172_800_000, "48h"),
        ] {
            let time = duration(text).unwrap();
            assert_eq!(time, Duration::from_millis(millis), "{text}");
            assert_eq!(duration_text(time), written);
            assert_eq!(duration(written), Some(time));
        }
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1e3s",
            "0s",
            "0.1ms",
            "99999999d",
            "5 years",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_as_they_can_be_read() {
        for (bytes, written) in [
            (32 << 20, "32MiB"),
            (6 << 30, "6GiB"),
            (1536, "1536B"),
            (2048, "2KiB"),
            (1, "1B"),
            (0, "0B"),
        ] {
            assert_eq!(size_text(bytes), written);
            assert_eq!(size(written), Some(bytes));
        }
        assert_eq!(budget_text(MemoryBudget::Percent(60)), "60%");
    }
}
