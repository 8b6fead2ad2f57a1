//! Lowering off the async threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use loquat_chat::{ChatContext, ChatError, ChatRequest};
use loquat_text::TextError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::Span;

use crate::error::ApiError;
use crate::models::Lease;
use crate::text_size::{chat_bytes, has_media};

/// Texts that may be tokenized at once, in KiB. The tokenizer takes about a hundred times their size.
static TEXT_BUDGET: Semaphore = Semaphore::const_new(TEXT_BUDGET_KIB);
const TEXT_BUDGET_KIB: usize = 8 << 10;

/// Shorter texts do not wait for longer ones.
const SHORT_TEXT_KIB: usize = 256;

/// Requests whose images are decoded and preprocessed at once, each in some hundred MiB.
static MEDIA_BUDGET: Semaphore = Semaphore::const_new(2);

/// Runs the lowering of a request on the blocking pool. Rendering templates, tokenizing and
/// compiling grammars take time in proportion to the request, and would stall every connection
/// that shares the async thread. Nothing runs if the client leaves before it begins.
pub async fn run<T: Send + 'static>(
    lower: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    run_stoppable(move |_| lower()).await
}

/// The same for a text of this size: large texts take turns, so that their memory is bounded.
pub async fn run_text<T: Send + 'static>(
    bytes: usize,
    lower: impl FnOnce(&StopFlag) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = text_permit(bytes).await?;
    run_stoppable(move |stop| {
        // Held until the work ends, even if the client leaves.
        let _permit = permit;
        lower(stop)
    })
    .await
}

/// The same for a conversation. Refuses one that cannot fit, before it is rendered.
pub async fn run_chat<T: Send + 'static>(
    lease: &Lease,
    request: ChatRequest,
    work: impl FnOnce(&ChatContext, ChatRequest, &StopFlag) -> Result<T, ChatError> + Send + 'static,
) -> Result<T, ApiError> {
    let bytes = chat_bytes(&request);
    lease.check_text(bytes)?;
    let chat = lease.chat_context().clone();
    run_media(has_media(&request), bytes, move |stop| {
        Ok(work(&chat, request, stop)?)
    })
    .await
}

/// The same for a text that may have media, which few requests decode at once.
pub async fn run_media<T: Send + 'static>(
    has_media: bool,
    bytes: usize,
    lower: impl FnOnce(&StopFlag) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = if has_media {
        let permit = MEDIA_BUDGET.acquire().await;
        Some(permit.map_err(|error| ApiError::internal(&error))?)
    } else {
        None
    };
    run_text(bytes, move |stop| {
        let _permit = permit;
        lower(stop)
    })
    .await
}

async fn text_permit(bytes: usize) -> Result<Option<SemaphorePermit<'static>>, ApiError> {
    let kib = bytes >> 10;
    if kib < SHORT_TEXT_KIB {
        return Ok(None);
    }
    let share = u32::try_from(kib.min(TEXT_BUDGET_KIB)).unwrap_or(u32::MAX);
    let permit = TEXT_BUDGET.acquire_many(share).await;
    permit.map(Some).map_err(|error| ApiError::internal(&error))
}

/// The same, with a flag that is set when the client leaves.
pub async fn run_stoppable<T: Send + 'static>(
    work: impl FnOnce(&StopFlag) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let waiting = Waiting(StopFlag::default());
    let stop = waiting.0.clone();
    // The log names the request whose work fails.
    let span = Span::current();
    let done = tokio::task::spawn_blocking(move || {
        span.in_scope(|| {
            stop.check()?;
            work(&stop)
        })
    });
    done.await.map_err(|error| ApiError::internal(&error))?
}

/// Whether the client that waits for the work has left.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether nobody waits for the result, for work that asks again and again.
    pub fn signal(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let flag = Arc::clone(&self.0);
        move || flag.load(Ordering::Relaxed)
    }

    /// An error once nobody waits for the result. Nobody sees the error either.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.0.load(Ordering::Relaxed) {
            Err(ApiError::overloaded("the client has left"))
        } else {
            Ok(())
        }
    }
}

/// The error of a text that cannot be tokenized.
pub fn encoding_error(error: &TextError) -> ApiError {
    match error {
        TextError::Interrupted => ApiError::overloaded("the client has left"),
        error => ApiError::internal(error),
    }
}

