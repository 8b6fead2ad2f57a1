//! Parses the JSON of request bodies within a memory limit, large ones off the async threads.

use bytes::Bytes;
use serde_json::Value;

use crate::error::{ApiError, ErrorKind};
use crate::lowering;

/// Parsing a body of this size takes less time than handing it to another thread is worth.
const INLINE_BYTES: usize = 64 << 10;

/// The most memory of a parsed body. Deep nesting is refused by serde_json, at 128 levels.
const MAX_MEMORY: usize = 256 << 20;

/// The memory of a value and of a field's name, besides their text: [`Value`] and what growing lists
/// and maps leave unused.
const VALUE_BYTES: usize = 2 * size_of::<Value>();
const FIELD_BYTES: usize = 128;

/// Runs `read` on a body: inline if it is small, otherwise on the blocking pool.
pub async fn read_with<T: Send + 'static>(
    bytes: Bytes,
    read: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes.len() <= INLINE_BYTES {
        return read(&bytes);
    }
    lowering::run(move || read(&bytes)).await
}

/// Parses JSON, unless it would take too much memory.
pub fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    if memory_estimate(bytes) > MAX_MEMORY {
        let message = format!(
            "the request body has too many values: parsed, it takes more than {} MiB",
            MAX_MEMORY >> 20
        );
        let error = ApiError::new(ErrorKind::TooLarge, message);
        return Err(error.code("request_too_large"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the request body is not valid JSON: {error}");
        ApiError::bad_request(message).code("invalid_json")
    })
}

/// The memory of the parsed values, from above. Every value but the first follows a comma, a colon or
/// a bracket, and every field's name ends at a colon.
fn memory_estimate(bytes: &[u8]) -> usize {
    let (mut values, mut fields) = (1, 0);
    let mut in_string = false;
    let mut escaped = false;
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b',' | b'[' | b'{' => values += 1,
            b':' => fields += 1,
            _ => {}
        }
    }
    bytes.len() + values * VALUE_BYTES + fields * FIELD_BYTES
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Poll;

    use axum::http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::testing::Harness;

    #[test]
    fn estimate_counts_values_outside_strings() {
        let cost = |values: usize, fields: usize| values * VALUE_BYTES + fields * FIELD_BYTES;
        for (json, values, fields) in [
            ("1", 1, 0),
            ("[1,2,3]", 4, 0),
            (r#"{"a":1,"b":[]}"#, 4, 2),
            (r#""[,:\",{""#, 1, 0),
        ] {
            let expected = json.len() + cost(values, fields);
            assert_eq!(memory_estimate(json.as_bytes()), expected, "{json}");
        }
    }

    #[test]
    fn body_with_too_many_values_is_refused() {
        let body = format!("[{}0]", "0,".repeat(MAX_MEMORY / VALUE_BYTES));
        let error = parse(body.as_bytes()).expect_err("too large");
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(
            error.message.contains("too many values"),
            "{}",
            error.message
        );
        let text = format!("\"{}\"", ",".repeat(MAX_MEMORY / VALUE_BYTES));
        assert!(parse(text.as_bytes()).is_ok(), "a text is one value");
    }

    /// Occupies the only blocking thread, so that a body can be parsed on an async thread only.
    #[test]
    fn large_bodies_are_not_parsed_on_async_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let server = Harness::saying("hello");
            let (release, blocked) = mpsc::channel::<()>();
            let blocker = tokio::task::spawn_blocking(move || blocked.recv());
            let body = json!({ "prompt": "a".repeat(INLINE_BYTES), "unknown": 1 });
            let mut reply = Box::pin(server.post("/v1/completions", &body));
            for _ in 0..100 {
                let polled = futures_util::poll!(&mut reply);
                assert!(matches!(polled, Poll::Pending), "it is parsed inline");
                let other = server.get("/health").await;
                assert_eq!(other.status(), StatusCode::OK);
            }
            drop(release);
            reply.await;
            let _ = blocker.await;
        });
    }
}
