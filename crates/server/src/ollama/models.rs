//! Models: `/api/tags`, `/api/show`, `/api/ps`, `/api/version`.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{strip_latest, time};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::Field;
use crate::models::{ModelInfo, ModelState, ModelStatus};
use crate::wire::{FieldTables, JsonBody, WireRequest, with_ignored_header};

/// The version of Ollama's API that this server implements; clients check it for features.
const API_VERSION: &str = "0.13.0";
const CONFIGURED: &str = "models are shown as configured";

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaTags {
    pub models: Vec<OllamaTag>,
}

/// A model that is served.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaTag {
    pub name: String,
    /// The same as `name`.
    pub model: String,
    /// The modification time of its files, in RFC 3339.
    pub modified_at: String,
    /// The size of its files in bytes.
    pub size: u64,
    /// A hash of the model's details; it changes when the files change.
    pub digest: String,
    pub details: OllamaDetails,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaDetails {
    /// The base model of an adapter; otherwise empty.
    pub parent_model: String,
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
    /// The same as `name`.
    pub model: String,
    /// The memory it uses, in bytes.
    pub size: u64,
    /// A hash of the model's details; it changes when the files change.
    pub digest: String,
    pub details: OllamaDetails,
    /// When it is unloaded if it stays idle, in RFC 3339; the year 9999 means never.
    pub expires_at: String,
    /// The memory it uses on an accelerator.
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

impl WireRequest for OllamaShowRequest {
    const IGNORED: FieldTables<&'static str> = &[&[("verbose", "there are no further details")]];
    const REFUSED: FieldTables<Field> = &[&[
        (Field::System, CONFIGURED),
        (Field::Template, CONFIGURED),
        (Field::Options, CONFIGURED),
    ]];
}

/// Details of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaShow {
    /// A Modelfile with the model's name. Models are configured in `loquat.toml`.
    pub modelfile: String,
    /// Sampling parameters of the configuration, one per line.
    pub parameters: String,
    /// The chat template, in Jinja.
    pub template: String,
    pub details: OllamaDetails,
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// Any of `completion`, `tools`, `thinking`, `embedding`, `vision`.
    pub capabilities: Vec<&'static str>,
    /// The modification time of its files, in RFC 3339.
    pub modified_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaVersion {
    /// The version of Ollama's API that this server implements.
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
    responses((status = 200, description = "The served models", body = OllamaTags)),
)]
pub async fn tags(State(app): State<Arc<App>>, caller: Caller) -> Json<OllamaTags> {
    let mut models = Vec::new();
    for model in caller.visible(app.models.list().await) {
        let info = info_or_default(&model);
        models.push(tag(model.name.clone(), &info, details(&info)));
        for adapter in &model.adapters {
            let name = app.adapter_id(&caller, &model.name, &adapter.name);
            models.push(tag(name, &info, adapter_details(&info, &model.name)));
        }
    }
    Json(OllamaTags { models })
}

fn tag(name: String, info: &ModelInfo, details: OllamaDetails) -> OllamaTag {
    OllamaTag {
        modified_at: modified(info),
        size: info.size_bytes,
        digest: digest(&name, info),
        details,
        model: name.clone(),
        name,
    }
}

/// Show a model
#[utoipa::path(
    post,
    path = "/api/show",
    tag = "ollama",
    request_body = OllamaShowRequest,
    responses((status = 200, description = "The model's details", body = OllamaShow)),
)]
pub async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<OllamaShowRequest>,
) -> Result<Response, ApiError> {
    let OllamaShowRequest { model, name } = body.value;
    let name = model
        .or(name)
        .ok_or_else(|| ApiError::invalid(Field::Model, "is missing; it names the model to show"))?;
    let chosen = app.choose(&caller, strip_latest(&app, &caller, &name))?;
    let id = chosen.model.clone();
    let adapter = chosen.adapter_name();
    let adapter_line = adapter.map_or(String::new(), |name| format!("ADAPTER {name}\n"));
    let info = info_or_default(&app.models.show(&id).await?);
    let answer = OllamaShow {
        modelfile: format!("# Models are configured in loquat.toml.\nFROM {id}\n{adapter_line}"),
        parameters: parameters(&app, &id),
        details: match adapter {
            Some(_) => adapter_details(&info, &id),
            None => details(&info),
        },
        model_info: model_info(&info),
        capabilities: capabilities(&info),
        modified_at: modified(&info),
        template: info.template.clone().unwrap_or_default(),
    };
    Ok(with_ignored_header(Json(answer), &body.ignored))
}

/// List loaded models
#[utoipa::path(
    get,
    path = "/api/ps",
    tag = "ollama",
    responses((status = 200, description = "The loaded models", body = OllamaProcesses)),
)]
pub async fn ps(State(app): State<Arc<App>>, caller: Caller) -> Json<OllamaProcesses> {
    let models = caller.visible(app.models.status());
    let models =
        models.filter(|model| matches!(model.state, ModelState::Ready | ModelState::Draining));
    let models = models.map(|model| {
        let info = info_or_default(&model);
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

/// Get the API version
#[utoipa::path(
    get,
    path = "/api/version",
    tag = "ollama",
    responses((status = 200, description = "Ollama's version", body = OllamaVersion)),
)]
pub async fn version() -> Json<OllamaVersion> {
    Json(OllamaVersion {
        version: API_VERSION,
    })
}

/// Models with unreadable files are listed with default values.
fn info_or_default(model: &ModelStatus) -> Arc<ModelInfo> {
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
        parent_model: String::new(),
        format: info.format.clone(),
        family: info.family.clone(),
        families: vec![info.family.clone()],
        parameter_size: parameter_size(info.parameters),
        quantization_level: info.quantization.clone(),
    }
}

fn adapter_details(info: &ModelInfo, base: &str) -> OllamaDetails {
    OllamaDetails {
        parent_model: base.to_owned(),
        ..details(info)
    }
}

/// `134.5M`, as Ollama writes it.
fn parameter_size(parameters: u64) -> String {
    let scales = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    let count = parameters as f64;
    match scales.iter().find(|(scale, _)| count >= *scale) {
        Some((scale, letter)) => format!("{:.1}{letter}", count / scale),
        None => parameters.to_string(),
    }
}

/// By GGUF's names.
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
        ("vision", info.images),
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