/// Sets the flag when it is dropped.
struct Waiting(StopFlag);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Poll;
    use std::time::Duration;

    use axum::http::StatusCode;
    use loquat_text::{FimPrompt, Special};
    use serde_json::json;
    use tracing::instrument::WithSubscriber;
    use tracing::{Dispatch, Instrument};

    use super::*;
    use crate::field::Field;
    use crate::fill_in::fill_in;
    use crate::testing::{Harness, MODEL, Scripted, tokenizer};

    #[tokio::test]
    async fn work_belongs_to_the_span_of_its_request() {
        let dispatch = Dispatch::new(tracing_subscriber::registry());
        let request =
            tracing::dispatcher::with_default(&dispatch, || tracing::info_span!("request"));
        let of_thread = dispatch.clone();
        let current = run(move || {
            Ok(tracing::dispatcher::with_default(&of_thread, || {
                Span::current().id()
            }))
        });
        let current = current.instrument(request.clone());
        let current = current.with_subscriber(dispatch).await.expect("no error");
        assert!(current.is_some());
        assert_eq!(current, request.id());
    }

    #[tokio::test]
    async fn work_stops_when_the_client_leaves() {
        let (begun, begins) = mpsc::channel();
        let (stopped, stops) = mpsc::channel();
        let client = tokio::spawn(run_text(0, move |stop: &StopFlag| {
            begun.send(()).expect("the test waits");
            while stop.check().is_ok() {
                std::thread::yield_now();
            }
            stopped.send(()).expect("the test waits");
            Ok(())
        }));
        let begins = tokio::task::spawn_blocking(move || begins.recv());
        begins.await.expect("no panic").expect("it begins");
        client.abort();
        let stops = tokio::task::spawn_blocking(move || stops.recv());
        stops.await.expect("no panic").expect("it stops");
    }

    #[tokio::test]
    async fn tokenizing_stops_when_the_client_leaves() {
        let (begun, begins) = mpsc::channel();
        let (stopped, stops) = mpsc::channel();
        let client = tokio::spawn(run_text(0, move |stop: &StopFlag| {
            let is_unwanted = stop.signal();
            let tokenizer = tokenizer().interruptible(move || {
                begun.send(()).ok();
                is_unwanted()
            });
            // Endless, unless it is interrupted.
            let error = loop {
                if let Err(error) = tokenizer.encode("some words", Special::PLAIN) {
                    break error;
                }
            };
            stopped
                .send(encoding_error(&error).kind)
                .expect("the test waits");
            Ok(())
        }));
        let begins = tokio::task::spawn_blocking(move || begins.recv().map(|()| begins));
        let _begins = begins.await.expect("no panic").expect("it begins");
        client.abort();
        let stops = tokio::task::spawn_blocking(move || stops.recv());
        let kind = stops.await.expect("no panic").expect("it stops");
        assert_eq!(kind, crate::error::ErrorKind::Overloaded);
    }

    #[tokio::test]
    async fn large_texts_take_turns() {
        let large = TEXT_BUDGET_KIB << 10;
        let first = text_permit(large).await.expect("room");
        let mut second = Box::pin(text_permit(large));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(text_permit(1000).await.expect("short").is_none());
        drop(first);
        assert!(second.await.expect("room").is_some());
    }

    /// Requests with a large text, for each way to tokenize it.
    fn large_requests() -> Vec<(&'static str, serde_json::Value)> {
        let text = "word ".repeat(((SHORT_TEXT_KIB + 16) << 10) / 5);
        let chat = json!([{ "role": "user", "content": text }]);
        vec![
            ("/v1/chat/completions", json!({ "messages": chat })),
            ("/v1/completions", json!({ "prompt": text })),
            ("/v1/completions", json!({ "prompt": "a", "suffix": text })),
            ("/v1/responses", json!({ "input": text })),
            ("/v1/embeddings", json!({ "input": text })),
            (
                "/v1/messages",
                json!({ "model": MODEL, "max_tokens": 9, "messages": chat }),
            ),
            (
                "/v1/messages/count_tokens",
                json!({ "model": MODEL, "messages": chat }),
            ),
            ("/api/chat", json!({ "model": MODEL, "messages": chat })),
            ("/api/generate", json!({ "model": MODEL, "prompt": text })),
            (
                "/api/generate",
                json!({ "model": MODEL, "prompt": text, "raw": true }),
            ),
            (
                "/api/generate",
                json!({ "model": MODEL, "prompt": "a", "suffix": text }),
            ),
            ("/api/embed", json!({ "model": MODEL, "input": text })),
            ("/completion", json!({ "prompt": text })),
            (
                "/infill",
                json!({ "input_prefix": "a", "input_suffix": text }),
            ),
            ("/apply-template", json!({ "messages": chat })),
            ("/tokenize", json!({ "prompt": text })),
            ("/tokenize", json!({ "content": text })),
            ("/tokenize", json!({ "messages": chat })),
        ]
    }

    #[tokio::test]
    async fn large_texts_of_every_route_take_turns() {
        // The text's tokens exceed the context, so each request ends as soon as they are counted.
        let model = Scripted {
            context: 64 << 10,
            fim: true,
            ..Scripted::new("hello")
        };
        let server = Harness::with(model, Harness::config());
        let requests = large_requests();
        let all = text_permit(TEXT_BUDGET_KIB << 10).await.expect("room");
        let mut replies: Vec<_> = requests
            .iter()
            .map(|(path, body)| Box::pin(server.post(path, body)))
            .collect();
        let end = tokio::time::Instant::now() + Duration::from_secs(1);
        while tokio::time::Instant::now() < end {
            for (reply, (path, body)) in replies.iter_mut().zip(&requests) {
                let fields: Vec<_> = body.as_object().expect("an object").keys().collect();
                let polled = futures_util::poll!(reply);
                assert!(polled.is_pending(), "{path} with {fields:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(all);
        // Together: a reply that nobody polls would keep its turn.
        for reply in futures_util::future::join_all(replies).await {
            assert_ne!(reply.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    #[tokio::test]
    async fn filling_in_stops_when_the_client_leaves() {
        let model = Scripted {
            fim: true,
            ..Scripted::new("hello")
        };
        let server = Harness::with(model, Harness::config());
        let lease = server.app.models.lease(MODEL).await.expect("the model");
        let left = StopFlag(Arc::new(AtomicBool::new(true)));
        let prompt = FimPrompt {
            prefix: "some words",
            suffix: "",
            files: &[],
        };
        let error = fill_in(&lease, Field::Suffix, prompt, &left).err();
        let kind = error.map(|error| error.kind);
        assert_eq!(kind, Some(crate::error::ErrorKind::Overloaded));
    }

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
            ("/apply-template", json!({ "messages": [] })),
            (
                "/infill",
                json!({ "input_prefix": "a", "input_suffix": "b" }),
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
