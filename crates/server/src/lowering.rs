//! Lowering off the async threads.

use crate::error::ApiError;

/// Runs the lowering of a request on the blocking pool. Rendering templates, tokenizing and
/// compiling grammars take time in proportion to the request, and would stall every connection
/// that shares the async thread.
pub async fn run<T: Send + 'static>(
    lower: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let lowered = tokio::task::spawn_blocking(lower).await;
    lowered.map_err(|error| ApiError::internal(&error))?
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Poll;

    use axum::http::StatusCode;
    use serde_json::json;

    use crate::testing::{Harness, MODEL};

    /// Occupies the only blocking thread, so that a lowering can run on an async thread only.
    #[test]
    fn no_endpoint_lowers_on_async_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let chat = json!([{ "role": "user", "content": "hi" }]);
        // The lowering of each request fails.
        let requests = [
            (
                "/v1/chat/completions",
                json!({ "messages": chat, "top_k": "x" }),
            ),
            ("/v1/completions", json!({ "prompt": "hi", "top_k": "x" })),
            ("/v1/responses", json!({ "input": "hi", "top_k": "x" })),
            ("/v1/embeddings", json!({ "input": [999_999_999] })),
            (
                "/v1/messages",
                json!({ "model": MODEL, "max_tokens": 9, "messages": chat, "top_k": "x" }),
            ),
            (
                "/v1/messages/count_tokens",
                json!({ "model": MODEL, "messages": [] }),
            ),
            (
                "/api/chat",
                json!({ "model": MODEL, "messages": chat, "options": { "top_k": "x" } }),
            ),
            (
                "/api/generate",
                json!({ "model": MODEL, "prompt": "hi", "options": { "top_k": "x" } }),
            ),
            (
                "/api/embed",
                json!({ "model": MODEL, "input": "hi", "options": { "top_k": "x" } }),
            ),
            ("/tokenize", json!({ "messages": [] })),
            ("/detokenize", json!({ "tokens": [999_999_999] })),
        ];
        runtime.block_on(async {
            let server = Harness::saying("hello");
            let warm_up = json!({ "prompt": "hi" });
            let reply = server.post("/v1/completions", &warm_up).await;
            assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
            for (path, body) in requests {
                let (release, blocked) = mpsc::channel::<()>();
                let blocker = tokio::task::spawn_blocking(move || blocked.recv());
                let mut reply = Box::pin(server.post(path, &body));
                for _ in 0..100 {
                    let polled = futures_util::poll!(&mut reply);
                    assert!(matches!(polled, Poll::Pending), "{path} lowers inline");
                    // Other requests are served meanwhile.
                    let other = server.get("/health").await;
                    assert_eq!(other.status(), StatusCode::OK, "{path}");
                }
                drop(release);
                let reply = reply.await;
                assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
                let _ = blocker.await;
            }
        });
    }
}
