//! The prefix caches.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::error::ApiError;
use crate::wire::{self, WireRequest};

/// Which cache to clear.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminCacheClear {
    /// The model's name or an alias; all models if omitted.
    model: Option<String>,
}

impl WireRequest for AdminCacheClear {}

/// The result of clearing caches.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminCacheCleared {
    /// The loaded models whose caches were cleared.
    cleared: Vec<String>,
}

/// Clears the prefix cache. Running requests keep their prefixes.
#[utoipa::path(
    post,
    path = "/admin/v1/cache/clear",
    tag = "admin",
    request_body(content = Option<AdminCacheClear>, description = "Optional"),
    responses((status = 200, description = "The models whose caches were cleared", body = AdminCacheCleared))
)]
pub async fn clear(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<AdminCacheCleared>, ApiError> {
    let AdminCacheClear { model } = wire::parse_optional(&body)?;
    let meant = match model {
        Some(model) => vec![app.models.resolve_name(&model)?],
        None => app
            .models
            .status()
            .into_iter()
            .map(|status| status.name)
            .collect(),
    };
    let mut cleared = Vec::new();
    for model in meant {
        if app.models.clear_cache(&model)? {
            cleared.push(model);
        }
    }
    Ok(Json(AdminCacheCleared { cleared }))
}
