//! `POST /api/embed`, and `POST /api/embeddings` as it was before.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::keep_alive::OllamaKeepAlive;
use super::time::nanos;
use super::{Held, hold, options};
use crate::app::App;
use crate::caller::Caller;
use crate::embed::{Embed, Embedded, Input};
use crate::error::ApiError;
use crate::union::TextOr;
use crate::wire::{Body, Wire, name_ignored};

const EMBED: &str = "/api/embed";
const EMBEDDINGS: &str = "/api/embeddings";

/// Names the inputs that were cut, by their numbers from 0.
const TRUNCATED_HEADER: &str = "x-loquat-truncated";

/// As many as OpenAI takes; Ollama names no limit.
const MOST_INPUTS: usize = 2048;

/// What to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaEmbedRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// A text or a list of up to 2048. Without any, or with an empty text alone, the model is
    /// loaded.
    pub input: Option<TextOr<String>>,
    /// Cut what is longer than the context (the default; the header `x-loquat-truncated` then has
    /// the inputs' numbers); otherwise it is refused.
    pub truncate: Option<bool>,
    /// Taken without effect: nothing is sampled here.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after the request: seconds or a duration such as `5m`;
    /// negative: for good; 0: not at all. What the configuration says when left out. Counts until
    /// the next request under `/api`; those of other dialects leave it as it is.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
}

impl Wire for OllamaEmbedRequest {
    const WITHIN: &'static [(&'static str, &'static str)] = options::ALL_IGNORED;
    const REFUSED: &'static [(&'static str, &'static str)] =
        &[("dimensions", "vectors have the model's own length")];
}

/// A vector of length 1 for each input.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaEmbedResponse {
    /// As the request called it.
    pub model: String,
    pub embeddings: Vec<Vec<f32>>,
    /// In nanoseconds, from the request's arrival.
    pub total_duration: u64,
    /// In nanoseconds, until the model was there.
    pub load_duration: u64,
    /// Of all inputs together, after cutting.
    pub prompt_eval_count: usize,
}

/// What to embed, in the older form.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaEmbeddingsRequest {
    /// A model's name or alias, with or without `:latest`.
    pub model: String,
    /// The text. Without any, the model is loaded.
    pub prompt: Option<String>,
    /// Taken without effect: nothing is sampled here.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after the request: seconds or a duration such as `5m`;
    /// negative: for good; 0: not at all. What the configuration says when left out. Counts until
    /// the next request under `/api`; those of other dialects leave it as it is.
    #[schema(value_type = Option<String>)]
    pub keep_alive: Option<OllamaKeepAlive>,
}

impl Wire for OllamaEmbeddingsRequest {
    const WITHIN: &'static [(&'static str, &'static str)] = options::ALL_IGNORED;
}

/// A vector as the model gives it, not brought to length 1.
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
/// Made of the model's last hidden states: their mean, or the last one, as the model's
/// configuration says.
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
    body: Body<OllamaEmbedRequest>,
) -> Result<Response, ApiError> {
    let OllamaEmbedRequest {
        model,
        input,
        truncate,
        options,
        keep_alive,
    } = body.value;
    let inputs = inputs(input)?;
    let held = hold(&app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
    let ignored = options::without_effect(options, &held.lease)?;
    let Embedded {
        vectors,
        prompt_tokens,
        cut,
    } = run(
        &app,
        &caller,
        &held,
        EMBED,
        truncate.unwrap_or(true),
        inputs,
    )
    .await?;
    let answer = OllamaEmbedResponse {
        model: held.name,
        embeddings: vectors.into_iter().map(loquat::normalize).collect(),
        total_duration: nanos(caller.received.elapsed()),
        load_duration: nanos(held.load),
        prompt_eval_count: prompt_tokens,
    };
    let mut response = Json(answer).into_response();
    name_cut(&mut response, &cut);
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// Embed a text (older form)
///
/// What is longer than the context is cut, and the header `x-loquat-truncated` says so.
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
    body: Body<OllamaEmbeddingsRequest>,
) -> Result<Response, ApiError> {
    let OllamaEmbeddingsRequest {
        model,
        prompt,
        options,
        keep_alive,
    } = body.value;
    let inputs = inputs(prompt.map(TextOr::Text))?;
    let held = hold(&app, &caller, model, keep_alive.map(|keep| keep.0)).await?;
    let ignored = options::without_effect(options, &held.lease)?;
    let embedded = run(&app, &caller, &held, EMBEDDINGS, true, inputs).await?;
    let answer = OllamaEmbeddingsResponse {
        embedding: embedded.vectors.into_iter().next().unwrap_or_default(),
    };
    let mut response = Json(answer).into_response();
    name_cut(&mut response, &embedded.cut);
    name_ignored(&mut response, &ignored);
    Ok(response)
}

fn inputs(input: Option<TextOr<String>>) -> Result<Vec<Input>, ApiError> {
    let inputs = match input {
        None => Vec::new(),
        Some(TextOr::Text(text)) if text.is_empty() => Vec::new(),
        Some(TextOr::Text(text)) => vec![text],
        Some(TextOr::Many(texts)) => texts,
    };
    match inputs.len() {
        0..=MOST_INPUTS => Ok(inputs.into_iter().map(Input::Text).collect()),
        found => Err(ApiError::invalid(
            "input",
            format!("`input` has {found} texts; at most {MOST_INPUTS} are taken at once"),
        )),
    }
}

async fn run(
    app: &Arc<App>,
    caller: &Caller,
    held: &Held,
    route: &'static str,
    cut: bool,
    inputs: Vec<Input>,
) -> Result<Embedded, ApiError> {
    let embed = Embed {
        app,
        caller,
        lease: &held.lease,
        route,
        pooling: None,
        cut,
    };
    embed.run(inputs).await
}

fn name_cut(response: &mut Response, cut: &[usize]) {
    let numbers: Vec<String> = cut.iter().map(usize::to_string).collect();
    if !numbers.is_empty()
        && let Ok(value) = HeaderValue::from_str(&numbers.join(", "))
    {
        response.headers_mut().insert(TRUNCATED_HEADER, value);
    }
}
