//! OpenAI's dialect. Each file is an endpoint: its wire types, its lowering, its answers.

use std::sync::Arc;

use axum::Router;

use crate::app::App;

mod chat;
mod completions;
mod embeddings;
mod models;
mod responses;

pub use responses::Responses;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(models::routes())
        .merge(responses::routes())
}
