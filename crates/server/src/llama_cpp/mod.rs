//! The routes of llama.cpp's server that are in no other dialect, and its names for those that are.

pub mod adapters;
mod completion;
mod generation;
mod infill;
mod probabilities;
mod prompt;
mod properties;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;
use crate::error::ApiError;
use crate::openai;

pub use adapters::{
    __path_lora_adapters, __path_set_lora_adapters, LoraScale, lora_adapters, set_lora_adapters,
};
pub use completion::{__path_complete, COMPLETION, LlamaCompletionRequest, complete};
pub use infill::{__path_infill, LlamaInfillRequest, infill};
pub use properties::{
    __path_apply_template, __path_props, __path_slots, ApplyTemplateRequest, ModelQuery,
    apply_template, props, slots,
};

/// Other names of OpenAI's routes.
pub const ALIASES: [&str; 5] = [
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/models",
    "/responses",
];

/// Where clients look for a reranker.
pub const RERANKING: [&str; 4] = ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"];

pub fn routes() -> Router<Arc<App>> {
    let [chat, completions, embeddings, models, responses] = ALIASES;
    let mut routes = Router::new()
        .route(COMPLETION, post(complete))
        .route("/infill", post(infill))
        .route("/props", get(props))
        .route("/slots", get(slots))
        .route("/lora-adapters", get(lora_adapters).post(set_lora_adapters))
        .route("/apply-template", post(apply_template))
        .route(chat, post(openai::chat::create))
        .route(completions, post(openai::completions::create))
        .route(embeddings, post(openai::embeddings::create))
        .route(models, get(openai::models::list))
        .route(responses, post(openai::responses::create));
    for path in RERANKING {
        routes = routes.route(path, post(rerank));
    }
    routes
}

async fn rerank() -> ApiError {
    ApiError::bad_request("this server has no reranking models; rank by /v1/embeddings")
        .code("not_supported")
}
