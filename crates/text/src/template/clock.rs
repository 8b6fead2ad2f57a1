//! The date that templates print, formatted as Python's `strftime` does.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};

/// The source of a template's date.
///
/// It is UTC in every time zone, so that a conversation renders to the same prompt on every
/// machine; `transformers` uses the machine's zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock.
    System,
    /// Seconds since 1970-01-01 00:00:00.
    Fixed(u64),
}

impl Clock {
    /// Formats the current time.
    pub(super) fn strftime(self, format: &str) -> String {
        let time = match self {
            Self::System => Timestamp::now(),
            Self::Fixed(seconds) => {
                let seconds = i64::try_from(seconds).ok();
                let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
                time.unwrap_or(Timestamp::MAX)
            }
        };
        let config = Config::new().custom(PosixCustom::new()).lenient(true);
        let formatted = BrokenDownTime::from(time).to_string_with_config(&config, to_jiff(format));
        formatted.unwrap_or_default()
    }
}

/// Directives that jiff and Python format alike.
const COMMON: &str = "%AaBbCcDdeFGgHhIjklMmnPpRrSsTtUuVWwXxYy";

/// Rewrites the directives that jiff formats differently.
fn to_jiff(format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        out.push_str(before);
        let is_flag = |c: char| c.is_ascii_digit() || "-_^#".contains(c);
        let flags = directive.find(|c| !is_flag(c)).unwrap_or(directive.len());
        match directive[flags..].chars().next() {
            // Python prints nothing for the zone of a time without one.
            Some('Z' | 'z') => {}
            Some('f') => out.push_str("000000"),
            Some(code) if COMMON.contains(code) => {
                out.push('%');
                out.push_str(&directive[..=flags]);
            }
            // The C library prints unknown directives verbatim.
            _ => {
                out.push_str("%%");
                rest = directive;
                continue;
            }
        }
        rest = &directive[flags + 1..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_pythons_strftime() {
        // `datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).strftime(format)`
        let cases = [
            (0, "%Y-%m-%d %A", "1970-01-01 Thursday"),
            (1_767_323_045, "%d %b %Y", "02 Jan 2026"),
            (
                1_767_323_045,
                "%B %-d, %Y %H:%M:%S%Z",
                "January 2, 2026 03:04:05",
            ),
            (1_709_164_800, "%F %j %a", "2024-02-29 060 Thu"),
            (
                1_735_689_599,
                "%F %T %j %I %p",
                "2024-12-31 23:59:59 366 11 PM",
            ),
            (951_782_400, "%e %y 100%%", "29 00 100%"),
            (43_200, "%I %p %-H %-M", "12 PM 12 0"),
            (
                1_767_323_045,
                "%c|%x|%r|%R",
                "Fri Jan  2 03:04:05 2026|01/02/26|03:04:05 AM|03:04",
            ),
            (
                1_767_323_045,
                "%U %W %V %G %u %w %k%l%P",
                "00 00 01 2026 5 5  3 3am",
            ),
            (1_735_689_599, "%U %W %V %G", "52 53 01 2025"),
            (1_609_459_200, "%U %W %V %G", "00 00 53 2020"),
            (
                1_767_323_045,
                "%_d %^a %05d %10Y",
                " 2 FRI 00002 0000002026",
            ),
            (1_767_323_045, "%f%z|%s|%n%t", "000000|1767323045|\n\t"),
            (0, "%Q %N %:z 100% %", "%Q %N %:z 100% %"),
        ];
        for (seconds, format, text) in cases {
            assert_eq!(Clock::Fixed(seconds).strftime(format), text, "{format}");
        }
    }
}
