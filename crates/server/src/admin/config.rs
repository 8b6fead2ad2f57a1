//! Shows and reloads the configuration.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::app::App;
use crate::config;
use crate::error::{ApiError, ErrorKind};
use crate::reload::{Reconfigured, ReloadError};

/// The result of a reload.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminReloaded {
    /// Options that changed and apply now.
    applied: Vec<String>,
    /// Options that changed but need a restart.
    needs_restart: Vec<String>,
}

/// The effective configuration, without secrets.
#[utoipa::path(
    get,
    path = "/admin/v1/config",
    tag = "admin",
    responses((status = 200, description = "Options by section, as in the file", body = Object))
)]
pub async fn get(State(app): State<Arc<App>>) -> Json<Value> {
    Json(config::effective_json(&app.config()))
}

/// Reloads the configuration and applies what needs no restart. Changed models finish their requests
/// first. An invalid configuration changes nothing.
#[utoipa::path(
    post,
    path = "/admin/v1/config/reload",
    tag = "admin",
    responses(
        (status = 200, description = "Reloaded", body = AdminReloaded),
        (status = 409, description = "The configuration is invalid; the message says where"),
    )
)]
pub async fn reload(State(app): State<Arc<App>>) -> Result<Json<AdminReloaded>, ApiError> {
    let Reconfigured {
        applied,
        needs_restart,
    } = app.reload().await.map_err(refusal)?;
    Ok(Json(AdminReloaded {
        applied,
        needs_restart,
    }))
}

fn refusal(error: ReloadError) -> ApiError {
    let code = match error {
        ReloadError::NoSource => "no_configuration",
        ReloadError::Unreadable(_) | ReloadError::Tls(_) | ReloadError::LogLevel(_) => {
            "invalid_configuration"
        }
    };
    ApiError::new(ErrorKind::Conflict, error.to_string()).code(code)
}
