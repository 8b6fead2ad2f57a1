//! `/v1/embeddings`

#[cfg(test)]
mod tests;
pub mod wire;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use self::wire::{
    Embedding, EmbeddingEncoding, EmbeddingPooling, EmbeddingRequest, EmbeddingResponse,
    EmbeddingUsage, EmbeddingVector,
};
use crate::app::App;
use crate::caller::Caller;
use crate::embed::{EmbeddingJob, Embeddings};
use crate::error::ApiError;
use crate::field::Field;
use crate::wire::{JsonBody, with_ignored_header};

const ROUTE: &str = "/v1/embeddings";

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(create))
}

/// Embed texts
///
/// Vectors of length 1, pooled from the model's last hidden states: their mean, or the last one,
/// as configured. An input that exceeds the model's context is refused.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "openai",
    request_body = EmbeddingRequest,
    responses((status = 200, description = "A vector for each input", body = EmbeddingResponse)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<EmbeddingRequest>,
) -> Result<Response, ApiError> {
    let EmbeddingRequest {
        model,
        input,
        encoding_format,
        dimensions,
        pooling,
    } = body.value;
    let inputs = input.lower()?;
    let lease = super::lease(&app, &caller, model.as_deref()).await?;
    check_dimensions(dimensions, lease.engine().capabilities().hidden_size)?;
    let job = EmbeddingJob {
        app: &app,
        caller: &caller,
        lease: &lease,
        route: ROUTE,
        pooling: pooling.map(EmbeddingPooling::lower),
        truncate: false,
    };
    let Embeddings {
        vectors,
        prompt_tokens,
        truncated: _,
    } = job.run(inputs).await?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| {
        let vector = loquat::normalize(vector);
        Embedding {
            object: "embedding",
            index,
            embedding: match encoding_format {
                None | Some(EmbeddingEncoding::Float) => EmbeddingVector::Float(vector),
                Some(EmbeddingEncoding::Base64) => EmbeddingVector::Base64(to_base64(&vector)),
            },
        }
    });
    let answer = EmbeddingResponse {
        object: "list",
        data: data.collect(),
        model: lease.name().to_owned(),
        usage: EmbeddingUsage {
            prompt_tokens,
            total_tokens: prompt_tokens,
        },
    };
    Ok(with_ignored_header(Json(answer), &body.ignored))
}

/// Shortened vectors are useless unless the model is trained for it.
fn check_dimensions(requested: Option<usize>, available: Option<usize>) -> Result<(), ApiError> {
    match (requested, available) {
        (Some(requested), Some(available)) if requested != available => Err(ApiError::unsupported(
            Field::Dimensions,
            format!("this model's vectors have {available} dimensions; omit it"),
        )),
        _ => Ok(()),
    }
}

/// Little-endian floats, as OpenAI's clients read them.
fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    STANDARD.encode(bytes)
}
