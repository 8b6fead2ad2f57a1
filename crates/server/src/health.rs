//! Whether the server lives, is ready, and what it is.

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
        .route("/health/live", get(live_by_its_name))
        .route("/health/ready", get(ready))
        .route("/version", get(version))
}

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`; of readiness also `loading` and `stopping`.
    status: &'static str,
    /// Models that are to be loaded at the start and are not yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending: Vec<String>,
}

impl Health {
    fn just(status: &'static str) -> Self {
        Self {
            status,
            pending: Vec::new(),
        }
    }
}

/// What is running.
#[derive(Debug, Serialize, ToSchema)]
pub struct Version {
    version: &'static str,
}

/// Whether the server answers at all; it does so while models load and while it stops.
#[utoipa::path(
    get,
    path = "/health",
    tag = "operating",
    responses((status = 200, description = "The server lives", body = Health))
)]
pub async fn live() -> Json<Health> {
    Json(Health::just("ok"))
}

/// The same as `/health`.
#[utoipa::path(
    get,
    path = "/health/live",
    tag = "operating",
    responses((status = 200, description = "The server lives", body = Health))
)]
pub async fn live_by_its_name() -> Json<Health> {
    live().await
}

/// Whether requests should be sent here: not before the models to be loaded at the start are
/// there, and not once the server stops.
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
        (StatusCode::SERVICE_UNAVAILABLE, Health::just("stopping"))
    } else if pending.is_empty() {
        (StatusCode::OK, Health::just("ok"))
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
    use crate::config::{Config, Model};
    use crate::testing::{Harness, MODEL, Scripted};

    #[tokio::test]
    async fn the_server_lives_before_it_is_ready_and_after() {
        let config = Config {
            models: vec![Model {
                preload: true,
                ..Model::new(MODEL, "nowhere")
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
    async fn the_version_is_the_packages() {
        let server = Harness::saying("hi");
        let version = server.get("/version").await.json();
        assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    }
}
