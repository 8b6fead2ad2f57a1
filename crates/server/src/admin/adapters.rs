//! vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::models::patience;
use crate::app::App;
use crate::config::{ModelConfig, adapter_name_fault};
use crate::error::{ApiError, ErrorKind};
use crate::field::Field;
use crate::lowering;
use crate::models::{NewAdapter, adapter_not_found, matches_pattern};
use crate::wire::{FieldTables, JsonBody, WireRequest};

/// An adapter to load.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadLoraAdapter {
    /// By which requests choose it.
    pub lora_name: String,
    /// Inside a folder of the model's `adapter_folders`: a whole path, or one relative to such a
    /// folder. Or `owner/name[@revision][:file]` of a hub repository that `adapter_repos` allows.
    pub lora_path: String,
    /// Replace an adapter of this name, which serves requests until the new one is loaded.
    pub load_inplace: Option<bool>,
    /// The base model. May be omitted if only one model sets `adapter_folders` or `adapter_repos`.
    pub model: Option<String>,
}

impl WireRequest for LoadLoraAdapter {
    const IGNORED: FieldTables<&'static str> = &[LORA_INT_ID];
}

const LORA_INT_ID: &[(&str, &str)] = &[("lora_int_id", "adapters are known by their names")];

/// An adapter to unload.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnloadLoraAdapter {
    pub lora_name: String,
    /// The base model. May be omitted if only one model has an adapter of this name.
    pub model: Option<String>,
    /// How long requests that use it may continue, in seconds, before they fail. Defaults to the
    /// server's shutdown timeout.
    pub patience: Option<f64>,
}

impl WireRequest for UnloadLoraAdapter {
    const IGNORED: FieldTables<&'static str> = &[LORA_INT_ID];
}

/// Loads an adapter from a folder or a hub repository that the configuration allows, and its model
/// if necessary.
#[utoipa::path(
    post,
    path = "/v1/load_lora_adapter",
    tag = "admin",
    request_body = LoadLoraAdapter,
    responses((status = 200, description = "Requests can choose it", body = String))
)]
pub async fn load(
    State(app): State<Arc<App>>,
    body: JsonBody<LoadLoraAdapter>,
) -> Result<String, ApiError> {
    let LoadLoraAdapter {
        lora_name: name,
        lora_path,
        load_inplace,
        model,
    } = body.value;
    if let Some(fault) = adapter_name_fault(&name) {
        return Err(ApiError::invalid(Field::LoraName, fault));
    }
    let model = base(&app, model.as_deref())?;
    check_free(&app, &model.name, &name)?;
    let id = model.name.clone();
    let source = lowering::run(move || allowed_source(&model, &lora_path)).await?;
    let new = NewAdapter {
        model: id,
        name: name.clone(),
        source,
        replaces: load_inplace.unwrap_or(false),
    };
    let patience = patience(None, &app)?;
    // The loading continues if the client disconnects.
    let loading = tokio::spawn(async move { app.models.load_adapter(new, patience).await });
    finished(loading.await)?;
    Ok(format!(
        "Success: LoRA adapter '{name}' added successfully."
    ))
}

/// Unloads an adapter when the requests that use it have ended, and waits for that. New requests
/// cannot choose it. One of the configuration is back when the configuration changes.
#[utoipa::path(
    post,
    path = "/v1/unload_lora_adapter",
    tag = "admin",
    request_body = UnloadLoraAdapter,
    responses((status = 200, description = "It is unloaded", body = String))
)]
pub async fn unload(
    State(app): State<Arc<App>>,
    body: JsonBody<UnloadLoraAdapter>,
) -> Result<String, ApiError> {
    let UnloadLoraAdapter {
        lora_name: name,
        model,
        patience: seconds,
    } = body.value;
    let patience = patience(seconds, &app)?;
    let model = match model {
        Some(model) => app.models.resolve_name(&model)?,
        None => match app.models.models_with_adapter(&name).as_slice() {
            [] => return Err(adapter_not_found(&name)),
            [only] => only.clone(),
            several => return Err(which(several)),
        },
    };
    let adapter = name.clone();
    let unloading =
        tokio::spawn(async move { app.models.unload_adapter(&model, &adapter, patience).await });
    finished(unloading.await)?;
    Ok(format!(
        "Success: LoRA adapter '{name}' removed successfully."
    ))
}

