//! `/api/embed`, and its older form `/api/embeddings`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::keep_alive::{self, OllamaKeepAlive};
use super::time::nanos;
use super::{LeasedModel, lease, options};
use crate::app::App;
use crate::caller::Caller;
use crate::embed::{EmbeddingJob, Embeddings, PromptInput};
use crate::error::ApiError;
use crate::field::Field;
use crate::lowering;
use crate::union::TextOr;
use crate::unknown_fields::FieldPolicy;
use crate::wire::{FieldTables, JsonBody, WireRequest, with_ignored_header};

const EMBED: &str = "/api/embed";
const EMBEDDINGS: &str = "/api/embeddings";

/// Lists the inputs that were truncated, numbered from 0.
const TRUNCATED_HEADER: &str = "x-loquat-truncated";

/// OpenAI's limit; Ollama has none.
const MOST_INPUTS: usize = 2048;

/// What to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaEmbedRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// A text, or a list of up to 2048. Without input, or with one empty text, the model is loaded.
    pub input: Option<TextOr<String>>,
    /// Truncate inputs that exceed the context (the default; the header `x-loquat-truncated` lists
    /// them); otherwise they are refused.
    pub truncate: Option<bool>,
    /// Has no effect: embeddings are not sampled.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after the request: seconds, or a duration such as `5m`;
    /// negative: forever; 0: unload it. The configuration's value if omitted. Applies until the
    /// next request under `/api`; other dialects do not change it. A key needs the scope `manage`;
    /// without it the field is ignored, and a request that only unloads is refused.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
}

impl WireRequest for OllamaEmbedRequest {
    const IGNORED_NESTED: FieldTables<&'static str> = &[options::ALL_IGNORED, keep_alive::IGNORED];
    const REFUSED_NESTED: FieldTables<&'static str> = &[options::REFUSED];
    const REFUSED: FieldTables<Field> = &[&[(Field::Dimensions, "vectors are not shortened")]];
}

/// A vector of length 1 for each input.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaEmbedResponse {
    /// As the request spells it.
    pub model: String,
    pub embeddings: Vec<Vec<f32>>,
    /// In nanoseconds, from the request's arrival.
    pub total_duration: u64,
    /// In nanoseconds, until the model was loaded.
    pub load_duration: u64,
    /// Of all inputs together, after truncation.
    pub prompt_eval_count: usize,
}

/// What to embed (older form).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaEmbeddingsRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// The text. Without it the model is loaded.
    pub prompt: Option<String>,
    /// Has no effect: embeddings are not sampled.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after the request: seconds, or a duration such as `5m`;
    /// negative: forever; 0: unload it. The configuration's value if omitted. Applies until the
    /// next request under `/api`; other dialects do not change it. A key needs the scope `manage`;
    /// without it the field is ignored, and a request that only unloads is refused.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
}

impl WireRequest for OllamaEmbeddingsRequest {
    const IGNORED_NESTED: FieldTables<&'static str> = &[options::ALL_IGNORED, keep_alive::IGNORED];
    const REFUSED_NESTED: FieldTables<&'static str> = &[options::REFUSED];
}

/// The model's vector, not normalized.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaEmbeddingsResponse {
    pub embedding: Vec<f32>,
}

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(EMBED, post(embed))
        .route(EMBEDDINGS, post(embeddings))
}

/// Embed texts
///
/// Pooled from the model's last hidden states: their mean, or the last one, as configured.
#[utoipa::path(
    post,
    path = "/api/embed",
    tag = "ollama",
    request_body = OllamaEmbedRequest,
    responses((status = 200, description = "A vector for each input", body = OllamaEmbedResponse)),
)]
pub async fn embed(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<OllamaEmbedRequest>,
) -> Result<Response, ApiError> {
    let OllamaEmbedRequest {
        model,
        input,
        truncate,
        options,
        keep_alive,
    } = body.value;
    let inputs = inputs(input)?;
    let model = lease(&app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
    let mut ignored = check_options(options, &app, &model).await?;
    ignored.extend(model.ignored);
    let Embeddings {
        vectors,
        prompt_tokens,
        truncated,
    } = run(
        &app,
        &caller,
        &model,
        EMBED,
        truncate.unwrap_or(true),
        inputs,
    )
    .await?;
    let answer = OllamaEmbedResponse {
        model: model.name,
        embeddings: vectors.into_iter().map(loquat::normalize).collect(),
        total_duration: nanos(caller.received.elapsed()),
        load_duration: nanos(model.load),
        prompt_eval_count: prompt_tokens,
    };
    Ok(respond(answer, &truncated, &ignored))
}

/// Embed a text (older form)
///
/// A text that exceeds the context is truncated, and the header `x-loquat-truncated` lists it.
#[utoipa::path(
    post,
    path = "/api/embeddings",
    tag = "ollama",
    request_body = OllamaEmbeddingsRequest,
    responses((status = 200, description = "The vector", body = OllamaEmbeddingsResponse)),
)]
pub async fn embeddings(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<OllamaEmbeddingsRequest>,
) -> Result<Response, ApiError> {
    let OllamaEmbeddingsRequest {
        model,
        prompt,
        options,
        keep_alive,
    } = body.value;
    let inputs = inputs(prompt.map(TextOr::Text))?;
    let model = lease(&app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
    let mut ignored = check_options(options, &app, &model).await?;
    ignored.extend(model.ignored);
    let embedded = run(&app, &caller, &model, EMBEDDINGS, true, inputs).await?;
    let answer = OllamaEmbeddingsResponse {
        embedding: embedded.vectors.into_iter().next().unwrap_or_default(),
    };
    Ok(respond(answer, &embedded.truncated, &ignored))
}

fn inputs(input: Option<TextOr<String>>) -> Result<Vec<PromptInput>, ApiError> {
    let inputs = match input {
        None => Vec::new(),
        Some(TextOr::Text(text)) if text.is_empty() => Vec::new(),
        Some(TextOr::Text(text)) => vec![text],
        Some(TextOr::Many(texts)) => texts,
    };
    match inputs.len() {
        0..=MOST_INPUTS => Ok(inputs.into_iter().map(PromptInput::Text).collect()),
        found => Err(ApiError::invalid(
            Field::Input,
            format!("has {found} texts; at most {MOST_INPUTS} are allowed"),
        )),
    }
}

async fn check_options(
    options: Option<Map<String, Value>>,
    app: &App,
    model: &LeasedModel,
) -> Result<Vec<&'static str>, ApiError> {
    let lease = model.lease.clone();
    let policy = FieldPolicy::new(app.config().server.strict_fields);
    lowering::run(move || options::check_ignored(options, &lease, policy)).await
}

async fn run(
    app: &Arc<App>,
    caller: &Caller,
    model: &LeasedModel,
    route: &'static str,
    truncate: bool,
    inputs: Vec<PromptInput>,
) -> Result<Embeddings, ApiError> {
    let job = EmbeddingJob {
        app,
        caller,
        lease: &model.lease,
        route,
        pooling: None,
        truncate,
    };
    job.run(inputs).await
}

fn respond(answer: impl Serialize, truncated: &[usize], ignored: &[&'static str]) -> Response {
    let mut response = with_ignored_header(Json(answer), ignored);
    let numbers: Vec<String> = truncated.iter().map(usize::to_string).collect();
    if !numbers.is_empty()
        && let Ok(value) = HeaderValue::from_str(&numbers.join(", "))
    {
        response.headers_mut().insert(TRUNCATED_HEADER, value);
    }
    response
}
