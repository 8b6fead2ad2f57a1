//! `/v1/models`

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::models::{AdapterStatus, ModelInfo, ModelState, ModelStatus};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(list))
        // Names may have slashes: `owner/name`.
        .route("/v1/models/{*id}", get(show))
}

/// All models that the caller may use.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`
    pub object: &'static str,
    pub data: Vec<ModelCard>,
}

/// A model. Fields that are unknown before its files are downloaded are null.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// The name that requests use.
    pub id: String,
    /// `model`
    pub object: &'static str,
    /// The base model of an adapter.
    pub parent: Option<String>,
    /// The modification time of its files, in seconds since 1970.
    pub created: u64,
    /// `loquat`
    pub owned_by: &'static str,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// Whether it is loaded; otherwise the next request loads it.
    pub ready: bool,
    /// `unloaded`, `loading`, `ready`, `draining`, `drained` or `failed`.
    pub state: &'static str,
    /// The backend that runs it.
    pub backend: Option<String>,
    pub device: Option<String>,
    /// The most tokens of a prompt and its reply.
    pub context_length: Option<usize>,
    /// Another name for `context_length`.
    pub max_model_len: Option<usize>,
    pub family: Option<String>,
    /// `gguf`, `safetensors` or `mlx`.
    pub format: Option<String>,
    pub quantization: Option<String>,
    pub parameters: Option<u64>,
    /// The size of its files.
    pub size_bytes: Option<u64>,
    pub capabilities: Option<ModelCapabilities>,
    /// What requests may contain: `text`, `image`, `video`.
    pub input_modalities: Option<Vec<&'static str>>,
}

/// Capabilities of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelCapabilities {
    /// Continue a text.
    pub completion: bool,
    /// Answer a conversation.
    pub chat: bool,
    /// Call tools.
    pub tools: bool,
    /// Reason before it answers.
    pub reasoning: bool,
    pub embeddings: bool,
    /// Read images.
    pub vision: bool,
}

/// List the models.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = "openai",
    responses((status = 200, description = "Models that the caller may use", body = ModelList)),
)]
pub async fn list(State(app): State<Arc<App>>, caller: Caller) -> Json<ModelList> {
    let models = caller.visible(app.models.list().await);
    let mut data = Vec::new();
    for model in models {
        let adapters = model.adapters.iter();
        let adapters: Vec<_> = adapters
            .map(|adapter| {
                let id = app.adapter_id(&caller, &model.name, &adapter.name);
                ModelCard::of_adapter(&model, adapter, id)
            })
            .collect();
        data.push(ModelCard::from(model));
        data.extend(adapters);
    }
    Json(ModelList {
        object: "list",
        data,
    })
}

/// Show one model.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "openai",
    params(("id" = String, Path, description = "Its name or one of its aliases")),
    responses((status = 200, description = "The model", body = ModelCard)),
)]
pub async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let chosen = app.choose(&caller, &id)?;
    let status = app.models.show(&chosen.model).await?;
    let adapters = status.adapters.iter();
    let mut adapters = adapters.filter(|adapter| Some(&*adapter.name) == chosen.adapter_name());
    Ok(Json(match adapters.next() {
        Some(adapter) => ModelCard::of_adapter(&status, adapter, chosen.id().to_owned()),
        None => ModelCard::from(status),
    }))
}

impl ModelCard {
    fn of_adapter(base: &ModelStatus, adapter: &AdapterStatus, id: String) -> Self {
        let full = format!("{}:{}", base.name, adapter.name);
        Self {
            aliases: if id == full { Vec::new() } else { vec![full] },
            id,
            parent: Some(base.name.clone()),
            ready: adapter.loaded,
            format: None,
            quantization: None,
            parameters: None,
            size_bytes: None,
            ..Self::from(base.clone())
        }
    }
}

impl From<ModelStatus> for ModelCard {
    fn from(status: ModelStatus) -> Self {
        let ModelStatus {
            name,
            aliases,
            state,
            info,
            problem: _,
            resident_bytes: _,
            last_used: _,
            expires: _,
            leases: _,
            adapters: _,
            stats: _,
        } = status;
        let info = info.as_deref();
        let text = |field: fn(&ModelInfo) -> &String| info.map(|info| field(info).clone());
        let context = info.map(|info| info.context);
        Self {
            id: name,
            object: "model",
            parent: None,
            created: info.map_or(0, |info| info.modified),
            owned_by: "loquat",
            aliases,
            ready: state == ModelState::Ready,
            state: state.name(),
            backend: text(|info| &info.backend),
            device: text(|info| &info.device),
            context_length: context,
            max_model_len: context,
            family: text(|info| &info.family),
            format: text(|info| &info.format),
            quantization: text(|info| &info.quantization),
            parameters: info.map(|info| info.parameters),
            size_bytes: info.map(|info| info.size_bytes),
            capabilities: info.map(|info| ModelCapabilities {
                completion: true,
                chat: info.has_template,
                tools: info.tools,
                reasoning: info.thinking,
                embeddings: info.embeddings,
                vision: info.images,
            }),
            input_modalities: info.map(ModelInfo::input_modalities),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use serde_json::json;

    use crate::config::ModelConfig;
    use crate::testing::{Harness, Scripted};

    fn two() -> Harness {
        let mut config = Harness::config();
        config.models = vec![
            ModelConfig::new("owner/first", "nowhere"),
            ModelConfig {
                aliases: vec!["other".to_owned()],
                ..ModelConfig::new("second", "nowhere")
            },
        ];
        Harness::with(Scripted::new("hello"), config)
    }

    #[tokio::test]
    async fn models_are_listed_and_shown_by_name() {
        let server = two();
        let list = server.get("/v1/models").await.json();
        assert_eq!(list["object"], "list");
        assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
        for (path, expected) in [
            ("/v1/models/owner/first", &list["data"][0]),
            ("/v1/models/owner%2Ffirst", &list["data"][0]),
            ("/v1/models/second", &list["data"][1]),
            ("/v1/models/other", &list["data"][1]),
        ] {
            let reply = server.get(path).await;
            assert_eq!(&reply.json(), expected, "{path}");
        }
        let expected = json!({
            "id": "second",
            "object": "model",
            "parent": null,
            "created": 1_700_000_000,
            "owned_by": "loquat",
            "aliases": ["other"],
            "ready": false,
            "state": "unloaded",
            "backend": "fake",
            "device": "fake",
            "context_length": 4096,
            "max_model_len": 4096,
            "family": "llama",
            "format": "safetensors",
            "quantization": "bf16",
            "parameters": 1000,
            "size_bytes": 2000,
            "capabilities": {
                "completion": true,
                "chat": true,
                "tools": true,
                "reasoning": true,
                "embeddings": list["data"][1]["capabilities"]["embeddings"],
                "vision": false,
            },
            "input_modalities": ["text"],
        });
        assert_eq!(list["data"][1], expected);
    }

    #[tokio::test]
    async fn used_model_is_ready() {
        let server = two();
        let request = json!({ "model": "other", "prompt": "a" });
        let reply = server.post("/v1/completions", &request).await;
        assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
        assert_eq!(server.get("/v1/models/second").await.json()["ready"], true);
        let first = server.get("/v1/models/owner/first").await.json();
        assert_eq!(first["ready"], false);
    }

    #[tokio::test]
    async fn unknown_model_is_not_found() {
        let reply = two().get("/v1/models/nobody").await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND);
        assert_eq!(reply.json()["error"]["code"], "model_not_found");
        assert_eq!(reply.json()["error"]["param"], "model");
    }
}
