//! What is served: `/api/tags`, `/api/show`, `/api/ps`, `/api/version`.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{known_as, time};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::{ModelInfo, ModelState, ModelStatus};
use crate::wire::{Body, Wire, name_ignored};

/// The version of Ollama whose interface this is: clients look at it for what they may use.
const SPOKEN: &str = "0.13.0";

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaTags {
    pub models: Vec<OllamaTag>,
}

/// A model that is served.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaTag {
    pub name: String,
    /// The same.
    pub model: String,
    /// Its files' time, in RFC 3339.
    pub modified_at: String,
    /// Of its files, in bytes.
    pub size: u64,
    /// Of what is known about the model, not of its files: another where they changed.
    pub digest: String,
    pub details: OllamaDetails,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaDetails {
    /// Always empty.
    pub parent_model: &'static str,
    /// `gguf`, `safetensors` or `mlx`.
    pub format: String,
    pub family: String,
    pub families: Vec<String>,
    /// Such as `134.5M`.
    pub parameter_size: String,
    /// Such as `Q4_1`.
    pub quantization_level: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaProcesses {
    pub models: Vec<OllamaProcess>,
}

/// A model that is loaded.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaProcess {
    pub name: String,
    /// The same.
    pub model: String,
    /// Memory that it takes, in bytes.
    pub size: u64,
    /// Of what is known about the model, not of its files: another where they changed.
    pub digest: String,
    pub details: OllamaDetails,
    /// When it is unloaded if nobody uses it until then, in RFC 3339; the year 9999 is never.
    pub expires_at: String,
    /// What of it is on an accelerator.
    pub size_vram: u64,
    pub context_length: usize,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaShowRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: Option<String>,
    /// Another name for `model`.
    pub name: Option<String>,
}

impl Wire for OllamaShowRequest {
    const IGNORED: &'static [(&'static str, &'static str)] =
        &[("verbose", "there is no more to tell")];
    const REFUSED: &'static [(&'static str, &'static str)] = &[
        ("system", "models are shown as they are"),
        ("template", "models are shown as they are"),
        ("options", "models are shown as they are"),
    ];
}

/// All about a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaShow {
    /// Models are configured otherwise here; the line that names it.
    pub modelfile: String,
    /// Sampling parameters that the configuration sets, a line each.
    pub parameters: String,
    /// The chat template, in Jinja.
    pub template: String,
    pub details: OllamaDetails,
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// Of `completion`, `tools`, `thinking`, `embedding`.
    pub capabilities: Vec<&'static str>,
    /// Its files' time, in RFC 3339.
    pub modified_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaVersion {
    /// The version of Ollama whose interface this is.
    pub version: &'static str,
}

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/tags", get(tags))
        .route("/api/show", post(show))
        .route("/api/ps", get(ps))
        .route("/api/version", get(version))
}

/// List the models
#[utoipa::path(
    get,
    path = "/api/tags",
    tag = "ollama",
    responses((status = 200, description = "The models that are served", body = OllamaTags)),
)]
pub async fn tags(State(app): State<Arc<App>>, caller: Caller) -> Json<OllamaTags> {
    let models = app.models.list().await.into_iter();
    let models = models.filter(|model| caller.may_see(&model.name));
    let models = models.map(|model| {
        let info = known(&model);
        OllamaTag {
            modified_at: modified(&info),
            size: info.size_bytes,
            digest: digest(&model.name, &info),
            details: details(&info),
            model: model.name.clone(),
            name: model.name,
        }
    });
    Json(OllamaTags {
        models: models.collect(),
    })
}

/// Show a model
#[utoipa::path(
    post,
    path = "/api/show",
    tag = "ollama",
    request_body = OllamaShowRequest,
    responses((status = 200, description = "All about the model", body = OllamaShow)),
)]
pub async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: Body<OllamaShowRequest>,
) -> Result<Response, ApiError> {
    let OllamaShowRequest { model, name } = body.value;
    let name = model.or(name).ok_or_else(|| {
        ApiError::invalid("model", "`model` is missing; it names the model to show")
    })?;
    let id = app.name_for(&caller, known_as(&app, &caller, &name))?;
    let info = known(&app.models.show(&id).await?);
    let answer = OllamaShow {
        modelfile: format!("# Models are configured otherwise here.\nFROM {id}\n"),
        parameters: parameters(&app, &id),
        details: details(&info),
        model_info: model_info(&info),
        capabilities: capabilities(&info),
        modified_at: modified(&info),
        template: info.template.clone().unwrap_or_default(),
    };
    let mut response = Json(answer).into_response();
    name_ignored(&mut response, &body.ignored);
    Ok(response)
}

