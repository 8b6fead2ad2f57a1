//! Shows, loads, unloads, drains and reloads models.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::Uri;
use bytes::Bytes;
use loquat_engine::Stats;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, IntoResponses, ToSchema};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;
use crate::metrics::since_1970;
use crate::models::{AdapterStatus, ModelState, ModelStatus};
use crate::wire::{self, WireRequest};

/// How long cancelled requests may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// All models of the configuration.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminModels {
    /// Memory limit of all models together, in bytes; idle models are unloaded to make room. Null
    /// for no limit.
    memory_bytes: Option<u64>,
    /// In the configuration's order.
    models: Vec<AdminModel>,
}

/// A configured model and its state.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminModel {
    /// The name in requests.
    name: String,
    /// Further names.
    aliases: Vec<String>,
    /// `unloaded` (the next request loads it), `loading`, `ready`, `draining` (unloads when its
    /// requests have ended), `drained` (out of service until it is loaded) or `failed`.
    state: &'static str,
    /// When it became `loading` or `failed`, in seconds since 1970.
    since: Option<f64>,
    /// Why it failed, or why its files cannot be read.
    problem: Option<String>,
    /// The memory it uses, or would use, in bytes.
    resident_bytes: Option<u64>,
    /// In seconds since 1970.
    last_used: Option<f64>,
    /// When it will be unloaded if it stays idle, in seconds since 1970.
    expires: Option<f64>,
    /// Requests that use it now.
    in_use: usize,
    /// Its adapters.
    adapters: Vec<AdminAdapter>,
    /// Null if its files cannot be read.
    details: Option<AdminModelDetails>,
    /// Its activity while it is loaded.
    activity: Option<AdminActivity>,
}

/// An adapter and its state.
#[derive(Debug, Serialize, ToSchema)]
struct AdminAdapter {
    name: String,
    /// llama.cpp's number for it.
    id: usize,
    /// Never unloaded for another.
    pinned: bool,
    loaded: bool,
    /// Requests that use it now.
    in_use: usize,
}

/// A model's properties.
#[derive(Debug, Serialize, ToSchema)]
struct AdminModelDetails {
    /// As the checkpoint's `model_type`.
    family: String,
    /// `gguf`, `safetensors` or `mlx`.
    format: String,
    quantization: String,
    parameters: u64,
    /// Of its files, in bytes.
    size_bytes: u64,
    backend: String,
    device: String,
    /// Longest context, in tokens.
    context: usize,
}

/// The activity of a model's engine.
#[derive(Debug, Serialize, ToSchema)]
struct AdminActivity {
    /// Running choices.
    running: usize,
    /// Queued choices.
    waiting: usize,
    /// Choices whose clients read too slowly.
    paused: usize,
    /// KV capacity in tokens.
    kv_capacity_tokens: usize,
    /// KV tokens of requests and cached prefixes.
    kv_used_tokens: usize,
    /// Cached prefixes.
    cached_prefixes: usize,
    /// Their memory in bytes.
    cached_bytes: u64,
    prompt_tokens_per_second: f64,
    generation_tokens_per_second: f64,
}

/// How to unload a model.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminTakeDown {
    /// How long running requests may continue, in seconds, before they are cancelled. Defaults to
    /// the server's shutdown timeout.
    patience: Option<f64>,
}

impl WireRequest for AdminTakeDown {}

impl AdminTakeDown {
    fn patience(body: &[u8], app: &App) -> Result<Duration, ApiError> {
        let Self { patience } = wire::parse_optional(body)?;
        self::patience(patience, app)
    }
}

/// How long requests may continue: the server's shutdown timeout unless set.
pub(super) fn patience(seconds: Option<f64>, app: &App) -> Result<Duration, ApiError> {
    match seconds {
        None => Ok(app.config().server.shutdown_timeout),
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
            ApiError::invalid(Field::Patience, "must be a number of seconds, at least 0")
        }),
    }
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "described, not built")]
struct ModelPath {
    /// Its name or an alias; slashes need no escaping
    name: String,
}

