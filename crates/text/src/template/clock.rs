//! The date templates print, formatted as Python's `strftime` does.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

/// Where a template's date comes from; always UTC.
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
/// From the weekday of 1970-01-01 on.
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

struct Date {
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    day_of_year: u64,
    weekday: &'static str,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Clock {
    /// Formats the current time.
    pub(super) fn strftime(self, format: &str) -> Result<String, Error> {
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
            year,
            month,
            day: day + 1,
            day_of_year,
            weekday: WEEKDAYS[(days % 7) as usize],
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn format(&self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            match characters.next() {
                Some('-') => {
                    let padded = self.field(characters.next())?;
                    let bare = padded.trim_start_matches('0');
                    out.push_str(if bare.is_empty() { "0" } else { bare });
                }
                code => out.push_str(&self.field(code)?),
            }
        }
        Ok(out)
    }

    fn field(&self, code: Option<char>) -> Result<String, Error> {
        let month = MONTHS[self.month];
        Ok(match code {
            Some('Y') => self.year.to_string(),
            Some('y') => format!("{:02}", self.year % 100),
            Some('m') => format!("{:02}", self.month + 1),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('d') => format!("{:02}", self.day),
            Some('e') => format!("{:2}", self.day),
            Some('j') => format!("{:03}", self.day_of_year),
            Some('A') => self.weekday.to_owned(),
            Some('a') => self.weekday[..3].to_owned(),
            Some('H') => format!("{:02}", self.hour),
            Some('I') => format!("{:02}", (self.hour + 11) % 12 + 1),
            Some('p') => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{:02}", self.minute),
            Some('S') => format!("{:02}", self.second),
            Some('F') => self.format("%Y-%m-%d")?,
            Some('T') => self.format("%H:%M:%S")?,
            // Python prints nothing for the zone of a time that carries none.
            Some('Z' | 'z') => String::new(),
            Some('%') => "%".to_owned(),
            other => {
                let code = other.map(String::from).unwrap_or_default();
                let why = format!("strftime_now does not know the format code `%{code}`");
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
        })
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
        ];
        for (seconds, format, text) in cases {
            let formatted = Clock::Fixed(seconds).strftime(format);
            assert_eq!(formatted.ok().as_deref(), Some(text), "{seconds} {format}");
        }
    }

    #[test]
    fn an_unknown_code_is_refused() {
        for format in ["%Q", "%", "%-"] {
            assert!(Clock::Fixed(0).strftime(format).is_err(), "{format}");
        }
    }
}