/// List the models that are loaded
#[utoipa::path(
    get,
    path = "/api/ps",
    tag = "ollama",
    responses((status = 200, description = "The models that are loaded", body = OllamaProcesses)),
)]
pub async fn ps(State(app): State<Arc<App>>, caller: Caller) -> Json<OllamaProcesses> {
    let models = app.models.status().into_iter();
    let models = models.filter(|model| caller.may_see(&model.name));
    let models =
        models.filter(|model| matches!(model.state, ModelState::Ready | ModelState::Draining));
    let models = models.map(|model| {
        let info = known(&model);
        let size = model.resident_bytes.unwrap_or(0);
        OllamaProcess {
            size,
            digest: digest(&model.name, &info),
            details: details(&info),
            expires_at: model.expires.map_or(time::NEVER.to_owned(), time::rfc3339),
            size_vram: if info.on_gpu { size } else { 0 },
            context_length: info.context,
            model: model.name.clone(),
            name: model.name,
        }
    });
    Json(OllamaProcesses {
        models: models.collect(),
    })
}

/// The version of the interface
#[utoipa::path(
    get,
    path = "/api/version",
    tag = "ollama",
    responses((status = 200, description = "Ollama's version", body = OllamaVersion)),
)]
pub async fn version() -> Json<OllamaVersion> {
    Json(OllamaVersion { version: SPOKEN })
}

/// A model whose files cannot be read is listed all the same.
fn known(model: &ModelStatus) -> Arc<ModelInfo> {
    model.info.clone().unwrap_or_default()
}

fn modified(info: &ModelInfo) -> String {
    time::rfc3339(UNIX_EPOCH + Duration::from_secs(info.modified))
}

fn digest(name: &str, info: &ModelInfo) -> String {
    let ModelInfo {
        quantization,
        size_bytes,
        modified,
        ..
    } = info;
    let what = format!("{name}\n{quantization}\n{size_bytes}\n{modified}");
    let digest = Sha256::digest(what);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(info: &ModelInfo) -> OllamaDetails {
    OllamaDetails {
        parent_model: "",
        format: info.format.clone(),
        family: info.family.clone(),
        families: vec![info.family.clone()],
        parameter_size: in_words(info.parameters),
        quantization_level: info.quantization.clone(),
    }
}

/// `134.5M`, as Ollama writes it.
fn in_words(parameters: u64) -> String {
    let scales = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    let count = parameters as f64;
    match scales.iter().find(|(scale, _)| count >= *scale) {
        Some((scale, letter)) => format!("{:.1}{letter}", count / scale),
        None => parameters.to_string(),
    }
}

/// By the names that GGUF files have for it.
fn model_info(info: &ModelInfo) -> Map<String, Value> {
    let family = &info.family;
    let entries = [
        ("general.architecture".to_owned(), json!(family)),
        ("general.parameter_count".to_owned(), json!(info.parameters)),
        (format!("{family}.context_length"), json!(info.context)),
    ];
    entries.into_iter().collect()
}

fn capabilities(info: &ModelInfo) -> Vec<&'static str> {
    let all = [
        ("completion", true),
        ("tools", info.tools),
        ("thinking", info.thinking),
        ("embedding", info.embeddings),
    ];
    let able = all.into_iter().filter(|(_, able)| *able);
    able.map(|(name, _)| name).collect()
}

fn parameters(app: &App, id: &str) -> String {
    let config = app.config();
    let model = config.models.iter().find(|model| model.name == id);
    let set = model.into_iter().flat_map(|model| &model.sampling);
    let lines: Vec<String> = set.map(|(name, value)| format!("{name} {value}")).collect();
    lines.join("\n")
}
