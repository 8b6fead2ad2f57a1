//! Keys and their usage. Neither keys nor hashes are shown.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::{Key, KeyUsage};
use crate::config;

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminKeys {
    /// In the configuration's order.
    keys: Vec<AdminKey>,
}

/// A key of the configuration.
#[derive(Debug, Serialize, ToSchema)]
struct AdminKey {
    name: String,
    /// `inference`, `metrics`, `manage`, `admin`.
    scopes: Vec<&'static str>,
    /// Models it may use; null for all.
    models: Option<Vec<String>>,
    /// Null for no limit.
    requests_per_minute: Option<u32>,
    /// Prompt and completion together; null for no limit.
    tokens_per_minute: Option<u32>,
    /// Concurrent requests; null for no limit.
    concurrent: Option<u32>,
    usage: AdminKeyUsage,
}

/// A key's usage since the server started.
#[derive(Debug, Serialize, ToSchema)]
struct AdminKeyUsage {
    /// Admitted requests.
    requests: u64,
    /// Requests refused by a limit.
    refused: u64,
    /// Running requests.
    running: u32,
    prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    cached_tokens: u64,
    completion_tokens: u64,
}

/// Lists all keys and their usage.
#[utoipa::path(
    get,
    path = "/admin/v1/keys",
    tag = "admin",
    responses((status = 200, description = "All keys", body = AdminKeys))
)]
pub async fn list(State(app): State<Arc<App>>) -> Json<AdminKeys> {
    let keys = app.keys.list();
    Json(AdminKeys {
        keys: keys.iter().map(|key| describe(key)).collect(),
    })
}

fn describe(key: &Key) -> AdminKey {
    let config::Key {
        name,
        hash: _,
        scopes,
        models,
        requests_per_minute,
        tokens_per_minute,
        concurrent,
    } = &key.settings;
    AdminKey {
        name: name.clone(),
        scopes: scopes.iter().map(|scope| scope.name()).collect(),
        models: models.clone(),
        requests_per_minute: *requests_per_minute,
        tokens_per_minute: *tokens_per_minute,
        concurrent: *concurrent,
        usage: usage(key.usage()),
    }
}

fn usage(usage: KeyUsage) -> AdminKeyUsage {
    let KeyUsage {
        requests,
        refused,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        running,
    } = usage;
    AdminKeyUsage {
        requests,
        refused,
        running,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
    }
}
