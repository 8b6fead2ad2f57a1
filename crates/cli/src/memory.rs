//! Memory sizes as people write them.

use loquat_session::MemoryBudget;

/// Longest first, so that `B` is not taken for the end of `MiB`.
const UNITS: [(&str, u64); 13] = [
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

/// `6GiB`, `512 MiB`, `4GB`, `1.5G` or `60%`.
pub fn budget(text: &str) -> Result<MemoryBudget, String> {
    let text = text.trim().to_ascii_lowercase();
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim_end().parse() {
            Ok(percent @ 1..=100) => Ok(MemoryBudget::Percent(percent)),
            _ => Err("a share must be a whole number from 1% to 100%".to_owned()),
        },
        None => size(&text).map(MemoryBudget::Bytes).ok_or_else(|| {
            "must be a size such as 6GiB or 800MB, or a share of this machine such as 60%"
                .to_owned()
        }),
    }
}

/// Bytes, at least one; a unit must be named.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    // Signs, exponents, `inf` and `nan` are numbers too, but no sizes.
    let plain = number.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    let number: f64 = plain.then(|| number.parse().ok()).flatten()?;
    let bytes = number * unit as f64;
    (1.0..u64::MAX as f64)
        .contains(&bytes)
        .then_some(bytes as u64)
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
    fn what_is_no_size_is_refused_with_what_would_be() {
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
}
