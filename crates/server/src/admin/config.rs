//! The configuration in force, and reading it again.

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

/// What came of reading the configuration again.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminReloaded {
    /// Options that changed and are in force now.
    applied: Vec<String>,
    /// Options that changed and need a restart; until then they are as before.
    needs_restart: Vec<String>,
}

/// The configuration in force, without secrets.
#[utoipa::path(
    get,
    path = "/admin/v1/config",
    tag = "admin",
    responses((status = 200, description = "Options by section, as in the file", body = Object))
)]
pub async fn get(State(app): State<Arc<App>>) -> Json<Value> {
    Json(config::in_force(&app.config()))
}

/// Reads the configuration again, from where it was read at the start, and puts it in force as
/// far as that goes without a restart. Models that changed end their requests first. One that
/// cannot be read changes nothing.
#[utoipa::path(
    post,
    path = "/admin/v1/config/reload",
    tag = "admin",
    responses(
        (status = 200, description = "It was read", body = AdminReloaded),
        (status = 409, description = "It cannot be read; the message says where it is wrong"),
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
