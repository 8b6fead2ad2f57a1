//! The date templates print, formatted as Python's `strftime` does.

use std::time::{SystemTime, UNIX_EPOCH};

/// Where a template's date comes from.
///
/// It is UTC whatever the machine's zone is, so that one conversation makes one prompt wherever it
/// is served; `transformers` takes the zone of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    System,
    /// Seconds since 1970-01-01 00:00:00.
    Fixed(u64),
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// The weekday of 1970-01-01.
const FIRST_WEEKDAY: u64 = 4;
/// The widest a field may be made.
const MAX_WIDTH: usize = 1024;

struct Date {
    seconds: u64,
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    /// From 1.
    day_of_year: u64,
    /// From Sunday, 0.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// What stands between `%` and the code: `_`, `-`, `0`, `^`, `#` and a width.
#[derive(Default)]
struct Flags {
    /// What to fill with, or `-` for nothing.
    pad: Option<char>,
    upper: bool,
    width: usize,
}

/// A field before its flags: text, or a number with its width and what fills it.
enum Field {
    Text(String),
    Number(u64, usize, char),
}

impl Clock {
    /// Formats the current time.
    pub(super) fn strftime(self, format: &str) -> String {
        let seconds = match self {
            Self::Fixed(seconds) => seconds,
            // A clock set before 1970 is a broken clock; the epoch is as good a date as any.
            Self::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        };
        Date::at(seconds).format(format)
    }
}

impl Date {
    fn at(seconds: u64) -> Self {
        let days = seconds / 86_400;
        let (mut year, mut day) = (1970, days);
        while day >= year_length(year) {
            day -= year_length(year);
            year += 1;
        }
        let day_of_year = day + 1;
        let mut month = 0;
        while day >= month_length(year, month) {
            day -= month_length(year, month);
            month += 1;
        }
        Self {
            seconds,
            year,
            month,
            day: day + 1,
            day_of_year,
            weekday: (days + FIRST_WEEKDAY) % 7,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let (flags, after) = Flags::parse(&rest[at + 1..]);
            let mut characters = after.chars();
            match characters.next().and_then(|code| self.field(code)) {
                Some(field) => {
                    out.push_str(&flags.apply(field));
                    rest = characters.as_str();
                }
                // Like the C library, which leaves alone what it does not know.
                None => {
                    out.push('%');
                    rest = &rest[at + 1..];
                }
            }
        }
        out.push_str(rest);
        out
    }

    fn field(&self, code: char) -> Option<Field> {
        use Field::{Number, Text};
        let (month, weekday) = (MONTHS[self.month], WEEKDAYS[self.weekday as usize]);
        let twelve = (self.hour + 11) % 12 + 1;
        let half = if self.hour < 12 { "AM" } else { "PM" };
        Some(match code {
            'Y' => Number(self.year, 1, '0'),
            'C' => Number(self.year / 100, 2, '0'),
            'y' => Number(self.year % 100, 2, '0'),
            'G' => Number(self.iso_week().0, 1, '0'),
            'g' => Number(self.iso_week().0 % 100, 2, '0'),
            'm' => Number(self.month as u64 + 1, 2, '0'),
            'B' => Text(month.to_owned()),
            'b' | 'h' => Text(month[..3].to_owned()),
            'd' => Number(self.day, 2, '0'),
            'e' => Number(self.day, 2, ' '),
            'j' => Number(self.day_of_year, 3, '0'),
            'A' => Text(weekday.to_owned()),
            'a' => Text(weekday[..3].to_owned()),
            'u' => Number((self.weekday + 6) % 7 + 1, 1, '0'),
            'w' => Number(self.weekday, 1, '0'),
            'U' => Number((self.day_of_year + 6 - self.weekday) / 7, 2, '0'),
            'W' => Number((self.day_of_year + 6 - (self.weekday + 6) % 7) / 7, 2, '0'),
            'V' => Number(self.iso_week().1, 2, '0'),
            'H' => Number(self.hour, 2, '0'),
            'k' => Number(self.hour, 2, ' '),
            'I' => Number(twelve, 2, '0'),
            'l' => Number(twelve, 2, ' '),
            'p' => Text(half.to_owned()),
            'P' => Text(half.to_lowercase()),
            'M' => Number(self.minute, 2, '0'),
            'S' => Number(self.second, 2, '0'),
            's' => Number(self.seconds, 1, '0'),
            'f' => Text("000000".to_owned()),
            'c' => Text(self.format("%a %b %e %H:%M:%S %Y")),
            'x' | 'D' => Text(self.format("%m/%d/%y")),
            'X' | 'T' => Text(self.format("%H:%M:%S")),
            'r' => Text(self.format("%I:%M:%S %p")),
            'R' => Text(self.format("%H:%M")),
            'F' => Text(self.format("%Y-%m-%d")),
            // Python prints nothing for the zone of a time that carries none.
            'Z' | 'z' => Text(String::new()),
            'n' => Text("\n".to_owned()),
            't' => Text("\t".to_owned()),
            '%' => Text("%".to_owned()),
            _ => return None,
        })
    }

    /// The year and week of ISO 8601: a week belongs to the year its Thursday is in.
    fn iso_week(&self) -> (u64, u64) {
        let from_monday = (self.weekday + 6) % 7;
        match (self.day_of_year + 9 - from_monday) / 7 {
            0 => {
                let last = Self::at(self.seconds - self.day_of_year * 86_400);
                last.iso_week()
            }
            53 if self.day_of_year + 3 - from_monday > year_length(self.year) => (self.year + 1, 1),
            week => (self.year, week),
        }
    }
}

impl Flags {
    /// The flags a field begins with, and the rest from its code on.
    fn parse(text: &str) -> (Self, &str) {
        let mut flags = Self::default();
        let mut rest = text;
        while let Some(flag @ ('-' | '_' | '0' | '^' | '#')) = rest.chars().next() {
            match flag {
                '^' => flags.upper = true,
                '#' => {}
                pad => flags.pad = Some(if pad == '_' { ' ' } else { pad }),
            }
            rest = &rest[1..];
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        flags.width = rest[..digits].parse().unwrap_or(0).min(MAX_WIDTH);
        (flags, &rest[digits..])
    }

    fn apply(&self, field: Field) -> String {
        let (text, width, fill) = match field {
            Field::Text(text) => (text, 0, ' '),
            Field::Number(number, width, fill) => (number.to_string(), width, fill),
        };
        let text = if self.upper {
            text.to_uppercase()
        } else {
            text
        };
        if self.pad == Some('-') {
            return text;
        }
        let missing = self.width.max(width).saturating_sub(text.chars().count());
        let fill = self.pad.unwrap_or(fill).to_string();
        format!("{}{text}", fill.repeat(missing))
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_length(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_length(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_read_as_python_writes_them() {
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
            (0, "%Q 100% %", "%Q 100% %"),
        ];
        for (seconds, format, text) in cases {
            assert_eq!(Clock::Fixed(seconds).strftime(format), text, "{format}");
        }
    }
}
