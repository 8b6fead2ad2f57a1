//! Sends traces to a collector by OTLP over plain HTTP.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Uri;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

use super::TelemetryError;

const PATIENCE: Duration = Duration::from_secs(10);
/// Collectors' responses are nearly empty.
const LONGEST_ANSWER: usize = 64 << 10;

/// The URL for traces. An endpoint with a path is used unchanged.
pub fn traces_url(endpoint: &str) -> Result<String, TelemetryError> {
    let wrong = || TelemetryError::Endpoint {
        endpoint: endpoint.to_owned(),
    };
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    Ok(match uri.path() {
        "/" => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
        _ => endpoint.to_owned(),
    })
}

/// Sends on the server's runtime, since the thread that batches spans has none.
#[derive(Clone)]
pub struct Collector {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
    /// Logs an unreachable collector once instead of once per batch.
    unreachable: Arc<AtomicBool>,
}

impl Collector {
    pub fn new() -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            runtime: Handle::current(),
            unreachable: Arc::default(),
        }
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.client.request(request.map(Full::new));
        let whole = async {
            let (head, body) = sent.await?.into_parts();
            let body = Limited::new(body, LONGEST_ANSWER).collect().await?;
            Ok::<_, HttpError>(Response::from_parts(head, body.to_bytes()))
        };
        tokio::time::timeout(PATIENCE, whole).await?
    }

    /// Logs when the collector becomes unreachable or reachable.
    fn log_change(&self, outcome: &Result<Response<Bytes>, HttpError>) {
        let why = match outcome {
            Ok(response) if response.status().is_success() => {
                if self.unreachable.swap(false, Ordering::Relaxed) {
                    tracing::info!("the collector is reachable again");
                }
                return;
            }
            Ok(response) => format!("it answers {}", response.status()),
            Err(error) => error.to_string(),
        };
        if !self.unreachable.swap(true, Ordering::Relaxed) {
            tracing::warn!("cannot send traces to the collector: {why}");
        }
    }
}

impl HttpClient for Collector {
    fn send_bytes<'me, 'sent>(
        &'me self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'me: 'sent,
    {
        let this = self.clone();
        let sent = self.runtime.spawn(async move {
            let outcome = this.send(request).await;
            this.log_change(&outcome);
            outcome
        });
        Box::pin(async move { sent.await? })
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_completed_or_refused() {
        for (given, expected) in [
            (
                "http://127.0.0.1:4318",
                Some("http://127.0.0.1:4318/v1/traces"),
            ),
            (
                "http://collector:4318/",
                Some("http://collector:4318/v1/traces"),
            ),
            (
                "http://collector/otlp/traces",
                Some("http://collector/otlp/traces"),
            ),
            ("https://collector:4318", None),
            ("127.0.0.1:4318", None),
            ("collector", None),
            ("http://", None),
            ("", None),
        ] {
            let url = traces_url(given);
            assert_eq!(url.as_deref().ok(), expected, "{given}");
        }
    }
}
