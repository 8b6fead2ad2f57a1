//! Dates and times that exist. llguidance's own formats admit 29 February in every year, the year
//! 0 and a sixtieth second at any time, which validators refuse.

const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])\
                         |(?:0[48]|[2468][048]|[13579][26])00)";
const LONG_MONTH: &str = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])";
const SHORT_MONTH: &str = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)";
const FEBRUARY: &str = "02-(?:0[1-9]|1[0-9]|2[0-8])";
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// The pattern of a format that is about dates or times.
pub(super) fn pattern(format: &str) -> Option<String> {
    let date = format!("(?:{YEAR}-(?:{LONG_MONTH}|{SHORT_MONTH}|{FEBRUARY})|{LEAP_YEAR}-02-29)");
    match format {
        "date" => Some(format!("^{date}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{date}T{TIME}$")),
        _ => None,
    }
}
