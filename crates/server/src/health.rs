//! Liveness, readiness and version.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(live))
        .route("/health/live", get(live_alias))
        .route("/health/ready", get(ready))
        .route("/version", get(version))
}

/// The server's health.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`; for readiness also `loading` and `stopping`.
    status: &'static str,
    /// Preloaded models that are still loading.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending: Vec<String>,
}

impl Health {
    fn with_status(status: &'static str) -> Self {
        Self {
            status,
            pending: Vec::new(),
        }
    }
}

/// The server's version.
#[derive(Debug, Serialize, ToSchema)]
pub struct Version {
    version: &'static str,
}

/// Liveness: answers also while models load and during shutdown.
#[utoipa::path(
    get,
    path = "/health",
    tag = "operating",
    responses((status = 200, description = "The server lives", body = Health))
)]
pub async fn live() -> Json<Health> {
    Json(Health::with_status("ok"))
}

/// The same as `/health`.
#[utoipa::path(
    get,
    path = "/health/live",
    tag = "operating",
    responses((status = 200, description = "The server lives", body = Health))
)]
pub async fn live_alias() -> Json<Health> {
    live().await
}

/// Readiness: fails until the preloaded models are loaded, and during shutdown.
#[utoipa::path(
    get,
    path = "/health/ready",
    tag = "operating",
    responses(
        (status = 200, description = "Requests are welcome", body = Health),
        (status = 503, description = "Not yet, or no more", body = Health),
    )
)]
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Health>) {
    let pending = app.models.pending();
    let (status, health) = if app.is_stopping() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            Health::with_status("stopping"),
        )
    } else if pending.is_empty() {
        (StatusCode::OK, Health::with_status("ok"))
    } else {
        let health = Health {
            status: "loading",
            pending: pending.into_iter().map(|model| model.name).collect(),
        };
        (StatusCode::SERVICE_UNAVAILABLE, health)
    };
    (status, Json(health))
}

/// Loquat's version.
#[utoipa::path(
    get,
    path = "/version",
    tag = "operating",
    responses((status = 200, description = "What is running", body = Version))
)]
pub async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, ModelConfig};
    use crate::testing::{Harness, MODEL, Scripted};

    #[tokio::test]
    async fn server_is_live_before_and_after_ready() {
        let config = Config {
            models: vec![ModelConfig {
                preload: true,
                ..ModelConfig::new(MODEL, "nowhere")
            }],
            ..Config::default()
        };
        let server = Harness::with(Scripted::new("hi"), config);
        let state = async || {
            for path in ["/health", "/health/live"] {
                assert_eq!(server.get(path).await.status(), StatusCode::OK);
            }
            let reply = server.get("/health/ready").await;
            (reply.status(), reply.json())
        };
        let (status, health) = state().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            health,
            serde_json::json!({ "status": "loading", "pending": [MODEL] })
        );
        server.app.models.preload();
        while !server.app.models.pending().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (status, health) = state().await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(health, serde_json::json!({ "status": "ok" }));
        server.app.traffic.stop();
        let (status, health) = state().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(health, serde_json::json!({ "status": "stopping" }));
    }

    #[tokio::test]
    async fn version_matches_package() {
        let server = Harness::saying("hi");
        let version = server.get("/version").await.json();
        assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    }
}