#[derive(IntoResponses)]
#[response(status = 409, description = "Cancelled requests have not ended yet")]
struct StillInUse;

/// Lists all models and their state.
#[utoipa::path(
    get,
    path = "/admin/v1/models",
    tag = "admin",
    responses((status = 200, description = "All models", body = AdminModels))
)]
pub async fn list(State(app): State<Arc<App>>) -> Json<AdminModels> {
    let models = app.models.list().await;
    Json(AdminModels {
        memory_bytes: app.config().memory,
        models: models.into_iter().map(describe).collect(),
    })
}

/// Shows a model and its state.
#[utoipa::path(
    get,
    path = "/admin/v1/models/{name}",
    tag = "admin",
    params(ModelPath),
    responses((status = 200, description = "The model", body = AdminModel))
)]
pub async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<AdminModel>, ApiError> {
    show(&app, &name).await
}

/// Runs the action in the last segment of the path.
pub async fn act(
    State(app): State<Arc<App>>,
    Path(tail): Path<String>,
    uri: Uri,
    body: Bytes,
) -> Result<Json<AdminModel>, ApiError> {
    let (name, action) = tail.rsplit_once('/').unwrap_or((&tail, ""));
    // The action continues if the client disconnects.
    let (app, name) = (Arc::clone(&app), name.to_owned());
    let done = match action {
        "load" => tokio::spawn(load(app, name, body)),
        "unload" => tokio::spawn(unload(app, name, body)),
        "drain" => tokio::spawn(drain(app, name, body)),
        "reload" => tokio::spawn(reload(app, name, body)),
        _ => {
            let what = format!(
                "nothing is served at `{}`; a model's name is followed by load, unload, drain or \
                reload",
                uri.path()
            );
            return Err(ApiError::new(ErrorKind::NotFound, what));
        }
    };
    done.await
        .unwrap_or_else(|error| Err(ApiError::internal(&error)))
}

/// Loads a model and waits until it is ready. Also retries a failed or drained model.
#[utoipa::path(
    post,
    path = "/admin/v1/models/{name}/load",
    tag = "admin",
    params(ModelPath),
    responses((status = 200, description = "The loaded model", body = AdminModel))
)]
pub async fn load(app: Arc<App>, name: String, body: Bytes) -> Result<Json<AdminModel>, ApiError> {
    no_body(&body)?;
    drop(app.models.load(&name).await?);
    show(&app, &name).await
}

/// Unloads a model when its requests have ended, and waits for that. Requests that arrive meanwhile
/// wait and load it again.
#[utoipa::path(
    post,
    path = "/admin/v1/models/{name}/unload",
    tag = "admin",
    params(ModelPath),
    request_body(content = Option<AdminTakeDown>, description = "Optional"),
    responses((status = 200, description = "The unloaded model", body = AdminModel), StillInUse)
)]
pub async fn unload(
    app: Arc<App>,
    name: String,
    body: Bytes,
) -> Result<Json<AdminModel>, ApiError> {
    take_down(&app, &name, &body, app.models.unload(&name)).await?;
    show(&app, &name).await
}

/// Takes a model out of service: refuses new requests, and unloads it when running ones have ended.
/// It stays out of service until it is loaded.
#[utoipa::path(
    post,
    path = "/admin/v1/models/{name}/drain",
    tag = "admin",
    params(ModelPath),
    request_body(content = Option<AdminTakeDown>, description = "Optional"),
    responses((status = 200, description = "The drained model", body = AdminModel), StillInUse)
)]
pub async fn drain(app: Arc<App>, name: String, body: Bytes) -> Result<Json<AdminModel>, ApiError> {
    take_down(&app, &name, &body, app.models.drain(&name)).await?;
    show(&app, &name).await
}

