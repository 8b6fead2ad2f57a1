//! `/lora-adapters`, and the field `lora` of requests.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::properties::{ModelQueryResult, queried_model};
use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::json_body;
use crate::models::Lease;
use crate::wire;

/// An adapter and its strength.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoraScale {
    /// The adapter's number, as `/lora-adapters` lists it.
    pub id: usize,
    /// 1 is as trained, 0 is as if the adapter were not listed.
    pub scale: f32,
}

/// Adapters and their strengths.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct LoraScales(Vec<LoraScale>);

fn pairs(list: &[LoraScale]) -> Vec<(usize, f32)> {
    list.iter().map(|each| (each.id, each.scale)).collect()
}

/// The lease with exactly the adapters that a request lists; unchanged if it has no list.
pub async fn apply(
    app: &App,
    caller: &Caller,
    lease: Lease,
    lora: Option<&[LoraScale]>,
) -> Result<Lease, ApiError> {
    let Some(list) = lora else {
        return Ok(lease);
    };
    if lease.names_adapter() {
        let problem = "lists adapters, and `model` names one; send only one of the two";
        return Err(ApiError::invalid(Field::Lora, problem));
    }
    let scales = pairs(list);
    tokio::select! {
        lease = app.models.adapt(lease, Field::Lora, &scales) => lease,
        late = caller.out_of_time() => Err(late),
    }
}

/// An adapter as llama.cpp describes it.
#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaAdapter {
    pub id: usize,
    /// The adapter's name; where its files are is not shown.
    pub path: String,
    /// Its strength in requests that choose no adapter.
    pub scale: f32,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LlamaSuccess {
    pub success: bool,
}

/// List a model's adapters.
#[utoipa::path(
    get,
    path = "/lora-adapters",
    tag = "llama.cpp",
    params(super::ModelQuery),
    responses((status = 200, description = "The adapters", body = Vec<LlamaAdapter>)),
)]
pub async fn lora_adapters(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: ModelQueryResult,
) -> Result<Json<Vec<LlamaAdapter>>, ApiError> {
    let model = queried_model(&app, &caller, query)?;
    let status = app.models.status().into_iter();
    let adapters = status
        .filter(|status| status.name == model)
        .flat_map(|status| status.adapters);
    let described = adapters.map(|adapter| LlamaAdapter {
        id: adapter.number,
        path: adapter.name,
        scale: adapter.default_scale,
    });
    Ok(Json(described.collect()))
}

/// Set the adapters of requests that choose none; those that are not listed get the scale 0. This
/// changes what other clients get, so that a key needs the scope `manage`.
#[utoipa::path(
    post,
    path = "/lora-adapters",
    tag = "llama.cpp",
    params(super::ModelQuery),
    request_body = LoraScales,
    responses((status = 200, description = "They are set", body = LlamaSuccess)),
)]
pub async fn set_lora_adapters(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: ModelQueryResult,
    body: Bytes,
) -> Result<Json<LlamaSuccess>, ApiError> {
    caller.check_may_manage("setting the adapters of all requests")?;
    let model = queried_model(&app, &caller, query)?;
    let LoraScales(list) = json_body::read_with(body, |bytes| {
        let value = json_body::parse(bytes)?;
        wire::parse(value)
    })
    .await?;
    let field = FieldPath::verbatim("");
    app.models
        .set_default_adapters(&model, field, &pairs(&list))?;
    Ok(Json(LlamaSuccess { success: true }))
}