fn finished(done: Result<Result<(), ApiError>, tokio::task::JoinError>) -> Result<(), ApiError> {
    done.unwrap_or_else(|error| Err(ApiError::internal(&error)))
}

/// The model to load an adapter for.
fn base(app: &App, named: Option<&str>) -> Result<ModelConfig, ApiError> {
    let config = app.config();
    let allows = |model: &&ModelConfig| model.loads_adapters();
    let forbidden = |what: String| {
        let what = format!(
            "{what} sets neither `adapter_folders` nor `adapter_repos`, from which adapters may be \
             loaded"
        );
        ApiError::new(ErrorKind::Forbidden, what).code("adapter_loading_disabled")
    };
    if let Some(named) = named {
        let id = app.models.resolve_name(named)?;
        let model = config.models.iter().find(|model| model.name == id);
        let model = model.filter(allows).cloned();
        return model.ok_or_else(|| forbidden(format!("the model `{id}`")));
    }
    let allowing: Vec<_> = config.models.iter().filter(allows).collect();
    match allowing.as_slice() {
        [] => Err(forbidden("the configuration".to_owned())),
        [only] => Ok((*only).clone()),
        several => {
            let names: Vec<_> = several.iter().map(|model| model.name.clone()).collect();
            Err(which(&names))
        }
    }
}

fn which(models: &[String]) -> ApiError {
    let problem = format!("is missing; use one of: {}", models.join(", "));
    ApiError::invalid(Field::Model, problem)
}

/// Refuses a name by which requests would choose a model.
fn check_free(app: &App, base: &str, name: &str) -> Result<(), ApiError> {
    let full = format!("{base}:{name}");
    let config = app.config();
    let names = |model: &&ModelConfig| model.name == full || model.aliases.contains(&full);
    match config.models.iter().find(names) {
        Some(model) => {
            let problem = format!(
                "cannot be `{name}`: `{full}` names the model `{}`",
                model.name
            );
            Err(ApiError::invalid(Field::LoraName, problem))
        }
        None => Ok(()),
    }
}

/// The path without links, if it is inside one of the model's folders, or the reference to a
/// repository that the model allows.
fn allowed_source(model: &ModelConfig, path: &str) -> Result<String, ApiError> {
    let inside = |folder: &PathBuf| {
        let folder = folder.canonicalize().ok()?;
        let path = folder.join(path).canonicalize().ok()?;
        path.starts_with(&folder).then_some(path)
    };
    if let Some(path) = model.adapter_folders.iter().find_map(inside) {
        return Ok(path.to_string_lossy().into_owned());
    }
    // A path of this machine would win over the repository.
    if let Some(repo) = repo_of(path)
        && !Path::new(path).exists()
        && model
            .adapter_repos
            .iter()
            .any(|pattern| matches_pattern(pattern, repo))
    {
        return Ok(path.to_owned());
    }
    let mut allowed = Vec::new();
    if !model.adapter_folders.is_empty() {
        let folders = model.adapter_folders.iter();
        let list: Vec<_> = folders.map(|folder| folder.display().to_string()).collect();
        let list = list.join(", ");
        allowed.push(format!(
            "exist inside one of the model's `adapter_folders`: {list}"
        ));
    }
    if !model.adapter_repos.is_empty() {
        let list = model.adapter_repos.join(", ");
        allowed.push(format!(
            "name a repository of the model's `adapter_repos`: {list}"
        ));
    }
    let problem = format!("must {}", allowed.join(", or "));
    Err(ApiError::invalid(Field::LoraPath, problem))
}

/// `owner/name` of a reference to the hub.
fn repo_of(reference: &str) -> Option<&str> {
    let repo = reference.split(['@', ':']).next().unwrap_or_default();
    let is_part = |part: &str| {
        let known = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        part.chars().all(known) && part.starts_with(|letter: char| letter != '.')
    };
    let (owner, name) = repo.split_once('/')?;
    (is_part(owner) && is_part(name)).then_some(repo)
}