/// Unloads a model when its requests have ended, and loads it again from its files. Requests that
/// arrive meanwhile wait.
#[utoipa::path(
    post,
    path = "/admin/v1/models/{name}/reload",
    tag = "admin",
    params(ModelPath),
    request_body(content = Option<AdminTakeDown>, description = "Optional"),
    responses((status = 200, description = "The reloaded model", body = AdminModel), StillInUse)
)]
pub async fn reload(
    app: Arc<App>,
    name: String,
    body: Bytes,
) -> Result<Json<AdminModel>, ApiError> {
    take_down(&app, &name, &body, app.models.unload(&name)).await?;
    drop(app.models.load(&name).await?);
    show(&app, &name).await
}

/// Waits for the model's requests, and cancels those that exceed the limit.
async fn take_down(
    app: &App,
    name: &str,
    body: &[u8],
    down: impl Future<Output = Result<(), ApiError>>,
) -> Result<(), ApiError> {
    let patience = AdminTakeDown::patience(body, app)?;
    let id = app.models.resolve_name(name)?;
    let mut down = std::pin::pin!(down);
    if let Ok(done) = tokio::time::timeout(patience, &mut down).await {
        return done;
    }
    let in_flight = app.in_flight.list();
    let of_model = in_flight.iter().filter(|entry| entry.model == id);
    of_model.for_each(|entry| entry.cancel());
    let done = tokio::time::timeout(GRACE, down).await;
    done.unwrap_or_else(|_| Err(still_there(app, &id)))
}

/// Why a model is not unloaded yet.
pub(super) fn still_there(app: &App, id: &str) -> ApiError {
    let loading = app
        .models
        .status()
        .into_iter()
        .any(|model| model.name == id && matches!(model.state, ModelState::Loading { .. }));
    let (what, code) = if loading {
        ("is still being loaded; it goes when it is", "model_loading")
    } else {
        (
            "is still in use; it goes when its requests have ended",
            "model_in_use",
        )
    };
    let what = format!("the model `{id}` {what}");
    ApiError::new(ErrorKind::Conflict, what).code(code)
}

fn no_body(body: &[u8]) -> Result<(), ApiError> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    impl WireRequest for Nothing {}
    let Nothing {} = wire::parse_optional(body)?;
    Ok(())
}

async fn show(app: &App, name: &str) -> Result<Json<AdminModel>, ApiError> {
    app.models.show(name).await.map(describe).map(Json)
}

fn describe(status: ModelStatus) -> AdminModel {
    let ModelStatus {
        name,
        aliases,
        state,
        info,
        problem,
        resident_bytes,
        last_used,
        expires,
        leases,
        adapters,
        stats,
    } = status;
    let details = info.map(|info| AdminModelDetails {
        family: info.family.clone(),
        format: info.format.clone(),
        quantization: info.quantization.clone(),
        parameters: info.parameters,
        size_bytes: info.size_bytes,
        backend: info.backend.clone(),
        device: info.device.clone(),
        context: info.context,
    });
    let (word, since, failure) = match state {
        ModelState::Loading { since } => ("loading", Some(since), None),
        ModelState::Failed { why, since } => ("failed", Some(since), Some(why)),
        state => (state.name(), None, None),
    };
    AdminModel {
        name,
        aliases,
        state: word,
        since: since.map(since_1970),
        problem: failure.or(problem),
        resident_bytes,
        last_used: last_used.map(since_1970),
        expires: expires.map(since_1970),
        in_use: leases,
        adapters: adapters.into_iter().map(describe_adapter).collect(),
        details,
        activity: stats.as_ref().map(activity),
    }
}

fn describe_adapter(status: AdapterStatus) -> AdminAdapter {
    AdminAdapter {
        name: status.name,
        id: status.number,
        pinned: status.pinned,
        loaded: status.loaded,
        in_use: status.in_use,
    }
}

fn activity(stats: &Stats) -> AdminActivity {
    AdminActivity {
        running: stats.running,
        waiting: stats.waiting,
        paused: stats.paused,
        kv_capacity_tokens: stats.memory.kv_capacity,
        kv_used_tokens: stats.memory.kv_in_use,
        cached_prefixes: stats.cache.entries,
        cached_bytes: stats.cache.bytes,
        prompt_tokens_per_second: stats.prompt_speed,
        generation_tokens_per_second: stats.decode_speed,
    }
}
