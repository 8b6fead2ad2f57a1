//! `POST /v1/embeddings`

#[cfg(test)]
mod tests;
pub mod wire;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
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
use crate::embed::{Embed, Embedded};
use crate::error::ApiError;
use crate::wire::{Body, name_ignored};

const ROUTE: &str = "/v1/embeddings";

pub fn routes() -> Router<Arc<App>> {
    Router::new().route(ROUTE, post(create))
}

/// Embed texts
///
/// Vectors of length 1, made of the model's last hidden states: their mean, or the last one, as
/// the model's configuration says. An input that is longer than the model's context is refused.
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
    body: Body<EmbeddingRequest>,
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
    let embed = Embed {
        app: &app,
        caller: &caller,
        lease: &lease,
        route: ROUTE,
        pooling: pooling.map(EmbeddingPooling::lower),
        cut: false,
    };
    let Embedded {
        vectors,
        prompt_tokens,
        cut: _,
    } = embed.run(inputs).await?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| {
        let vector = loquat::normalize(vector);
        Embedding {
            object: "embedding",
            index,
            embedding: match encoding_format {
                None | Some(EmbeddingEncoding::Float) => EmbeddingVector::Float(vector),
                Some(EmbeddingEncoding::Base64) => EmbeddingVector::Base64(packed(&vector)),
            },
        }
    });
    let answer = EmbeddingResponse {
        object: "list",
        data: data.collect(),
        model: lease.id.clone(),
        usage: EmbeddingUsage {
            prompt_tokens,
            total_tokens: prompt_tokens,
        },
    };
    let mut response = Json(answer).into_response();
    name_ignored(&mut response, &body.ignored);
    Ok(response)
}

/// A model that was not trained for it gives nothing of use when its vectors are cut.
fn check_dimensions(wanted: Option<usize>, given: Option<usize>) -> Result<(), ApiError> {
    match (wanted, given) {
        (Some(wanted), Some(given)) if wanted != given => Err(ApiError::unsupported(
            "dimensions",
            &format!("this model's vectors have {given} dimensions; leave it out"),
        )),
        _ => Ok(()),
    }
}

/// Little-endian floats, as OpenAI's clients read them.
fn packed(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    STANDARD.encode(bytes)
}
