//! A key's remaining rate limits, in the headers that OpenAI's clients read.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

use super::meter::{Rate, Rates};

const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

pub fn set_headers(rates: &Rates, response: &mut Response) {
    for (names, rate) in [(REQUESTS, rates.requests), (TOKENS, rates.tokens)] {
        let Some(Rate {
            limit,
            remaining,
            reset,
        }) = rate
        else {
            continue;
        };
        let [limit_name, remaining_name, reset_name] = names;
        let headers = response.headers_mut();
        headers.insert(limit_name, HeaderValue::from(limit));
        headers.insert(remaining_name, HeaderValue::from(remaining));
        if let Ok(reset) = HeaderValue::from_str(&format_duration(reset)) {
            headers.insert(reset_name, reset);
        }
    }
}

/// As OpenAI writes them: `20ms`, `7s`, `1m30s`.
fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().ceil() as u64;
    match seconds {
        0 => "0s".to_owned(),
        1 if duration < Duration::from_secs(1) => format!("{}ms", duration.as_millis().max(1)),
        1..60 => format!("{seconds}s"),
        _ => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

#[test]
fn durations_are_formatted_like_openais() {
    for (milliseconds, written) in [
        (0, "0s"),
        (20, "20ms"),
        (1000, "1s"),
        (6500, "7s"),
        (60_000, "1m0s"),
        (90_000, "1m30s"),
    ] {
        assert_eq!(
            format_duration(Duration::from_millis(milliseconds)),
            written
        );
    }
}
